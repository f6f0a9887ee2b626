"""PyTorch's side of a check: the trainer that `train` uses, with hooks on its layers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from metalmark.backends.outputs import call, scores
from metalmark.backends.torch import AUTOCAST
from metalmark.backends.torch_capture import forget_steps
from metalmark.backends.torch_compiler import compiled_work
from metalmark.backends.torch_devices import TorchDevice
from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import flatten, map_leaves
from metalmark.model.plan import Dtype, Mode, Plan
from metalmark.model.workload import Params, Recipe, Workload
from metalmark.parity.base import Dropped, Named, See, Slot, leaves_with_names, opened, what_dropped
from metalmark.parity.conventions import follow_adam
from metalmark.parity.variations import is_spread_out
from metalmark.training.torch import TorchTrainer, TorchTraining

Dropout = torch.nn.modules.dropout._DropoutNd
GROUP_NUMBERS = (int, float)


class TorchSubject(TorchTrainer):
    double = False

    def __init__(self, plan: Plan, workload: Workload, device: torch.device, kind: TorchDevice) -> None:
        super().__init__(plan, workload, device, kind)
        self._settings, self._mode = plan.settings, plan.mode
        if self.double:
            self._model.double()
            place = self.feeder.place
            self.feeder.place = lambda arrays: tuple(map(_as_double, place(arrays)))
        place_batch = self.feeder.place
        self.feeder.place = lambda arrays: tuple(map(_as_given, place_batch(arrays), arrays))
        self._dropouts = [
            (name, module, module.p) for name, module in self._model.named_modules() if isinstance(module, Dropout)
        ]
        self._first_buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        self._first_groups = [
            [{key: _number(value) for key, value in group.items() if _is_plain(value)} for group in each.param_groups]
            for each in self._optimizers
        ]
        self._predictor: Callable[[Any], Any] | None = None
        self.set_dropout(False)

    def slots(self) -> tuple[Slot, ...]:
        parameters = [
            Slot(name=name, shape=tuple(parameter.shape), trainable=parameter.requires_grad)
            for name, parameter in self._model.named_parameters()
        ]
        statistics = [
            Slot(name=name, shape=tuple(buffer.shape), statistic=True, trainable=False)
            for name, buffer in self._model.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        ]
        return (*parameters, *statistics)

    def values(self) -> Named:
        return {slot.name: _numpy(tensor) for slot, tensor in self._held()}

    def load(self, values: Named) -> None:
        missing = [slot.name for slot, _ in self._held() if slot.name not in values]
        if missing:
            raise UnsupportedError(
                f"This side's network has a parameter {missing[0]} that the reference's has not.",
                hint="Both sides must build the same network; a device may have separated weights that are shared.",
            )
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._first_buffers[name])
            for slot, tensor in self._held():
                tensor.copy_(torch.from_numpy(np.ascontiguousarray(values[slot.name])).to(tensor.device, tensor.dtype))
        for optimizer, groups in zip(self._optimizers, self._first_groups, strict=True):
            if self._settings.graph:
                forget_steps(optimizer)  # in place: the graph uses these tensors
            else:
                optimizer.state.clear()
            for group, first in zip(optimizer.param_groups, groups, strict=True):
                for key, value in first.items():
                    if isinstance(group[key], torch.Tensor):
                        group[key].fill_(value)
                    else:
                        group[key] = value
        if self._schedule is not None:
            self._begin_schedule()
        if self._scaler is not None:
            self._scaler.load_state_dict(torch.amp.GradScaler(self._device.type).state_dict())
        self._model.train(self._mode is Mode.TRAINING)

    def follow(self, framework: str) -> None:
        follow_adam(self._optimizers, framework)

    def set_dropout(self, on: bool) -> None:
        for _, module, rate in self._dropouts:
            module.p = rate if on else 0.0

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def layers(self, arrays: Arrays, *, training: bool, see: See) -> None:
        def hook(name: str) -> Callable[..., None]:
            def seen(_module: object, _inputs: object, output: Any) -> None:
                leaves, layout = flatten(output)
                for each, leaf in leaves_with_names(name, leaves, layout.names):
                    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                        see(each, _numpy(leaf))

            return seen

        with self._hooked(lambda module: not any(module.children()), hook):
            self._forward(arrays, training=training)

    def dropped(self, arrays: Arrays) -> list[Dropped]:
        found: list[Dropped] = []
        rates = {name: rate for name, _, rate in self._dropouts}

        def hook(name: str) -> Callable[..., None]:
            def seen(_module: object, inputs: Any, output: torch.Tensor) -> None:
                found.append(what_dropped(name, rates[name], _numpy(inputs[0]), _numpy(output)))

            return seen

        self.set_dropout(True)
        try:
            with self._hooked(lambda module: isinstance(module, Dropout), hook):
                self._forward(arrays, training=True)
        finally:
            self.set_dropout(False)
        return [each for each in found if each.elements]

    def predict(self, arrays: Arrays) -> list[tuple[str, np.ndarray]]:
        placed = self.feeder.place(arrays)
        if self._mode is Mode.INFERENCE:
            outputs = self._work(placed)
        else:
            self._model.eval()
            try:
                with torch.no_grad():
                    outputs = self._evaluator()(self.layout.rebuild(placed)["inputs"])
            finally:
                self._model.train()
        leaves, layout = flatten(outputs)
        named = leaves_with_names("", leaves, layout.names)
        return [
            (name, _numpy(leaf)) for name, leaf in named if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        ]

    def loss_and_gradients(self, arrays: Arrays) -> tuple[float, Named]:
        scale = self._scaler.get_scale() if self._scaler is not None and self._settings.fused else 1.0
        (loss,) = self.read([self.train_batch(arrays)])
        if self.recipe.step is not None:
            return loss, {}
        return loss, {
            name: _numpy(parameter.grad) / scale
            for name, parameter in zip(self._names, self._trainable, strict=True)
            if parameter.grad is not None
        }

    def apply(self, gradients: Named) -> None:
        for name, parameter in zip(self._names, self._trainable, strict=True):
            given = torch.from_numpy(np.array(gradients[name])) if name in gradients else torch.zeros(parameter.shape)
            gradient = given.to(parameter.device, parameter.dtype)
            if parameter.is_contiguous(memory_format=torch.channels_last) and parameter.ndim == 4:
                gradient = gradient.contiguous(memory_format=torch.channels_last)
            parameter.grad = gradient
        self._optimizers[0].step()

    def _held(self) -> Iterator[tuple[Slot, torch.Tensor]]:
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        return ((slot, tensors[slot.name]) for slot in self.slots())

    def _forward(self, arrays: Arrays, *, training: bool) -> None:
        inputs = self.layout.rebuild(self.feeder.place(arrays))["inputs"]
        self._model.train(training)
        try:
            with torch.no_grad(), self._cast():
                call(self._model, inputs)
        finally:
            self._model.train(self._mode is Mode.TRAINING)

    def _evaluator(self) -> Callable[[Any], Any]:
        if self._predictor is None:

            def infer(inputs: Any) -> Any:
                with self._cast():
                    return scores(call(self._model, inputs))

            self._predictor = compiled_work(infer, self._settings) if self._settings.compile else infer
        return self._predictor

    def _begin_schedule(self) -> None:
        """Bring the learning-rate schedule back to its first step."""
        if not hasattr(self._schedule, "last_epoch"):
            raise UnsupportedError(
                f"The schedule {type(self._schedule).__name__} can't be taken back to its first step.",
                hint="Check the network without its schedule.",
            )
        self._schedule.last_epoch = 0
        self._schedule._step_count = 1
        self.steps_scheduled = 0

    @contextmanager
    def _hooked(
        self, wanted: Callable[[torch.nn.Module], bool], hook: Callable[[str], Callable[..., None]]
    ) -> Iterator[None]:
        handles = [
            module.register_forward_hook(hook(name)) for name, module in self._model.named_modules() if wanted(module)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class DoubleTorchSubject(TorchSubject):
    double = True


class TorchSide(TorchTraining):
    def open(self, plan: Plan, workload: Workload, *, double: bool = False) -> AbstractContextManager[TorchSubject]:  # type: ignore[override]
        return opened(TorchTraining(), DoubleTorchSubject if double else TorchSubject, plan, workload)

    def with_low_loss(self, workload: Workload, dtype: Dtype) -> Workload:
        """Of a cross entropy under autocast, the CPU computes all in float32, and CUDA its log-softmax in the outputs'
        dtype: `cross_entropy_loss` is in the CPU's list of operations that are kept in float32, and not in CUDA's."""

        def build(params: Params) -> Recipe:
            recipe = workload.recipe("torch", params)
            if recipe.loss is None or recipe.step is not None:
                return recipe
            return replace(recipe, loss=LowLoss(recipe.loss, AUTOCAST[dtype]))

        return replace(workload, build={**workload.build, "torch": build})

    @contextmanager
    def fewer_threads(self) -> Iterator[bool]:
        before = torch.get_num_threads()
        if before == 1:
            yield False
            return
        torch.set_num_threads(before // 2)
        try:
            yield True
        finally:
            torch.set_num_threads(before)


class LowLoss:
    """A loss that is computed in the dtype of the network's outputs."""

    def __init__(self, loss: Callable[[Any, Any], torch.Tensor], dtype: torch.dtype) -> None:
        self._loss, self._dtype = loss, dtype

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        lowered = map_leaves(self._lowered, outputs)
        try:
            with torch.autocast(flatten(outputs)[0][0].device.type, enabled=False):
                return self._loss(lowered, targets).float()
        except (NotImplementedError, RuntimeError):  # not every loss has kernels of this dtype on every device
            return self._loss(outputs, targets)

    def _lowered(self, leaf: Any) -> Any:
        return leaf.to(self._dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _as_given(placed: torch.Tensor, array: Any) -> torch.Tensor:
    """Return what lies on the device, as a view of every second element of a larger tensor where the array is one:
    the way to a device makes every array contiguous."""
    if not isinstance(array, np.ndarray) or not array.ndim or not placed.is_contiguous() or not is_spread_out(array):
        return placed
    larger = placed.new_zeros((*placed.shape[:-1], 2 * placed.shape[-1]))
    view = larger[..., ::2]
    view.copy_(placed)
    return view


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _is_plain(value: object) -> bool:
    return isinstance(value, (*GROUP_NUMBERS, torch.Tensor)) and not isinstance(value, bool)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, torch.Tensor) else value


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    # NumPy has no bfloat16; float32 holds each of its values. A copy: the next step writes to this memory.
    held = tensor.detach()
    held = held if held.dtype in (torch.float32, torch.float64) else held.float()
    return np.array(held.cpu().numpy())


SIDE = TorchSide()
