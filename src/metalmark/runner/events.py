"""What passes between processes, and what a running sweep or training tells.

The parent gives a worker its Job in a file; the worker writes progress lines to a pipe, and a WorkerReport into a file.
Displays, the live status and trackers all listen to the few kinds of Event.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from metalmark.model.measurement import Completed
from metalmark.model.plan import Plan
from metalmark.model.run import Failed, Run
from metalmark.model.training import Epoch, TrainingRun, TrainingSetup
from metalmark.telemetry.sampler import Sampler

PROGRESS_FD = "METALMARK_PROGRESS_FD"
LIFELINE_FD = "METALMARK_LIFELINE_FD"


class Job(Struct, frozen=True, kw_only=True):
    plan: Plan
    repeat: int
    paths: dict[str, str] = {}
    """Paths of the user's own files on this machine, by the names that a run has for them; never stored."""
    spawned_at_s: float
    """time.monotonic() of the parent. Both processes read the same clock, so the worker counts from this moment."""


class WorkerReport(Struct, frozen=True, kw_only=True):
    outcome: Completed | Failed
    versions: dict[str, str] = {}


class Started(Struct, frozen=True, kw_only=True):
    """A cell of a sweep, or a session of a training, begins."""

    id: str
    """The sweep's id for a cell, the run's for a training."""
    plan: Plan
    cell: int = 0
    repeat: int = 0
    run: TrainingRun | None = None
    """The training as it is when its session begins."""


class Paused(Struct, frozen=True, kw_only=True):
    """Nothing runs until the machine has cooled down; told about once per second."""

    reason: str


class Progress(Struct, frozen=True, kw_only=True):
    """A line from the worker. It is written between blocks, never while the clock runs."""

    phase: str
    at_s: float
    done: float | None = None
    step_s: float | None = None


class TrainingProgress(Progress, frozen=True, kw_only=True):
    """A line from a training's worker. Every loss is on one of them, so a listener can draw the curve as it grows."""

    epoch: int = 0
    step: int = 0
    """Number of steps done over all epochs; `losses` are those of the last ones."""
    losses: tuple[float, ...] = ()
    setting: TrainingSetup | None = None
    ended: Epoch | None = None


class Sampled(Struct, frozen=True, kw_only=True):
    """Sensors are being read for the worker that runs now; `sampler.latest` has their newest values."""

    sampler: Sampler


class Ended(Struct, frozen=True, kw_only=True):
    """A cell, or a session of a training, came to its end."""

    run: Run


Event = Started | Paused | Progress | Sampled | Ended
Listener = Callable[[Event], None]
"""It is called in the command's own process, and what it does must take no time from the worker."""


def tell_all(listeners: Sequence[Listener]) -> Listener:
    """Return one listener that passes each event to all of them, in their order."""

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell
