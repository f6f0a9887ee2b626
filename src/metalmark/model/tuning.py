"""TuningRun: the settings with which a workload trains fastest and still trains the same network, and what each of them
gained. Pure data.

Every trial is a run of its own (`Rung.runs`), with its raw values; a rung holds the figures that the search went by.
"""

from enum import StrEnum

from msgspec import Struct

from metalmark.model.parity import ParityMark, ParityVerdict
from metalmark.model.plan import Plan, PlanChange
from metalmark.model.run import Count, Failed, Flag, Identifier, Machine, Run, Seconds, Software, Telemetry

OPEN_GAIN = 1.1
"""Settings that may gain as much, as far as a noisy measurement shows, are not said to gain nothing."""


class TuningGoal(StrEnum):
    """What is made smaller."""

    THROUGHPUT = "throughput"
    """Seconds per sample."""
    LATENCY = "latency"
    """Seconds per step; the batch size stays as it is."""
    ENERGY = "energy"
    """Joules per sample."""
    MEMORY = "memory"
    """The peak of memory in bytes."""


class TuningPhase(StrEnum):
    """What a search does now, in the order in which it does it."""

    BASELINE = "baseline"
    SEARCH = "search"
    BATCH = "batch size"
    FINALISTS = "finalists"
    GATE = "gate"


class RungStatus(StrEnum):
    """What became of settings that were tried."""

    BASELINE = "baseline"
    BEST = "best"
    ON_THE_WAY = "on the way"
    """Part of the best, and better than what was before it."""
    NO_GAIN = "no gain"
    """Not better than what was before it, or not the best."""
    FAILED = "failed"
    """It could not be measured: the reason says why."""
    DIFFERS = "trains differently"
    """It failed the gate: a parity check, or its loss curve."""
    UNPROVED = "not proved"
    """The gate could not be passed or failed, for the reason that is given."""


class TuningRequest(Struct, frozen=True, kw_only=True):
    """What was asked for, so that a stopped search can go on."""

    goal: TuningGoal = TuningGoal.THROUGHPUT
    time_s: Seconds = 600.0
    """How long the search may take."""
    steps_planned: Count | None = None
    """Number of steps that the first step's extra time is spread over; None: it is not counted."""
    repeats: Count = 3
    """Number of processes per finalist, in turn with the baseline."""
    seconds: Seconds = 3.0
    """How long each process of a finalist is measured."""
    fixed: tuple[str, ...] = ()
    """Settings and parameters that stay as they are."""
    memory_limit_bytes: Count | None = None
    gate: bool = True
    """False: speeds are not gated on correctness, and the result says so."""


class Rung(Struct, frozen=True, kw_only=True):
    """Settings that were tried, against the baseline."""

    title: str
    """"baseline", "+ bfloat16", "+ compile": what it adds to the rung before it."""
    change: PlanChange = PlanChange()
    """Everything that differs from the baseline."""
    status: RungStatus
    value: float | None = None
    """What the goal makes smaller; None: it failed."""
    step_s: Seconds | None = None
    samples_per_step: Count | None = None
    gain: float | None = None
    """The baseline's value over this one's."""
    low: float | None = None
    high: float | None = None
    """The 95% interval of the gain; None where it was measured in one process."""
    processes: Count = 0
    first_step_s: Seconds | None = None
    peak_bytes: Count | None = None
    joules_per_sample: float | None = None
    parity: ParityMark | None = None
    curve: ParityMark | None = None
    """Whether its losses stay with the baseline's on the same device and batches."""
    reason: str = ""
    """Why it failed, is not proved or trains differently, as a sentence."""
    runs: tuple[Identifier, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it was measured in several processes that differ too much to tell if it is better or worse."""
        return self.low is not None and self.high is not None and self.low < 1 and self.high > OPEN_GAIN

    @property
    def proved(self) -> bool:
        """Whether it passed the gate. Where no setting of the step differs, only a loader or a batch size, there is
        nothing that a check could compare."""
        marks = [mark for mark in (self.parity, self.curve) if mark is not None]
        nothing_to_check = self.status is RungStatus.BEST and not self.reason and not self.change.settings
        return all(mark.verdict is ParityVerdict.AGREES for mark in marks) and (bool(marks) or nothing_to_check)

    @property
    def verdict(self) -> ParityVerdict | None:
        """Whether it trains the same network as the baseline, by what both checks found; None: not checked."""
        found = {mark.verdict for mark in (self.parity, self.curve) if mark is not None}
        if self.status is RungStatus.DIFFERS or ParityVerdict.DIFFERS in found:
            return ParityVerdict.DIFFERS
        if ParityVerdict.UNTESTED in found:
            return ParityVerdict.UNTESTED
        return ParityVerdict.AGREES if found else None


class Tuned(Struct, frozen=True, kw_only=True, tag="tuned"):
    ladder: tuple[Rung, ...]
    """The baseline, each step on the way to the best, and the best, which is the last; the baseline alone where nothing
    helps."""
    others: tuple[Rung, ...] = ()
    """Everything else that was tried, in the order in which it was."""
    placed_on: str = ""
    device_name: str = ""
    trials: Count = 0
    """Processes that were measured."""
    elapsed_s: Seconds = 0.0
    complete: bool = True
    """False: Ctrl-C ended the search."""
    left_out: tuple[str, ...] = ()
    """Settings that were not tried, each with its reason."""
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> Rung:
        return self.ladder[0]

    @property
    def best(self) -> Rung:
        return self.ladder[-1]

    @property
    def undecided(self) -> Rung | None:
        """Where nothing is known to help, the settings of which that could not be told."""
        left = [rung for rung in self.others if rung.status is RungStatus.NO_GAIN and rung.is_open]
        return max(left, key=lambda rung: rung.gain or 0.0, default=None) if len(self.ladder) == 1 else None


class TuningRun(Run, frozen=True, kw_only=True, tag="tune"):
    sweep: Identifier
    """What its trials are found by."""
    cell: Count = 0
    plan: Plan
    """The baseline."""
    request: TuningRequest
    machine: Machine
    software: Software
    outcome: Tuned | Failed
    telemetry: Telemetry
    flags: tuple[Flag, ...] = ()

    def _heading(self) -> tuple[str, str, object]:
        if isinstance(self.outcome, Failed):
            return self.plan.label, self.outcome.kind.value, self
        best = self.outcome.best
        if best.gain is None or best.status is RungStatus.BASELINE:
            helps = "can't tell what helps" if self.outcome.undecided is not None else "nothing helps"
            return self.plan.label, helps if self.outcome.complete else "stopped", self
        proved = "" if best.status is RungStatus.BEST else f", {best.status.value}"
        return self.plan.label, f"{best.gain:.2f}x{proved}", self
