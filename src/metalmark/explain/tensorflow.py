"""TensorFlow's step, taken apart: its loss and its gradients as graphs beside the session's own."""

import gzip
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import tensorflow as tf

from metalmark.backends.tensorflow import TensorflowBackend, TensorflowSession
from metalmark.errors import UnsupportedError
from metalmark.explain.base import ExplainBackend
from metalmark.explain.batches import HostBatches
from metalmark.explain.dissected import OWN_STEP, DissectedAnatomy
from metalmark.explain.keras_common import ProfiledEvent, policy_restored, summarise, threads_are_fixed
from metalmark.feeds.leaves import Arrays
from metalmark.model.explanation import OperationWork, Profile
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.workload import Workload

FORMATS = ("tensorflow.tsl.profiler.protobuf.xplane_pb2", "tensorflow.core.profiler.protobuf.xplane_pb2")
"""Where versions of TensorFlow have the format that their profiler writes."""
UNREADABLE = "this TensorFlow has no reader for the profiles that it writes"
FREE = frozenset({
    "Const", "Placeholder", "Identity", "IdentityN", "NoOp", "Reshape", "ReadVariableOp", "Shape", "ShapeN", "Squeeze",
    "ExpandDims", "StopGradient", "PreventGradient", "BroadcastGradientArgs", "VarHandleOp", "Rank", "Size",
    "Assert", "Switch", "Merge",
})  # fmt: skip
"""Operations that move nothing: names, shapes, and other views of the same memory."""
LOOPS = frozenset({"While", "StatelessWhile"})
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
GATHERS = frozenset({"GatherV2", "GatherNd", "ResourceGather"})
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


Kind = tuple[str, str]
"""The part of the step that operations belong to, and what they do."""


class DissectedTensorflowSession(TensorflowSession):
    """A session that can do parts of its step too."""

    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        self._compile = plan.settings.compile
        self._parts: dict[str, Any] = {}
        self._pending: list[Any] = []
        """What a part has computed, and no output waits for."""
        self._first_elements = tf.function(_sum_of_first_elements)

    @property
    def asynchronous(self) -> bool:
        return not self.placement.device.startswith("CPU")

    def forward(self) -> None:
        """Forward pass and loss; in inference that is the step. A graph keeps nothing for a backward pass that it does
        not have."""
        if self._training:
            self._run("forward", self._loss_part)
        else:
            self.step()

    def backward(self) -> None:
        self._run("backward", self._gradient_part)

    def place(self, arrays: Arrays) -> None:
        self._pending = list(self.feeder.place(arrays))

    def synchronize(self) -> None:
        if self._pending and self.asynchronous:
            self._first_elements(*self._pending).numpy()
        self._pending = []
        super().synchronize()

    def graph(self) -> Any:
        """Return the graph of the whole step."""
        traced: Any = self._work
        return traced.get_concrete_function(*self.feeder.ring[0]).graph

    @property
    def optimizer_scopes(self) -> tuple[str, ...]:
        """How the names of the optimisers' operations begin."""
        return tuple(f"{optimizer.name}/" for optimizer in self._optimizers)

    def _run(self, name: str, make: Callable[[Callable[[Any], Any]], Callable[..., Any]]) -> None:
        if name not in self._parts:
            if self._compute_loss is None:
                raise UnsupportedError(OWN_STEP)
            self._parts[name] = tf.function(make(self._compute_loss), jit_compile=self._compile)
        self._pending = self._parts[name](*self.feeder.take())

    def _loss_part(self, compute_loss: Callable[[Any], Any]) -> Callable[..., Any]:
        def part(*leaves: Any) -> Any:
            return [compute_loss(leaves)]

        return part

    def _gradient_part(self, compute_loss: Callable[[Any], Any]) -> Callable[..., Any]:
        (optimizer,) = self._optimizers

        def part(*leaves: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = compute_loss(leaves)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self._trainable)
            # What is not a result is left out of the graph. Gradients of embeddings are given as the rows used.
            return [loss, *tf.nest.flatten(gradients, expand_composites=True)]

        return part


def _sum_of_first_elements(*arrays: Any) -> Any:
    """Needs every array, so its value on the host is proof that all of them are there."""
    return tf.add_n([tf.cast(tf.reshape(array, [-1])[0], tf.float32) for array in arrays if array is not None])


