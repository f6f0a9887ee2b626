"""The contract every framework keeps; tests/contract runs them all through it."""

import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from metalmark.errors import UnsupportedError
from metalmark.model.plan import Device, DeviceKind, Plan
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.workload import Workload

RING = 2
"""The number of resident batches a session rotates through: two prove that each step reads its own input."""
NOT_A_MAC = "Metal is Apple's: this is not a Mac."


class DeviceReport(Struct, frozen=True, kw_only=True):
    """A device this framework could have here; where it is not present, `reason` says why and `fix` how to get it."""

    word: str
    name: str = ""
    present: bool
    reason: str = ""
    fix: str = ""
    count: int = 1
    """How many of them there are, where it is present."""


class Probe(Struct, frozen=True, kw_only=True, tag="probe"):
    framework: str
    versions: dict[str, str]
    devices: tuple[DeviceReport, ...]


class Placement(Struct, frozen=True, kw_only=True):
    """Where the parameters really are."""

    device: str
    name: str


class BatchFeed(Protocol):
    """Where the batches come from: a Feeder, except on the software device."""

    batch: int
    """The number in the ring of the last batch taken from it."""
    waited_s: float
    """How long `step` has waited for a loader, in total."""

    def stream(self, on: bool) -> None:
        """Feed steps from the plan's loader, or from the ring again."""


class Session(Protocol):
    """A model on a device, ready to step through a ring of RING resident batches."""

    placement: Placement
    parameters: int
    trainable_parameters: int
    notes: tuple[str, ...]
    batch_shown: str
    """What a batch holds, for messages: "inputs[0] float32 (32, 64), targets int64 (32,)"."""

    @property
    def feeder(self) -> BatchFeed: ...

    def step(self) -> None:
        """Enqueue one unit of work: forward, and in training backward and update, on the next batch."""

    def settle(self) -> None:
        """Called once, after the first step and outside the clock: end what only that one needed."""

    def observed(self) -> AbstractContextManager[dict[str, str]]:
        """Look at the steps that are taken meanwhile, outside the clock. The dictionary then names the settings that
        would change nothing of this network, each with the reason."""

    def synchronize(self) -> None:
        """Return when the device is idle. There is no default: a wrong one makes every number wrong."""

    def proof(self) -> float:
        """The last step's loss (training) or mean square output (inference). Drains the queue."""

    def fingerprint(self) -> tuple[float, ...]:
        """One number for each trainable array: it changes when the array does."""

    def fingerprint_names(self) -> tuple[str, ...]:
        """The names of these arrays."""

    def memory(self) -> DeviceMemory: ...


class Backend(Protocol):
    name: str

    def probe(self) -> Probe:
        """Version and devices; for each device that is absent, the reason and how to get it."""

    def open(self, plan: Plan, workload: Workload) -> AbstractContextManager[Session]: ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...


def report_device(title: str, word: str, name: str, why_absent: tuple[str, str], *, count: int = 1) -> DeviceReport:
    """Report a device: an empty name means that it is absent, `why_absent` why, and how to get it. `count`: how many of
    them there are."""
    if name:
        return DeviceReport(word=word, name=name, present=True, count=count)
    mac = platform.system() == "Darwin"
    if word == "cuda" and mac:
        why_absent = f"no Mac that {title} runs on has CUDA.", ""
    elif word == "mps" and not mac:
        why_absent = NOT_A_MAC, ""
    return DeviceReport(word=word, present=False, reason=why_absent[0], fix=why_absent[1])


def absent_device(title: str, device: Device, reports: Sequence[DeviceReport]) -> UnsupportedError:
    """Return the error for a device that is not here: why, and how to get it."""
    if device.kind is DeviceKind.GPU:
        reasons = " ".join(f"{report.word}: {report.reason}" for report in reports if not report.present)
        return UnsupportedError(f"{title} has no accelerator here. {reasons}", hint="Use --device cpu.")
    report = next(report for report in reports if report.word == device.kind.value)
    hint = report.fix or "Use --device cpu."
    return UnsupportedError(f"{title} has no {report.word} here: {report.reason}", hint=hint)


def device_index(title: str, device: Device, count: int) -> int:
    """Return which of `count` such devices is asked for; the first unless the user numbers one."""
    index = device.index or 0
    if index >= count:
        plural = "s" if count != 1 else ""
        raise UnsupportedError(f"There is no {device}: {title} sees {count} such device{plural}, numbered from 0.")
    return index


def unknown_memory(reason: str) -> DeviceMemory:
    why = Absent(reason=reason)
    return DeviceMemory(live_bytes=why, driver_bytes=why, peak_bytes=why)


HOST_MEMORY = unknown_memory("on the CPU the process's memory is the device's; see telemetry")
