"""JAX's step, taken apart: its loss and its gradients as jitted functions beside the session's own."""

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from metalmark.backends.jax import JaxBackend, JaxSession
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

Part = Callable[[Any, Any, Any], tuple[Any, Any]]
"""part(ticket, state, leaves) -> (ticket, what it computed)"""
NOT_COUNTED = Absent(reason="XLA does not count the work of this compiled step")


class StepCost(NamedTuple):
    """What XLA counts in a compiled function."""

    flops: float
    bytes: float


class DissectedJaxSession(JaxSession):
    """A session that can do parts of its step too."""

    def __init__(self, plan: Plan, workload: Workload, device: Any | None) -> None:
        super().__init__(plan, workload, device)
        self._parts: dict[str, Any] = {}
        # As in the session's inference: calls that share no result may overlap, and the ticket makes a queue of them.
        self._ticket = jax.device_put(jnp.zeros((), jnp.int32), device)

    @property
    def asynchronous(self) -> bool:
        return bool(self._device.platform != "cpu")

    def forward(self) -> None:
        """Forward pass and loss; in inference that is the step."""
        if self._training:
            self._run("forward", self._loss_part)
        else:
            self.step()

    def backward(self) -> None:
        self._run("backward", self._gradient_part)

    def place(self, arrays: Arrays) -> None:
        self._output = self.feeder.place(arrays)

    def costs(self) -> tuple[StepCost, StepCost]:
        """Return what XLA counts for the step, and for its update alone. Both are compiled again, since what runs does
        not say what it costs."""
        leaves = self.feeder.ring[0]
        whole = _cost(self._work.lower(self._state, self._fixed, leaves).compile())
        if self._compute_loss is None:
            return whole, StepCost(0.0, 0.0)
        part = jax.jit(self._gradient_part(self._compute_loss))
        rest = _cost(part.lower(self._ticket, self._state, leaves).compile())
        return whole, StepCost(max(0.0, whole.flops - rest.flops), max(0.0, whole.bytes - rest.bytes))

    def _run(self, name: str, make: Callable[[Callable[..., Any]], Part]) -> None:
        if name not in self._parts:
            if self._compute_loss is None:
                raise UnsupportedError(OWN_STEP)
            self._parts[name] = jax.jit(make(self._compute_loss))
        self._ticket, self._output = self._parts[name](self._ticket, self._state, self.feeder.take())

    def _loss_part(self, compute_loss: Callable[..., Any]) -> Part:
        def part(ticket: Any, state: Any, leaves: Any) -> tuple[Any, Any]:
            trainable, others, slots = state

            def loss_of(weights: Any) -> Any:
                return compute_loss(weights, others, slots, leaves)

            loss, backward, _ = jax.vjp(loss_of, trainable, has_aux=True)
            # What the backward pass needs is kept by being a result.
            return ticket + 1, (loss, jax.tree.leaves(backward))

        return part

    def _gradient_part(self, compute_loss: Callable[..., Any]) -> Part:
        gradients_of = jax.value_and_grad(compute_loss, has_aux=True)

        def part(ticket: Any, state: Any, leaves: Any) -> tuple[Any, Any]:
            trainable, others, slots = state
            (loss, _), gradients = gradients_of(trainable, others, slots, leaves)
            return ticket + 1, (loss, gradients)

        return part


class JaxAnatomy(DissectedAnatomy[DissectedJaxSession]):
    def work(self) -> tuple[OperationWork, ...] | Absent:
        whole, update = self._steps.costs()
        if not whole.flops > 0 or not whole.bytes > 0:
            return NOT_COUNTED
        flops, moved = whole.flops - update.flops, whole.bytes - update.bytes
        work = OperationWork(name="the compiled step", calls=1, flops=flops, bytes=moved)
        if not update.bytes:
            return (work,)
        name = "the compiled update"
        return work, OperationWork(name=name, calls=1, flops=update.flops, bytes=update.bytes, part="optimizer")

    def profile(self, steps: int) -> Profile | Absent:
        read = getattr(jax.profiler, "ProfileData", None)
        if read is None:
            return Absent(reason=f"JAX {jax.__version__} can't read its own profiles; a newer one can")
        with tempfile.TemporaryDirectory() as folder:
            self._trace(Path(folder), steps)
            found = next(Path(folder).rglob("*.xplane.pb"), None)
            if found is None:
                return Absent(reason="JAX's profiler wrote nothing")
            events = list(_operations(read.from_file(str(found))))
        return summarise(events, steps, "jax.profiler") or Absent(reason="JAX's profile names no operation of XLA")

    def trace(self, path: Path, steps: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self._trace(Path(folder), steps, create_perfetto_trace=True)
            found = next(Path(folder).rglob("perfetto_trace.json.gz"), None)
            if found is None:
                raise UnsupportedError("JAX's profiler wrote no trace.", hint="Leave --trace out.")
            if path.suffix == ".gz":
                shutil.copyfile(found, path)
            else:
                with gzip.open(found) as packed, path.open("wb") as plain:
                    shutil.copyfileobj(packed, plain)

    def _trace(self, folder: Path, steps: int, **options: Any) -> None:
        self.session.synchronize()
        with jax.profiler.trace(str(folder), **options):
            for _ in range(steps):
                self.session.step()
            self.session.synchronize()


class JaxExplainer(JaxBackend):
    session = DissectedJaxSession

    def __init__(self) -> None:
        self.unchanging = {"compile": "JAX compiles every step as it is"}

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[JaxAnatomy]:  # type: ignore[override]
        precision = jax.config.jax_default_matmul_precision
        try:
            with policy_restored(), super().open(plan, workload) as session:
                assert isinstance(session, DissectedJaxSession)
                with HostBatches(plan, workload, session.recipe) as batches:
                    yield JaxAnatomy(session, batches)
        finally:
            jax.config.update("jax_default_matmul_precision", precision)

    def free_memory(self) -> None:
        """Arrays that nobody holds are free."""

    def threads(self) -> int | None:
        return None

    def set_threads(self, count: int) -> None:  # noqa: ARG002
        raise threads_are_fixed("JAX")


def _cost(compiled: Any) -> StepCost:
    costs = compiled.cost_analysis()
    if isinstance(costs, list):  # one for each device, in older versions
        costs = costs[0] if costs else None
    return StepCost(*(float((costs or {}).get(name, 0.0)) for name in ("flops", "bytes accessed")))


def _operations(profile: Any) -> Iterator[ProfiledEvent]:
    """Give the executions of XLA's operations: those of a device's own line, or of the CPU's pool."""
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                name = next((str(value) for key, value in event.stats if key == "hlo_op"), None)
                if name is not None:
                    yield ProfiledEvent(_kind(name), event.duration_ns / 1e9)


def _kind(name: str) -> str:
    """'dot.12' and 'dot.7' are one kind: "dot"."""
    stem, _, number = name.rpartition(".")
    return stem if stem and number.isdigit() else name


SIDE: ExplainBackend = JaxExplainer()
