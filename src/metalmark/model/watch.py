"""WatchedRun: what a loop of the user's own left behind. Pure data.

It has no Plan, which could be run again and compared like for like, and no blocks between synchronisations of the
device: of a loop that was only watched, neither is known, and its times are the host's.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from metalmark.model.run import Count, Machine, Run, Seconds, Software, Telemetry

Value = str | int | float | bool


class WatchEnding(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Stretch(Struct, frozen=True, kw_only=True):
    """Neighbouring steps of one loop, from asking for the first batch to asking for the one after the last."""

    steps: Annotated[int, Meta(ge=1)]
    at_s: Seconds
    elapsed_s: Seconds
    waited_s: Seconds | None
    """How much of it went by until the loader gave its batches; None where a library does not let that be told."""


class Pass(Struct, frozen=True, kw_only=True):
    """Once through a loader: an epoch, most often."""

    loop: str
    at_s: Seconds
    steps: Count
    elapsed_s: Seconds
    waited_s: Seconds | None
    first_wait_s: Seconds | None
    """Until the first batch: a loader's workers start in it."""


class Curve(Struct, frozen=True, kw_only=True):
    """One logged number over the steps. None: it was not finite."""

    name: str
    steps: tuple[int, ...]
    at_s: tuple[float, ...]
    values: tuple[float | None, ...]


class SyncPoint(Struct, frozen=True, kw_only=True):
    """A place in the user's code where the host waited for the device."""

    where: str
    """The file's name and the line: "train.py:41"."""
    call: str
    """".item()", ".cpu()", "print"."""
    count: Count
    seconds: Seconds


class CopyGroup(Struct, frozen=True, kw_only=True):
    """Copies from the host's memory to the device's, of about the same size."""

    up_to_bytes: Count
    """A power of two."""
    count: Count
    total_bytes: Count
    seconds: Seconds
    """As the host saw it; a copy that is not waited for ends later."""


class WatchedProcess(Struct, frozen=True, kw_only=True):
    """A process of the script that was followed."""

    role: str
    """"main", "rank 1", "loader worker", "other"."""
    steps: Count
    ended: bool
    """False: it was still running, or was killed."""


class WatchedSteps(Struct, frozen=True, kw_only=True):
    """What the training steps after the first were made of, as the host saw them, all together."""

    steps: Count
    elapsed_s: Seconds
    waited_s: Seconds
    forward_s: Seconds | None = None
    """Where it can be told apart: from the batch to the beginning of the backward pass."""
    backward_s: Seconds | None = None
    optimizer_s: Seconds | None = None
    sync_s: Seconds = 0.0
    copy_s: Seconds = 0.0
    host_s: Seconds | None = None
    """Processor time of the training's own thread outside of waits and synchronisations."""


class WatchedScript(Struct, frozen=True, kw_only=True):
    """What was seen of a script that was not changed, beside its steps."""

    command: str
    """As typed, paths cut out; empty for mm.run."""
    exit_code: int | None = None
    """None: it was ended by a signal, or there was none."""
    signal: str = ""
    frameworks: tuple[str, ...] = ()
    """Those of its imports that were followed."""
    device: str = ""
    """Where its parameters were, as its framework names it."""
    device_name: str = ""
    batch_size: Count | None = None
    first_step_s: Seconds | None = None
    steady: WatchedSteps | None = None
    phases: dict[str, Seconds] = {}
    """start-up, training, validation, checkpoint; what is left is other."""
    syncs: tuple[SyncPoint, ...] = ()
    """The worst first."""
    copies: tuple[CopyGroup, ...] = ()
    processes: tuple[WatchedProcess, ...] = ()


class WatchedRun(Run, frozen=True, kw_only=True, tag="watch"):
    name: str
    elapsed_s: Seconds
    ended: WatchEnding
    error: str = ""
    params: dict[str, Value] = field(default_factory=dict)
    machine: Machine
    software: Software
    stretches: dict[str, tuple[Stretch, ...]] = field(default_factory=dict)
    """By loop."""
    passes: tuple[Pass, ...] = ()
    curves: tuple[Curve, ...] = ()
    telemetry: Telemetry
    notes: tuple[str, ...] = ()
    script: WatchedScript | None = None
    """None: a run of an older Metalmark."""

    def input_wait_share(self, loop: str = "train") -> float | None:
        """Of the loop's time, how much it waited for batches. On an accelerator the host's, so an upper bound."""
        stretches = self.stretches.get(loop, ())
        elapsed_s = sum(stretch.elapsed_s for stretch in stretches)
        waits_s = [stretch.waited_s for stretch in stretches if stretch.waited_s is not None]
        return sum(waits_s) / elapsed_s if elapsed_s > 0 and len(waits_s) == len(stretches) else None

    def curve(self, name: str) -> Curve | None:
        return next((curve for curve in self.curves if curve.name == name), None)

    def _heading(self) -> tuple[str, str, object]:
        return self.name, self.ended.value, self
