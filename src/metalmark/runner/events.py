"""What passes between processes, and what a running sweep or training tells.

The parent gives a worker its Job in a file; the worker writes progress lines to a pipe, and a WorkerReport into a file.
Displays, the live status and trackers all listen to the few kinds of Event.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from metalmark.model.measurement import Completed
from metalmark.model.plan import Plan, PlanChange
from metalmark.model.run import Failed, Run
from metalmark.model.training import Epoch, TrainingRun, TrainingSetup
from metalmark.model.tuning import Rung, TuningGoal, TuningPhase
from metalmark.telemetry.sampler import Sampler

PROGRESS_FD = "METALMARK_PROGRESS_FD"
LIFELINE_FD = "METALMARK_LIFELINE_FD"
SPARE_IS_READY = b"\n"
"""What a spare process writes to its pipe when it has imported its framework and waits for a job."""
RANKS_FOLDER = "METALMARK_RANKS"
"""Environment variable of a worker that is one of several processes: the folder that they report in."""
RANK_ADDRESSES = "METALMARK_ADDRESSES"
"""Addresses at which the processes may listen, the first one's first."""


class Job(Struct, frozen=True, kw_only=True):
    plan: Plan
    repeat: int
    paths: dict[str, str] = {}
    """Paths of the user's own files on this machine, by the names that a run has for them; never stored."""
    spawned_at_s: float
    """time.monotonic() of the parent. Both processes read the same clock, so the worker counts from this moment."""


class SpareJob(Struct, frozen=True, kw_only=True):
    """What a spare process is given: the worker that it is to be."""

    module: str
    job: str
    """The files of the job and of the outcome, and the one that gets all that the worker prints."""
    outcome: str
    output: str
    variables: dict[str, str]
    """Of the environment, such as tell apart two workers of one framework."""


class WorkerReport(Struct, frozen=True, kw_only=True):
    outcome: Completed | Failed
    versions: dict[str, str] = {}


class RankReport(Struct, frozen=True, kw_only=True):
    """How one of several processes ended."""

    number: int
    at_s: float
    failure: Failed | None = None


class RankExits(Struct, frozen=True, kw_only=True):
    """The processes of a machine that have ended, each with its exit code, in that order."""

    exits: tuple[tuple[int, int], ...]


def rank_report_path(folder: Path, number: int | str) -> Path:
    return folder / f"rank-{number}.json"


class Started(Struct, frozen=True, kw_only=True):
    """A cell of a sweep, or a session of a training, begins."""

    id: str
    """The sweep's id for a cell, the run's for a training."""
    plan: Plan
    cell: int = 0
    repeat: int = 0
    run: TrainingRun | None = None
    """The training as it is when its session begins."""
    node: str = ""
    """Which node of a cluster, here and below; empty: this machine."""


class Paused(Struct, frozen=True, kw_only=True):
    """Nothing runs until the machine has cooled down; told about once per second."""

    reason: str
    node: str = ""


class Progress(Struct, frozen=True, kw_only=True):
    """A line from the worker. It is written between blocks, never while the clock runs."""

    phase: str
    at_s: float
    done: float | None = None
    step_s: float | None = None
    node: str = ""


class TrainingProgress(Progress, frozen=True, kw_only=True):
    """A line from a training's worker. Every loss is on one of them, so a listener can draw the curve as it grows."""

    epoch: int = 0
    step: int = 0
    """Number of steps done over all epochs; `losses` are those of the last ones."""
    losses: tuple[float, ...] = ()
    setting: TrainingSetup | None = None
    ended: Epoch | None = None


class TuningProgress(Struct, frozen=True, kw_only=True):
    """A tuning is about to try something, or has just tried it."""

    plan: Plan
    """The baseline."""
    goal: TuningGoal
    phase: TuningPhase
    trying: tuple[PlanChange, ...] = ()
    """What is measured in turn, or checked, from now on; empty when that has ended."""
    rungs: tuple[Rung, ...] = ()
    """What has been tried so far, the baseline first, then in the order in which it was."""
    node: str = ""


class Sampled(Struct, frozen=True, kw_only=True):
    """Sensors are being read for the worker that runs now; `sampler.latest` has their newest values."""

    sampler: Sampler


class Ended(Struct, frozen=True, kw_only=True):
    """A cell, or a session of a training, came to its end."""

    run: Run
    node: str = ""


Event = Started | Paused | Progress | TuningProgress | Sampled | Ended
Listener = Callable[[Event], None]
"""It is called in the command's own process, and what it does must take no time from the worker."""


def tell_all(listeners: Sequence[Listener]) -> Listener:
    """Return one listener that passes each event to all of them, in their order."""

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell
