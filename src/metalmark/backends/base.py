"""The contract every framework keeps; tests/contract runs them all through it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from metalmark.model.plan import Plan
from metalmark.model.run import DeviceMemory
from metalmark.model.workload import Workload

RING = 2
"""Resident batches a session rotates through: two prove that each step reads its own input."""


class DeviceReport(Struct, frozen=True, kw_only=True):
    """A device this framework could have here. `reason` and `fix` speak when it is not present."""

    word: str
    name: str = ""
    present: bool
    reason: str = ""
    fix: str = ""


class Probe(Struct, frozen=True, kw_only=True, tag="probe"):
    framework: str
    versions: dict[str, str]
    devices: tuple[DeviceReport, ...]


class Placement(Struct, frozen=True, kw_only=True):
    """Where the parameters really are."""

    device: str
    name: str


class Streams(Protocol):
    """Where the batches come from: Feeder is the one there is, but for the software device's."""

    batch: int
    """The ring's number of the last batch taken from it."""
    waited_s: float
    """How long `step` has waited for a loader in all."""

    def stream(self, on: bool) -> None:
        """Feed steps from the plan's loader, or from the ring again."""


class Session(Protocol):
    """A model on a device, ready to step through a ring of RING resident batches."""

    placement: Placement
    parameters: int
    trainable_parameters: int
    notes: tuple[str, ...]
    feeder: Streams

    def step(self) -> None:
        """Enqueue one unit of work: forward, and in training backward and update, on the next batch."""

    def settle(self) -> None:
        """Called once, after the first step and outside the clock: end what only that one needed."""

    def synchronize(self) -> None:
        """Return when the device is idle. There is no default: a wrong one makes every number wrong."""

    def proof(self) -> float:
        """The last step's loss (training) or mean square output (inference). Drains the queue."""

    def fingerprint(self) -> tuple[float, ...]:
        """One number for each trainable array: it changes when the array does."""

    def memory(self) -> DeviceMemory: ...


class Backend(Protocol):
    name: str

    def probe(self) -> Probe:
        """Version and devices; for each device that is absent, the reason and how to get it."""

    def open(self, plan: Plan, workload: Workload) -> AbstractContextManager[Session]: ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...