class TensorflowAnatomy(DissectedAnatomy[DissectedTensorflowSession]):
    def work(self) -> tuple[OperationWork, ...] | Absent:
        return GraphWork(self._steps.optimizer_scopes).count(self._steps.graph())

    def profile(self, steps: int) -> Profile | Absent:
        space = self._profiled(steps)
        if space is None:
            return Absent(reason=UNREADABLE)
        found = summarise(_operations(space), steps, "tf.profiler")
        return found or Absent(reason="TensorFlow's profile names no operation: XLA ran the step as one")

    def trace(self, path: Path, steps: int) -> None:
        space = self._profiled(steps)
        if space is None:
            raise UnsupportedError(
                f"There is no trace: {UNREADABLE}.",
                hint="Write one in your script with tf.profiler.experimental, and open it in TensorBoard.",
            )
        text = json.dumps({"traceEvents": list(_trace_events(space)), "displayTimeUnit": "ms"}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)

    def _profiled(self, steps: int) -> Any | None:
        """Return the profile of some steps; None where this TensorFlow can't read what it writes."""
        format_ = next((found for name in FORMATS if (found := _module(name)) is not None), None)
        if format_ is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            self.session.synchronize()
            tf.profiler.experimental.start(folder)
            try:
                for _ in range(steps):
                    self.session.step()
                self.session.synchronize()
            finally:
                tf.profiler.experimental.stop()
            found = next(Path(folder).rglob("*.xplane.pb"), None)
            if found is None:
                return None
            space = format_.XSpace()
            space.ParseFromString(found.read_bytes())
        return space


class TensorflowExplainer(TensorflowBackend):
    session = DissectedTensorflowSession

    def __init__(self) -> None:
        self.unchanging: dict[str, str] = {}

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[TensorflowAnatomy]:  # type: ignore[override]
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        try:
            with policy_restored(), super().open(plan, workload) as session:
                assert isinstance(session, DissectedTensorflowSession)
                with HostBatches(plan, workload, session.recipe) as batches:
                    yield TensorflowAnatomy(session, batches)
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(tf32)

    def free_memory(self) -> None:
        """TensorFlow keeps what it has reserved, and uses it again."""

    def threads(self) -> int | None:
        return tf.config.threading.get_intra_op_parallelism_threads() or None

    def set_threads(self, count: int) -> None:  # noqa: ARG002
        raise threads_are_fixed("TensorFlow")


class GraphWork:
    """Counts what the operations of a graph have to do, from their shapes."""

    def __init__(self, optimizer_scopes: tuple[str, ...]) -> None:
        self._scopes = optimizer_scopes
        self._calls: dict[Kind, int] = defaultdict(int)
        self._flops: dict[Kind, float] = defaultdict(float)
        self._bytes: dict[Kind, float] = defaultdict(float)

    def count(self, graph: Any) -> tuple[OperationWork, ...] | Absent:
        why_not = self._add(graph, graph)
        if why_not:
            return Absent(reason=why_not)
        return tuple(
            OperationWork(
                name=kind[1], part=kind[0], calls=self._calls[kind], flops=self._flops[kind], bytes=self._bytes[kind]
            )
            for kind in sorted(self._calls, key=lambda kind: -self._bytes[kind])
        )

    def _add(self, graph: Any, root: Any) -> str:
        """Add the operations of a graph and of those that it calls; return why they can't be counted, or nothing."""
        for operation in graph.get_operations():
            kind = operation.type
            if kind in LOOPS:
                return "the step has a loop, and its graph does not say how often it goes round"
            if kind in CALLS:
                inner = root._functions.get(operation.get_attr("f").name)
                called = getattr(inner, "graph", None)
                if called is None:
                    return f"the graph of {operation.get_attr('f').name} can't be looked into"
                if why_not := self._add(called, root):
                    return why_not
                continue
            if kind in FREE or kind in BRANCHES:
                continue
            # Of a table, only the rows that are asked for are read.
            read = operation.outputs if kind in GATHERS else operation.inputs
            moved = sum(map(_bytes, (*read, *operation.outputs)))
            if kind in ASSIGNMENTS:
                # The variable itself is named, not given: it is written, and before that read unless it is replaced.
                moved += _bytes(operation.inputs[1]) * (1 if kind == "AssignVariableOp" else 2)
            key = "optimizer" if operation.name.startswith(self._scopes) else "", kind
            self._calls[key] += 1
            self._flops[key] += _flops(operation)
            self._bytes[key] += moved
        return ""


def _elements(tensor: Any) -> int:
    """Return the number of elements; 0 for what is not an array, or has a shape that only a run knows (of indices, as
    a rule)."""
    return 0 if tensor.dtype in (tf.resource, tf.variant, tf.string) else int(tensor.shape.num_elements() or 0)


