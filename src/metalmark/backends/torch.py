"""PyTorch, eager by default; autocast, Inductor, CUDA graphs, channels-last and fused optimisers by Settings."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from metalmark.backends.base import Placement, Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.environment import notes_without_compiler
from metalmark.backends.outputs import call, given_loss, require_number, scores, total
from metalmark.backends.session import fingerprint_of, make_feeder, require_images, resident_batches, threads_of
from metalmark.backends.torch_capture import captured
from metalmark.backends.torch_compiler import (
    captures_graphs,
    compile_options,
    compiled_work,
    end_helpers,
    frozen_work,
)
from metalmark.backends.torch_devices import TorchDevice, reports, resolve
from metalmark.backends.torch_recipe import MAKE_IT_FUSED, make_optimizer, module_of
from metalmark.backends.torch_settings import (
    NOT_IN_OWN_STEP,
    BatchParts,
    attention,
    attention_errors,
    observed_steps,
    recompute_blocks,
    refuse_combinations,
    require_attention,
    require_convolutions,
)
from metalmark.backends.torch_world import device_of_rank, notes_on, parallel
from metalmark.errors import UnsupportedError
from metalmark.feeds.on_torch import as_tensor, torch_loader
from metalmark.model.nest import flatten
from metalmark.model.plan import Dtype, Mode, Plan, Settings, World
from metalmark.model.run import DeviceMemory
from metalmark.model.workload import Recipe, Workload

Tensors = tuple[torch.Tensor, ...]
Step = Callable[[Tensors], Any]
"""Takes the leaves of a batch. In training it returns the loss, in inference what the model returns."""
CAST_BY_AUTOCAST = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
OWN_ATTENTION = "The kernel for attention is in force in your own step; whether it computes any is not checked."
AUTOCAST = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16}


class TorchSession:
    def __init__(self, plan: Plan, workload: Workload, device: torch.device, kind: TorchDevice) -> None:
        self._device, self._kind = device, kind
        settings = plan.settings
        self._compiles, self._is_eager = settings.compile, not (settings.compile or settings.graph)
        self._training = training = plan.mode is Mode.TRAINING
        self._batch_size = plan.params.get("batch_size")
        recipe = self.recipe = workload.recipe("torch", plan.params)
        refuse_combinations(plan, recipe)
        layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        model = module_of(recipe.model)
        if settings.channels_last:
            require_images(parameter.ndim for parameter in model.parameters())
        if settings.conv_search:
            require_convolutions(model)
        self._model = model.to(device=device, memory_format=layout).train(training)
        named = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        self._names, self._trainable = tuple(name for name, _ in named), [p for _, p in named]
        if training and not self._trainable:
            raise UnsupportedError(
                f"The {type(model).__name__} has no parameter that requires a gradient: there is nothing to train.",
                hint="Measure it with --mode inference, or unfreeze a part of it.",
            )
        # Only CUDA orders such copies with the work that reads them; on Metal they gave wrong data (pytorch#139550).
        wait = not (plan.loader is not None and plan.loader.pin and device.type == "cuda")
        move = _mover(device, layout, wait=wait)

        def place(arrays: Any) -> Tensors:
            return tuple(map(move, arrays))

        batches = resident_batches(plan, workload, recipe)
        self.layout, self.batch_shown = batches.layout, batches.shown
        self.feeder = make_feeder(plan, workload, recipe, batches, place=place, loader=torch_loader)
        self._output: Any = None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._schedule: Any = None
        self.steps_scheduled = 0
        self._scaler: torch.amp.GradScaler | None = None
        self._forward_loss: Step | None = None
        """The first half of a training step, as it is run; None where a step is the user's own, or captured."""
        held = next(self._model.parameters(), None)
        self.placement = Placement(
            device=str(device if held is None else held.device), name=kind.name(device.index or 0)
        )
        self.parameters = sum(p.numel() for p in self._model.parameters())
        self.trainable_parameters = sum(p.numel() for p in self._trainable)
        self.notes = () if settings.compile else notes_without_compiler(settings.environment)
        if settings.attention_kernel:
            self._check_attention(settings)
        if settings.recompute:
            recompute_blocks(self._model, compiled=settings.compile)
        self.parallel = self._model
        """What a training step calls; among several processes it exchanges gradients with the others."""
        self._weight = 1.0
        """The weight of this process's part of a batch, where parts differ."""
        if isinstance(plan.world, World):
            self.parallel = parallel(self._model, recipe)
            self.notes = (*self.notes, *notes_on(self._model))
        self._work = self._with_settings(self._make_work(recipe, settings), settings)
        kind.reset_peak(device)

    def step(self) -> None:
        self._output = self._work(self.feeder.take())

    def settle(self) -> None:
        if self._compiles:
            end_helpers()

    def observed(self) -> AbstractContextManager[dict[str, str]]:
        if not self._is_eager:
            return nullcontext({})  # what is compiled or captured must not be seen differently than it was before
        return observed_steps(self._model, own_step=self.recipe.step is not None)

    def synchronize(self) -> None:
        self._kind.synchronize(self._device)

    def proof(self) -> float:
        assert self._output is not None
        if self._training:
            return float(self._output.detach().float().mean().cpu())
        parts = [leaf.float() for leaf in flatten(self._output)[0] if isinstance(leaf, torch.Tensor)]
        return sum(float(part.square().mean().cpu()) for part in parts) / max(1, len(parts))

    def fingerprint(self) -> tuple[float, ...]:
        return fingerprint_of(p.detach().float().cpu().numpy() for p in self._trainable)

    def fingerprint_names(self) -> tuple[str, ...]:
        return self._names

    def memory(self) -> DeviceMemory:
        return self._kind.memory(self._device)

    def _make_work(self, recipe: Recipe, settings: Settings) -> Step:
        autocast = self._autocast(settings)
        model, rebuild = self._model, self.layout.rebuild

        if not self._training:
            _cast_once(model, AUTOCAST.get(settings.dtype))

            def infer(inputs: Any) -> Any:
                with autocast():
                    return scores(call(model, inputs))

            forward = frozen_work(infer, settings) if settings.compile else infer
            guard: Callable[..., Any] = torch.inference_mode if not settings.compile else torch.no_grad
            work = guard()(lambda leaves: forward(rebuild(leaves)["inputs"]))
            return self._captured(work) if settings.graph else work

        if recipe.step is not None:
            own = self._own_step(recipe, settings, autocast)
            return self._captured(own, is_own=True) if settings.graph else own

        model = self.parallel

        def compute_loss(inputs: Any, targets: Any) -> torch.Tensor:
            with autocast():
                return given_loss(recipe, call(model, inputs), targets)

        forward_loss = compiled_work(compute_loss, settings) if settings.compile else compute_loss
        backward, update = self._updater(recipe, settings)
        if self.parallel is not self._model:
            backward = self._weighted(backward)
        forget_gradients = self._optimizers[0].zero_grad

        def compute(leaves: Tensors) -> torch.Tensor:
            value: torch.Tensor = forward_loss(**rebuild(leaves))
            if not isinstance(value, torch.Tensor) or value.ndim:
                require_number(value)
            return value

        def compute_alone(leaves: Tensors) -> torch.Tensor:
            # Before the forward pass: its activations may have the gradients' memory.
            forget_gradients(set_to_none=True)
            return compute(leaves)

        def train(leaves: Tensors) -> torch.Tensor:
            value = compute_alone(leaves)
            backward(value)
            update()
            return value.detach()

        halves: tuple[Step, Step] = compute_alone, train
        if settings.accumulate > 1:
            halves = self._in_parts(compute, backward, update, settings)
        first_half, whole = halves
        if settings.graph:
            return self._captured(whole)
        self._forward_loss = first_half
        return whole

    def _in_parts(
        self,
        compute: Step,
        backward: Callable[[torch.Tensor], None],
        update: Callable[[], None],
        settings: Settings,
    ) -> tuple[Step, Step]:
        """Return the forward pass and the step of a batch that is run in parts. The loss is the mean over all samples,
        and so are the gradients."""
        parts = BatchParts(settings.accumulate, self.layout.names, self._batch_size)
        forget_gradients = self._optimizers[0].zero_grad

        def compute_alone(leaves: Tensors) -> torch.Tensor:
            forget_gradients(set_to_none=True)
            return torch.stack([compute(part) * share for part, share in parts(leaves)]).sum()

        def train(leaves: Tensors) -> torch.Tensor:
            forget_gradients(set_to_none=True)
            losses = []
            for part, share in parts(leaves):
                value = compute(part) * share
                # At once: it frees what this part keeps before the next part is run.
                backward(value)
                losses.append(value.detach())
            update()
            return torch.stack(losses).sum()

        return compute_alone, train

    def _check_attention(self, settings: Settings) -> None:
        """Refuse a kernel that has nothing to compute here, or that does not take what there is."""
        if self.recipe.step is not None:
            self.notes = (*self.notes, OWN_ATTENTION)
            return
        inputs, autocast = self.layout.rebuild(self.feeder.ring[0])["inputs"], self._autocast(settings)

        def run(model: torch.nn.Module) -> None:
            with autocast():
                call(model, inputs)

        with attention_errors(settings, self._device.type):
            require_attention(self._model, run)

    def _with_settings(self, work: Step, settings: Settings) -> Step:
        """Return a step whose loss outlives the next step, and whose kernel for attention is refused in a sentence."""
        if captures_graphs(settings):
            work = _marked(work, copied=self._training)
            if self._forward_loss is not None:
                self._forward_loss = _marked(self._forward_loss, copied=False)
        if not settings.attention_kernel:
            return work

        def checked(leaves: Tensors) -> Any:
            with attention_errors(settings, self._device.type):
                return work(leaves)

        return checked

    def _own_step(
        self, recipe: Recipe, settings: Settings, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> Step:
        """The user's function does everything; settings reach it from outside where they can."""
        rebuild, step = self.layout.rebuild, recipe.step
        assert step is not None
        if settings.fused:
            raise UnsupportedError(f"--fused: {NOT_IN_OWN_STEP}", hint=MAKE_IT_FUSED)
        if settings.dtype is Dtype.FLOAT16:
            raise UnsupportedError(
                "--dtype float16 needs a gradient scaler around the backward pass, which is inside your own step.",
                hint="Use --dtype bfloat16, or scale inside the step.",
            )
        self._optimizers = [each for each in flatten(recipe.optimizer)[0] if isinstance(each, torch.optim.Optimizer)]
        if settings.compile:
            for module in flatten(recipe.model)[0]:
                # The step itself runs backward and updates; what can be compiled whole are its models.
                module.compile(dynamic=False, options=compile_options(settings))

        def train(leaves: Tensors) -> torch.Tensor:
            with autocast():
                value = total(step(**rebuild(leaves)))
            if not isinstance(value, torch.Tensor):
                value = torch.as_tensor(value, dtype=torch.float32, device=self._device)
            if value.ndim:
                require_number(value)
            return value.detach()

        return train

    def _updater(self, recipe: Recipe, settings: Settings) -> tuple[Callable[[torch.Tensor], None], Callable[[], None]]:
        """Return the backward pass and the update. float16 gradients underflow, so they are scaled there."""
        options: dict[str, bool] = {}
        if settings.fused:
            options["fused"] = True
        if settings.graph:
            options["capturable"] = True
        optimizer = make_optimizer(recipe.optimizer, self._trainable, options)
        self._optimizers = [optimizer]
        scheduled = self._scheduler(recipe, optimizer, settings)
        if settings.dtype is not Dtype.FLOAT16:

            def plain_backward(value: torch.Tensor) -> None:
                value.backward()

            def plain_update() -> None:
                optimizer.step()

            return plain_backward, _then(plain_update, scheduled)
        if settings.graph and not settings.fused:
            raise UnsupportedError(
                "--dtype float16 with --graph needs --fused: the plain optimiser asks the host at each step whether "
                "a gradient overflowed, which a graph can't.",
                hint="Add --fused, or use --dtype bfloat16.",
            )
        _require_scaler(self._device.type, settings)
        scaler = self._scaler = torch.amp.GradScaler(self._device.type)

        def scaled_backward(value: torch.Tensor) -> None:
            scaler.scale(value).backward()

        def scaled_update() -> None:
            scaler.step(optimizer)
            scaler.update()

        return scaled_backward, _then(scaled_update, scheduled)

    def _scheduler(
        self, recipe: Recipe, optimizer: torch.optim.Optimizer, settings: Settings
    ) -> Callable[[], None] | None:
        if recipe.schedule is None:
            return None
        if settings.graph:
            raise UnsupportedError(
                "--graph: the schedule sets the learning rate on the host in each step, and a captured step keeps the "
                "one it was captured with.",
                hint="Leave --graph or the schedule out.",
            )
        self._schedule = schedule = recipe.schedule(optimizer)

        def advance() -> None:
            schedule.step()
            self.steps_scheduled += 1

        return advance

    def _captured(self, work: Step, *, is_own: bool = False) -> Step:
        return captured(work, model=self._model, optimizers=self._optimizers, device=self._device, is_own=is_own)

    def _autocast(self, settings: Settings) -> Callable[[], AbstractContextManager[Any]]:
        dtype = AUTOCAST.get(settings.dtype)
        if dtype is None:
            return nullcontext
        # A graph owns its casts: cached ones would be freed behind its back.
        cache = not settings.graph
        return lambda: torch.autocast(self._device.type, dtype=dtype, cache_enabled=cache)

    def _weighted(self, backward: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        """Return a backward pass that counts this process's part of a batch by its samples."""
        return lambda value: backward(value * self._weight)


class TorchBackend:
    name = "torch"
    session = TorchSession

    def probe(self) -> Probe:
        versions = {"torch": str(torch.__version__)}
        if torch.version.cuda:
            versions["cuda"] = torch.version.cuda
            if torch.backends.cudnn.is_available():
                versions["cudnn"] = str(torch.backends.cudnn.version())
        return Probe(framework=self.name, versions=versions, devices=reports())

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[TorchSession]:
        _, kind = resolve(plan.device)
        device = device_of_rank(plan)
        FRAMEWORKS[self.name].check(plan.settings, kind.type, plan.loader)
        threads = threads_of(plan, kind.type)
        if threads is not None:
            torch.set_num_threads(threads)
        # cuDNN uses TensorFloat-32 unless told not to: float32 here means float32.
        tf32 = plan.settings.dtype is Dtype.TF32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = plan.settings.conv_search
        torch.manual_seed(plan.seed)
        with attention(plan.settings.attention_kernel):
            yield self.session(plan, workload, device, kind)

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        text = str(error)
        # Metal's words for a buffer that is larger than the GPU may have: "Invalid buffer size: 24.00 GiB".
        return any(sign in text for sign in ("out of memory", "can't allocate memory", "Invalid buffer size"))


def _then(update: Callable[[], None], advance: Callable[[], None] | None) -> Callable[[], None]:
    """Return an update after which the schedule goes on, where there is one."""
    if advance is None:
        return update

    def both() -> None:
        update()
        advance()

    return both


def _marked(work: Step, *, copied: bool) -> Step:
    """Return a step whose beginning is known to compiled code that captures CUDA graphs: the results of the one before
    lie in the graph's memory. `copied`: results are read many steps later, as the losses of a training are."""

    def step(leaves: Tensors) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return work(leaves).clone() if copied else work(leaves)

    return step


def _mover(device: torch.device, layout: torch.memory_format, *, wait: bool) -> Callable[[Any], torch.Tensor]:
    """Return a function that brings an array to the device."""
    on_host = device.type == "cpu"

    def move(array: Any) -> torch.Tensor:
        tensor = array if isinstance(array, torch.Tensor) else as_tensor(array)
        if tensor.ndim == 4:
            return tensor.to(device=device, non_blocking=not wait, memory_format=layout)
        return tensor if on_host else tensor.to(device=device, non_blocking=not wait)

    return move


def _cast_once(model: torch.nn.Module, dtype: torch.dtype | None) -> None:
    """Cast the weights that autocast would cast in every step: in inference they never change, nor do the results."""
    for module in model.modules() if dtype is not None else ():
        if isinstance(module, CAST_BY_AUTOCAST):
            module.to(dtype)


def _require_scaler(device_type: str, settings: Settings) -> None:
    """Refuse where PyTorch can't scale a float16 loss: on Metal before 2.8 its first step failed on float64."""
    if device_type != "mps":
        return
    major, minor = map(int, torch.__version__.split(".")[:2])
    if (major, minor) < (2, 8):
        raise UnsupportedError(
            f"--dtype float16 in training on torch, mps: PyTorch {torch.__version__} can't scale the loss there.",
            hint="PyTorch 2.8 and newer can; or use --dtype bfloat16 or float32.",
        )
    if settings.fused:
        raise UnsupportedError(
            "--dtype float16 with --fused on torch, mps: PyTorch's fused optimisers on Metal were seen to ignore the "
            "scale of the loss (pytorch#186360), so the update would be wrong.",
            hint="Leave --fused out, or use --dtype bfloat16.",
        )


BACKEND = TorchBackend()
