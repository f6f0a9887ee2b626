"""MLX's step, taken apart: its loss and its gradients, each evaluated as the session evaluates its step."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx import core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from metalmark.backends.mlx import MlxBackend, MlxSession
from metalmark.errors import UnsupportedError
from metalmark.explain.base import ExplainBackend
from metalmark.explain.batches import HostBatches
from metalmark.explain.dissected import OWN_STEP, DissectedAnatomy
from metalmark.feeds.leaves import Arrays
from metalmark.model.explanation import OperationWork, Profile
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.workload import Workload

NO_PROFILER = "MLX has no profiler of operations"
VIEWS = frozenset({
    "Broadcast", "Reshape", "Transpose", "Squeeze", "ExpandDims", "Flatten", "Unflatten", "AsStrided", "Slice", "Split",
    "StopGradient", "BroadcastAxes", "NumberOfElements", "View",
})  # fmt: skip
"""Operations that give another view of the same memory, as a rule."""
GATHERS = frozenset({"Gather", "GatherAxis"})
UPDATE_FLOPS = 12.0
"""Arithmetic operations for each element of a weight, in an optimiser such as Adam."""


class DissectedMlxSession(MlxSession):
    """A session that can do parts of its step too."""

    asynchronous = False
    """Each step ends with an evaluation, which waits for the device."""

    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        self._compile, self._seed = plan.settings.compile, plan.seed
        self._parts: dict[str, Callable[[Any], list[Any]]] = {}

    def forward(self) -> None:
        """Forward pass and loss; in inference that is the step. What nobody will need is not kept."""
        if self._training:
            self._run("forward", self._loss_part)
        else:
            self.step()

    def backward(self) -> None:
        self._run("backward", self._gradient_part)

    def place(self, arrays: Arrays) -> None:
        self._output = list(self.feeder.place(arrays))
        mx.eval(self._output)

    def primitives(self) -> list[dict[str, Any]]:
        """Return the operations of the step, without its update, as MLX lists them."""
        part = self._gradient_part() if self._training else self._work
        listed: list[dict[str, Any]] = []
        with self._state_kept():
            mx.export_function(listed.append, lambda *leaves: part(leaves), *self.feeder.ring[0])
        return [each for each in listed if each.get("type") == "primitive"]

    def update_work(self) -> tuple[OperationWork, ...]:
        """Return what the optimiser does: it reads gradients, and reads and writes weights and its own state."""
        if not self._training:
            return ()
        weights = [array for _, array in self._trainable()]
        slots = [array for each in self._optimizers for _, array in tree_flatten(each.state) if array.size > 1]
        moved_bytes = 3 * sum(array.nbytes for array in weights) + 2 * sum(array.nbytes for array in slots)
        flops = UPDATE_FLOPS * sum(array.size for array in weights)
        calls, moved = len(weights), float(moved_bytes)
        return (OperationWork(name="updates of weights", calls=calls, flops=flops, bytes=moved, part="optimizer"),)

    def _run(self, name: str, make: Callable[[], Callable[[Any], list[Any]]]) -> None:
        if name not in self._parts:
            part, state = make(), self._state
            self._parts[name] = mx.compile(part, inputs=state, outputs=state) if self._compile else part
        self._output = self._parts[name](self.feeder.take())
        mx.eval(self._output, self._state)

    def _loss_part(self) -> Callable[[Any], list[Any]]:
        compute_loss = self._differentiable()
        return lambda leaves: [compute_loss(leaves)]

    def _gradient_part(self) -> Callable[[Any], list[Any]]:
        loss_and_gradients = nn.value_and_grad(self.recipe.model, self._differentiable())

        def part(leaves: Any) -> list[Any]:
            loss, gradients = loss_and_gradients(leaves)
            return [loss, *(array for _, array in tree_flatten(gradients))]

        return part

    def _differentiable(self) -> Callable[[Any], Any]:
        if self._compute_loss is None:
            raise UnsupportedError(OWN_STEP)
        return self._compute_loss

    @contextmanager
    def _state_kept(self) -> Iterator[None]:
        """Put back what a traced step changes, running statistics and the random state: they would be placeholders."""
        kept = [tree_map(lambda array: array, model.parameters()) for model in self._models]
        try:
            yield
        finally:
            for model, parameters in zip(self._models, kept, strict=True):
                model.update(parameters)
            mx.random.seed(self._seed)


class MlxAnatomy(DissectedAnatomy[DissectedMlxSession]):
    def work(self) -> tuple[OperationWork, ...] | Absent:
        try:
            primitives = self._steps.primitives()
        except (TypeError, ValueError, AttributeError) as error:
            return Absent(reason=f"this MLX does not list the operations of a function: {error}")
        counted = _count(primitives)
        if not counted:
            return Absent(reason="this MLX does not list the operations of a function")
        return (*counted, *self._steps.update_work())

    def profile(self, steps: int) -> Profile | Absent:  # noqa: ARG002
        return Absent(reason=NO_PROFILER)

    def trace(self, path: Path, steps: int) -> None:  # noqa: ARG002
        raise UnsupportedError(
            f"{NO_PROFILER}, so there is no trace that Perfetto opens.",
            hint="On a Mac, mx.metal.start_capture in your script writes one for Xcode.",
        )


class MlxExplainer(MlxBackend):
    session = DissectedMlxSession

    def __init__(self) -> None:
        self.unchanging: dict[str, str] = {}

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[MlxAnatomy]:  # type: ignore[override]
        with super().open(plan, workload) as session:
            assert isinstance(session, DissectedMlxSession)
            with HostBatches(plan, workload, session.recipe) as batches:
                yield MlxAnatomy(session, batches)

    def free_memory(self) -> None:
        mx.clear_cache()

    def threads(self) -> int | None:
        return None

    def set_threads(self, count: int) -> None:  # noqa: ARG002
        raise UnsupportedError("MLX does not let its threads be chosen.")


def _count(primitives: list[dict[str, Any]]) -> tuple[OperationWork, ...]:
    """Add up what the operations have to do, from their shapes."""
    calls: dict[str, int] = defaultdict(int)
    flops: dict[str, float] = defaultdict(float)
    moved_bytes: dict[str, float] = defaultdict(float)
    for primitive in primitives:
        name, inputs, outputs = primitive["name"], primitive["inputs"], primitive["outputs"]
        if name in VIEWS or not outputs:
            continue
        calls[name] += 1
        flops[name] += _flops(name, [shape for _, shape, _ in inputs], [shape for _, shape, _ in outputs])
        # Of a table, only the rows that are asked for are read.
        moved = (*outputs, *outputs) if name in GATHERS else (*inputs, *outputs)
        moved_bytes[name] += sum(math.prod(shape) * dtype.size for _, shape, dtype in moved)
    return tuple(
        OperationWork(name=name, calls=calls[name], flops=flops[name], bytes=moved_bytes[name])
        for name in sorted(calls, key=lambda name: -moved_bytes[name])
    )


def _flops(name: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]]) -> float:
    """Return the arithmetic operations: two for each product and sum of a matrix product or convolution, one for each
    element of what anything else reads or computes."""
    made = math.prod(outputs[0])
    if name in ("Matmul", "AddMM"):
        return 2.0 * made * inputs[0][-1]
    if name == "Convolution":
        # The weights are (outputs, height, width, inputs): all but the first are summed over.
        return 2.0 * made * math.prod(inputs[1][1:])
    if name in GATHERS:
        return 0.0
    return float(max(made, *(math.prod(shape) for shape in inputs))) if inputs else float(made)


SIDE: ExplainBackend = MlxExplainer()
