"""What the experiments need of each framework: parts of a step, the work in it, and its operations."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from metalmark.backends.base import Probe, Session
from metalmark.explain.job import Ceiling, SyncSeen
from metalmark.model.explanation import OperationWork, Profile
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.workload import Workload


class Anatomy(Protocol):
    """A session whose step can be taken apart. Each part is enqueued like a step: nothing in it waits."""

    session: Session
    asynchronous: bool
    """Whether a step returns before the device has done it: False on the CPU."""

    def forward(self) -> None:
        """Forward pass and loss on the next batch, keeping what a backward pass would need; compiled where the plan
        says so. In inference the whole step. Raises UnsupportedError where a step is the user's own or captured."""

    def backward(self) -> None:
        """Forward and backward without the update."""

    def place(self) -> None:
        """Copy one batch from the host to the device, as the loader's batches are."""

    def make(self) -> None:
        """Make one batch on the host as the plan's loader does in one of its workers. Nothing on the device."""

    def work(self) -> tuple[OperationWork, ...] | Absent:
        """What the operations of one step have to do; steps may be done to find out."""

    def profile(self, steps: int) -> Profile | Absent:
        """The ten most expensive kinds of operations, per step."""

    def trace(self, path: Path, steps: int) -> None:
        """Write a trace that Perfetto opens: Chrome's JSON, gzipped where the name ends in .gz. Raises
        UnsupportedError where the framework has no profiler for this device."""


@runtime_checkable
class SelfMeasured(Protocol):
    """An anatomy of a device that knows its own ceilings, and when a step waits for it: the software device's."""

    def ceiling(self) -> Ceiling: ...

    def syncs(self, steps: int) -> tuple[SyncSeen, ...]:
        """Do some steps, and return the calls in them that waited for the device."""


class ExplainBackend(Protocol):
    """One for each framework, as `SIDE` of `metalmark.explain.{torch,tensorflow,jax,mlx,fake}`."""

    unchanging: dict[str, str]
    """Settings whose value changes nothing in this framework, each with the reason: {"compile": "JAX compiles every
    step"}. No experiment varies them."""

    def probe(self) -> Probe: ...

    def open(self, plan: Plan, workload: Workload) -> AbstractContextManager[Anatomy]:
        """Open a session; what it changes of the whole process (threads, TensorFloat-32) is set back at its end."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def free_memory(self) -> None:
        """Give back to the device what closed sessions held; the worker has collected Python's garbage before."""

    def threads(self) -> int | None:
        """How many threads of the CPU the sessions of this process use now; None: the framework does not tell."""

    def set_threads(self, count: int) -> None:
        """Let the sessions of this process use so many threads of the CPU from now on; raises UnsupportedError where a
        framework can't change that after its start."""
