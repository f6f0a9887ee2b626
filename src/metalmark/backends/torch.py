"""PyTorch, eager by default; autocast, Inductor, CUDA graphs, channels-last and fused optimisers by Settings."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from metalmark.backends.base import Placement, Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.session import fingerprint_of, make_feeder, require_images
from metalmark.backends.torch_devices import TorchDevice, reports, resolve
from metalmark.errors import UnsupportedError
from metalmark.feeds.on_torch import as_tensor, torch_loader
from metalmark.model.plan import Dtype, Mode, Plan, Settings
from metalmark.model.run import DeviceMemory
from metalmark.model.workload import Workload

Tensors = tuple[torch.Tensor, ...]
Work = Callable[..., Any]
Step = Callable[[Tensors, torch.Tensor], torch.Tensor]
GRAPH_WARMUP_STEPS = 3
CAST_BY_AUTOCAST = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
AUTOCAST = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16}


class TorchSession:
    def __init__(self, plan: Plan, workload: Workload, device: torch.device, kind: TorchDevice) -> None:
        self._device, self._kind = device, kind
        settings = plan.settings
        self._compiles = settings.compile
        self._training = training = plan.mode is Mode.TRAINING
        recipe = self.recipe = workload.recipe("torch", plan.params)
        layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        if settings.channels_last:
            require_images(parameter.ndim for parameter in recipe.model.parameters())
        self._model = recipe.model.to(device=device, memory_format=layout).train(training)
        self._trainable = [p for p in self._model.parameters() if p.requires_grad]
        # Only CUDA orders such copies with the work that reads them; on Metal they gave wrong data (pytorch#139550).
        wait = not (plan.loader is not None and plan.loader.pin and device.type == "cuda")
        move = _mover(device, layout, wait=wait)

        def place(arrays: Any) -> tuple[Tensors, torch.Tensor]:
            *inputs, targets = map(move, arrays)
            return tuple(inputs), targets

        self.feeder = make_feeder(plan, workload, recipe, place=place, loader=torch_loader)
        self._output: torch.Tensor | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._scaler: torch.amp.GradScaler | None = None
        self.placement = Placement(device=str(self._trainable[0].device), name=kind.name(device.index or 0))
        self.parameters = sum(p.numel() for p in self._model.parameters())
        self.trainable_parameters = sum(p.numel() for p in self._trainable)
        self.notes: tuple[str, ...] = ()
        self._work = self._make_work(recipe.loss, recipe.optimizer, settings, training)
        kind.reset_peak(device)

    def step(self) -> None:
        inputs, targets = self.feeder.take()
        self._output = self._work(inputs, targets)

    def settle(self) -> None:
        if self._compiles:
            _end_helpers()

    def synchronize(self) -> None:
        self._kind.synchronize(self._device)

    def proof(self) -> float:
        assert self._output is not None
        output = self._output.detach().float()
        return float((output if self._training else output.square()).mean().cpu())

    def fingerprint(self) -> tuple[float, ...]:
        return fingerprint_of(p.detach().float().cpu().numpy() for p in self._trainable)

    def memory(self) -> DeviceMemory:
        return self._kind.memory(self._device)

    def _make_work(
        self, loss: Callable[..., Any], optimizer: Callable[..., Any], settings: Settings, training: bool
    ) -> Step:
        autocast = self._autocast(settings)
        model = self._model

        if not training:
            _cast_once(model, AUTOCAST.get(settings.dtype))

            def infer(inputs: Tensors) -> torch.Tensor:
                with autocast():
                    return logits_of(model(*inputs))

            forward = _frozen(infer, settings) if settings.compile else infer
            guard: Callable[..., Any] = torch.inference_mode if not settings.compile else torch.no_grad
            work = guard()(lambda inputs, _: forward(inputs))
            return self._captured(work) if settings.graph else work

        def compute_loss(inputs: Tensors, targets: torch.Tensor) -> torch.Tensor:
            with autocast():
                return loss(logits_of(model(*inputs)), targets)

        forward_loss = _compiled(compute_loss, settings) if settings.compile else compute_loss
        update = self._updater(optimizer, settings)
        assert self._optimizer is not None
        forget_gradients = self._optimizer.zero_grad

        def train(inputs: Tensors, targets: torch.Tensor) -> torch.Tensor:
            # Before the forward pass: its activations may have the gradients' memory.
            forget_gradients(set_to_none=True)
            value = forward_loss(inputs, targets)
            update(value)
            return value.detach()

        return self._captured(train) if settings.graph else train

    def _updater(self, make: Callable[..., Any], settings: Settings) -> Callable[[torch.Tensor], None]:
        """Backward and update. float16 gradients underflow, so they are scaled there."""
        options: dict[str, bool] = {}
        if settings.fused:
            options["fused"] = True
        if settings.graph:
            options["capturable"] = True
        try:
            optimizer = self._optimizer = make(self._trainable, **options)
        except (TypeError, RuntimeError, ValueError) as error:
            if not options:
                raise
            raise UnsupportedError(f"The optimiser refuses {', '.join(options)}: {error}") from error
        if settings.dtype is not Dtype.FLOAT16:

            def plain(value: torch.Tensor) -> None:
                value.backward()
                optimizer.step()

            return plain
        if settings.graph and not settings.fused:
            raise UnsupportedError(
                "--dtype float16 with --graph needs --fused: the plain optimiser asks the host at each step whether "
                "a gradient overflowed, which a graph can't.",
                hint="Add --fused, or use --dtype bfloat16.",
            )
        _require_scaler(self._device.type, settings)
        scaler = self._scaler = torch.amp.GradScaler(self._device.type)

        def scaled(value: torch.Tensor) -> None:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()

        return scaled

    def _autocast(self, settings: Settings) -> Callable[[], AbstractContextManager[Any]]:
        dtype = AUTOCAST.get(settings.dtype)
        if dtype is None:
            return nullcontext
        # A graph owns its casts: cached ones would be freed behind its back.
        cache = not settings.graph
        return lambda: torch.autocast(self._device.type, dtype=dtype, cache_enabled=cache)

    def _captured(self, work: Step) -> Step:
        """The whole step as one CUDA graph. It is captured at the first call, so that the first step's time and the
        peak of memory have the capture in them."""
        replay: Step | None = None

        def step(inputs: Tensors, targets: torch.Tensor) -> torch.Tensor:
            nonlocal replay
            if replay is None:
                replay = self._capture(work, inputs, targets)
            return replay(inputs, targets)

        return step

    def _capture(self, work: Step, inputs: Tensors, targets: torch.Tensor) -> Step:
        """Return a step that copies each batch, of the same shapes, into the graph's own buffers and replays it."""
        held = tuple(tensor.clone() for tensor in inputs), targets.clone()
        before = {name: value.clone() for name, value in self._model.state_dict().items()}
        rates = _rates(self._optimizer)
        first_rates = [rate.clone() for rate in rates]
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(GRAPH_WARMUP_STEPS):
                work(*held)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = work(*held)
        # The warm-up trained a little; begin where every other session begins, so that the proof starts there.
        self._model.load_state_dict(before)
        if self._optimizer is not None:
            _forget(self._optimizer)
        for rate, first in zip(rates, first_rates, strict=True):
            rate.copy_(first)

        def replay(inputs: Tensors, targets: torch.Tensor) -> torch.Tensor:
            for mine, given in zip(held[0], inputs, strict=True):
                mine.copy_(given, non_blocking=True)
            held[1].copy_(targets, non_blocking=True)
            graph.replay()
            return output

        return replay


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
        device, kind = resolve(plan.device)
        FRAMEWORKS[self.name].check(plan.settings, kind.type, plan.loader)
        if plan.settings.threads is not None:
            torch.set_num_threads(plan.settings.threads)
        # cuDNN uses TensorFloat-32 unless told not to: float32 here means float32.
        tf32 = plan.settings.dtype is Dtype.TF32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        torch.manual_seed(plan.seed)
        yield self.session(plan, workload, device, kind)

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        text = str(error)
        # Metal's words for a buffer that is larger than the GPU may have: "Invalid buffer size: 24.00 GiB".
        return any(sign in text for sign in ("out of memory", "can't allocate memory", "Invalid buffer size"))


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


def _rates(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Return the learning rates that live on the device, as a schedule inside a graph needs them."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [group["lr"] for group in groups if isinstance(group["lr"], torch.Tensor)]


def _forget(optimizer: torch.optim.Optimizer) -> None:
    """Reset its state, in place since the graph uses these tensors: in PyTorch all but one begin at 0."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                value.fill_(1.0 if name == "mu_product" else 0.0)


def logits_of(output: Any) -> torch.Tensor:
    """Return the logits: models of transformers return an object that has them."""
    return output if isinstance(output, torch.Tensor) else output.logits


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


def _compiled(work: Work, settings: Settings) -> Work:
    """Compile for these shapes only, since a session's never change and code for any shape would be slower.

    --channels-last decides the layout: left to itself, Inductor turns convolutions to channels-last, which small images
    are slower in.
    """
    options: dict[str, str | int | bool | Callable[..., Any]] = {"layout_optimization": settings.channels_last}
    made: Work = torch.compile(work, dynamic=False, options=options)
    return made


def _frozen(work: Work, settings: Settings) -> Work:
    """Compile for weights that never change: products of the same input become one, with their weights joined."""
    import torch._inductor.config as inductor

    inductor.freezing = True  # asked whenever something is compiled; as an option of torch.compile it has no effect
    return _compiled(work, settings)


def _end_helpers() -> None:
    """End Inductor's helper processes. Where compiled code came from a cache they were seen to go on starting for ten
    seconds, a core busy and memory growing beside the steps that were timed."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


BACKEND = TorchBackend()