def _bytes(tensor: Any) -> int:
    return count * int(tensor.dtype.size) if (count := _elements(tensor)) else 0


def _shape(tensor: Any) -> list[int]:
    return [int(size or 1) for size in tensor.shape.as_list()]


def _flops(operation: Any) -> float:
    """Return the arithmetic operations: two for each product and sum of a matrix product or convolution, one for each
    element of what anything else computes."""
    kind, inputs, outputs = operation.type, operation.inputs, operation.outputs
    if kind == "MatMul":
        return 2.0 * _elements(outputs[0]) * _shape(inputs[0])[0 if operation.get_attr("transpose_a") else 1]
    if kind in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return 2.0 * _elements(outputs[0]) * _shape(inputs[0])[-2 if operation.get_attr("adj_x") else -1]
    if kind in ("Conv2D", "_FusedConv2D"):
        return 2.0 * _elements(outputs[0]) * math.prod(_shape(inputs[1])[:3])
    if kind == "Conv2DBackpropInput":
        return 2.0 * _elements(inputs[2]) * math.prod(_shape(inputs[1])[:3])
    if kind == "Conv2DBackpropFilter":
        return 2.0 * _elements(inputs[2]) * math.prod(_shape(outputs[0])[:3])
    if kind == "DepthwiseConv2dNative":
        return 2.0 * _elements(outputs[0]) * math.prod(_shape(inputs[1])[:2])
    if kind == "DepthwiseConv2dNativeBackpropInput":
        return 2.0 * _elements(inputs[2]) * math.prod(_shape(inputs[1])[:2])
    if kind == "DepthwiseConv2dNativeBackpropFilter":
        return 2.0 * _elements(inputs[2]) * math.prod(_shape(outputs[0])[:2])
    if kind == "Einsum":
        return _einsum_flops(operation)
    if kind in GATHERS:
        return 0.0
    if kind in ASSIGNMENTS:
        return float(_elements(inputs[1])) if kind != "AssignVariableOp" else 0.0
    return float(sum(_elements(output) for output in outputs))


def _einsum_flops(operation: Any) -> float:
    """Two for each combination of all its indices."""
    given, _, _ = operation.get_attr("equation").decode().partition("->")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(given.split(","), operation.inputs, strict=True):
        shape = _shape(tensor)
        if "." in letters:
            start, _, end = letters.partition("...")
            middle = shape[len(start) : len(shape) - len(end)]
            sizes |= {f"...{number}": size for number, size in enumerate(reversed(middle))}
            shape, letters = shape[: len(start)] + shape[len(shape) - len(end) :], start + end
        sizes |= dict(zip(letters, shape, strict=True))
    return 2.0 * math.prod(sizes.values())


def _module(name: str) -> Any | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _operations(space: Any) -> Iterator[ProfiledEvent]:
    """Give the executions of operations: a device's own, where it has a plane of them, else those of the CPU."""
    devices = [plane for plane in space.planes if plane.name.startswith("/device:")]
    host = [plane for plane in space.planes if plane.name.startswith("/host:CPU")]
    for plane in devices or host:
        kinds = {number: metadata.name for number, metadata in plane.event_metadata.items()}
        stats = {number: metadata.name for number, metadata in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = kinds.get(event.metadata_id, "")
                if not devices:
                    if not _is_operation(name):
                        continue
                    # "gradient/dense/MatMul:MatMul" is an operation's name and its kind.
                    name = name.rpartition(":")[2]
                    if name.startswith("__inference_"):
                        name = "the compiled step"
                elif not any(stats.get(stat.metadata_id) in ("tf_op", "hlo_op", "name") for stat in event.stats):
                    continue
                yield ProfiledEvent(name, event.duration_ps / 1e12)


def _is_operation(name: str) -> bool:
    where, colon, kind = name.rpartition(":")
    return bool(colon and where and kind.isidentifier() and "::" not in name and " " not in name)


def _trace_events(space: Any) -> Iterator[dict[str, Any]]:
    """Give the profile as events of Chrome's trace format: a plane is a process, a line one of its threads."""
    for process, plane in enumerate(space.planes):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": line.name}}
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                begin_us = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                yield {
                    "ph": "X", "pid": process, "tid": thread, "name": name, "ts": begin_us,
                    "dur": event.duration_ps / 1e6,
                }  # fmt: skip


SIDE: ExplainBackend = TensorflowExplainer()
