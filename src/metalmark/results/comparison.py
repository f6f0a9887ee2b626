"""Comparison: what two sides of runs of one kind say when they are compared, one entry per pair of cells.

`sides.py` makes sides of what a user names; `compare_runs` compares the first of them with each other one.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from metalmark.errors import UsageError
from metalmark.model.parity import ParityVerdict
from metalmark.model.plan import PlanChange
from metalmark.model.run import Absent, RunKind
from metalmark.model.tuning import Rung
from metalmark.results.measured import NO_SPEED, Keys, Measured
from metalmark.results.pairing import MAY_LACK, Pair, Side, Unpaired, around_changes, pair, shown
from metalmark.results.quantity_changes import QuantityChange, quantity_changes
from metalmark.results.sides import TWO
from metalmark.results.trained import TrainedDifference, TrainedFigures, trained_difference, trained_figures
from metalmark.stats.difference import BAND, ENOUGH, Difference, Gap, Verdict, difference, gap, geometric_mean, typical

ONLY_FIRST_STEPS = "every step was the first of its batch size, which compiles"
ENOUGH_TRAININGS, MOST_TRAININGS = 3, 30
"""How many are suggested where one is too few, and the most that are suggested at all."""
NAMED = {"workload", "mode", "framework", "device", "name", "loop", *MAY_LACK}
"""Keys that a cell's own name says; any other one that tells two pairs apart is added to it."""
WAIT_BAND = 0.01
"""The smallest noise band of a share of time: one percentage point."""
KINDS = {
    RunKind.BENCH: "bench runs",
    RunKind.TRAINING: "trainings",
    RunKind.WATCH: "watched runs",
    RunKind.PARITY: "parity checks",
    RunKind.EXPLAIN: "explanations",
    RunKind.TUNE: "tunings",
}
SAMPLES = {
    RunKind.BENCH: "process",
    RunKind.TRAINING: "run",
    RunKind.WATCH: "run",
    RunKind.PARITY: "check",
    RunKind.EXPLAIN: "explanation",
    RunKind.TUNE: "tuning",
}


class TunedFigures(Struct, frozen=True, kw_only=True):
    """The best settings of a tuning, and what they gain over the baseline of the same tuning."""

    change: PlanChange
    gain: float | None
    low: float | None
    high: float | None
    status: str


class SideFigures(Struct, frozen=True, kw_only=True):
    """One side of a pair of cells."""

    name: str
    keys: Keys
    processes: int
    step_s: float | Absent
    samples_per_s: float | Absent
    memory_bytes: int | Absent
    joules_per_sample: float | Absent
    energy_of: str
    flags: dict[str, str]
    notes: tuple[str, ...]
    failure: str
    published: str
    records: tuple[str, ...]
    trained: TrainedFigures | None = None
    """Of trainings."""
    parity: ParityVerdict | None = None
    """What the parity check of its plan found, or what the check itself did; None: none was asked for."""
    input_waits: tuple[float, ...] = ()
    """Of watched runs: the share of its time that each waited for batches."""
    bottleneck: str = ""
    """Of explanations: what the newest says that the step waits for."""
    shares_s: dict[str, float] = {}
    """Of explanations: seconds of a step by cause, as the newest says; `share_errors_s` are their error bars."""
    share_errors_s: dict[str, float] = {}
    tuned: TunedFigures | None = None
    """Of tunings: the best settings of the newest."""


class Ratio(Struct, frozen=True, kw_only=True):
    """B's figure over A's: 0.8 is a fifth less. Without an interval where a side has one process."""

    value: float
    low: float | None = None
    high: float | None = None


class CellComparison(Struct, frozen=True, kw_only=True):
    name: str
    a: SideFigures
    b: SideFigures
    speed: Difference | Absent
    memory: Ratio | Absent
    energy: Ratio | Absent
    changes: tuple[str, ...]
    """What differs around them: machine, versions, variables."""
    no_speed_up: str = ""
    """Why the two are not like for like; empty where they are."""
    command: str = ""
    """What to type to tell, where the runs are too few."""
    trained: TrainedDifference | None = None
    """Of trainings."""
    input_wait: Gap | Absent | None = None
    """Of watched runs."""
    quantities: tuple[QuantityChange, ...] = ()
    """Of parity checks: everything that either of them compared."""

    @property
    def verdict(self) -> Verdict:
        return self.speed.verdict if isinstance(self.speed, Difference) else Verdict.CANT_TELL

    @property
    def reason(self) -> str:
        return self.speed.reason

    @property
    def told(self) -> bool:
        """Whether its speed has an interval: two processes per side or more, like for like or not."""
        return isinstance(self.speed, Difference) and self.speed.low is not None

    @property
    def more_time(self) -> float:
        """How much longer B takes for the same samples, as a share of A's time: 0.05 is 5% longer."""
        return 1 / self.speed.ratio - 1 if isinstance(self.speed, Difference) else 0.0


class Comparison(Struct, frozen=True, kw_only=True):
    kind: RunKind = RunKind.BENCH
    a: str
    b: str
    compared: tuple[str, ...]
    rows: tuple[CellComparison, ...]
    mean: Difference | None
    """Geometric mean of the speed over the rows; None for fewer than two that have an interval."""
    unpaired: tuple[Unpaired, ...]
    unlike: dict[str, str]
    one_sweep: bool
    """Measured in turns; otherwise what changed on the machine in between is in the ratio too."""
    target_accuracy: float | None = None
    """Of trainings: the accuracy that the time to it is compared of."""


def compare_runs(
    sides: Sequence[Side],
    *,
    by: Sequence[str] = (),
    anyway: bool = False,
    band: float = BAND,
    target_accuracy: float | None = None,
) -> tuple[list[Comparison], list[UsageError]]:
    """Compare the first side with each other one.

    `by`: what is compared, because the user says so. `anyway`: show what is not like for like too, marked. `band`: a
    ratio nearer to 1 is never called a difference. `target_accuracy`: of trainings, else the one their goals share.
    Also returns why some sides can't be compared with the first; raises where none can.
    """
    sides = _without_checks(sides)
    kinds = {side.name: dict.fromkeys(KINDS[cell.kind] for cell in side.cells) for side in sides}
    if len({kind for found in kinds.values() for kind in found}) > 1:
        said = ", ".join(f"{name} holds {' and '.join(found)}" for name, found in kinds.items())
        raise UsageError(f"Only runs of one kind can be compared: {said}.", hint=TWO)
    kind = next((cell.kind for side in sides for cell in side.cells), RunKind.BENCH)
    if target_accuracy is not None and kind is not RunKind.TRAINING:
        raise UsageError(
            f"A target accuracy is of trainings, and these are {KINDS[kind]}.", hint="Leave --target-accuracy out."
        )
    compared = [
        compare(sides[0], other, by=by, anyway=anyway, band=band, target=target_accuracy) for other in sides[1:]
    ]
    found = [one for one in compared if one.rows]
    refused = [_why_unpaired(sides[0], b, one) for b, one in zip(sides[1:], compared, strict=True) if not one.rows]
    if not found:
        raise refused[0]
    return found, refused


def compare(
    a: Side, b: Side, *, by: Sequence[str] = (), anyway: bool = False, band: float = BAND, target: float | None = None
) -> Comparison:
    """Compare two sides of one kind; without a row where no cell of `b` has its like in `a`."""
    pairing = pair(a, b, by=by, anyway=anyway)
    pairs, cells = pairing.pairs, [one.b for one in pairing.pairs]
    if target is None:
        goals = {run.goal.target_accuracy for one in pairs for cell in one for run in cell.trainings}
        target = goals.pop() if len(goals) == 1 else None
    keys = dict.fromkeys(key for cell in cells for key in (*cell.what, *cell.how) if key not in NAMED)
    extra = [key for key in keys if len({cell.value(key) for cell in cells}) > 1]
    timed = [one for one in pairs if not _no_interval(one)]
    sweeps = [[{run.header.sweep or run.id for run in cell.runs} for cell in one] for one in pairs]
    return Comparison(
        kind=b.cells[0].kind if b.cells else RunKind.BENCH,
        a=a.name,
        b=b.name,
        compared=pairing.compared,
        rows=tuple(_compared(one, extra, pairing.unlike, band, target) for one in pairs),
        mean=geometric_mean([(one.a.processes, one.b.processes) for one in timed], band=band) if timed[1:] else None,
        unpaired=pairing.unpaired,
        unlike=pairing.unlike,
        one_sweep=all(ours == theirs for ours, theirs in sweeps),
        target_accuracy=target,
    )


def _compared(
    one: Pair, extra: Sequence[str], unlike: dict[str, str], band: float, target: float | None
) -> CellComparison:
    a, b = one
    changes = around_changes(one)
    if a.parameters is not None and b.parameters is not None and a.parameters != b.parameters:
        changes.append(f"trained parameters {a.parameters:,} → {b.parameters:,}")
    speed = _speed(one, band)
    ours, theirs = _side_figures(a, extra, target), _side_figures(b, extra, target)
    trained = trained_difference(one, ours.trained, theirs.trained, band, target)
    wait: Gap | Absent = Absent(reason="a loop has no step")
    if a.input_waits and b.input_waits:
        wait = gap(a.input_waits, b.input_waits, band=WAIT_BAND, less_is_better=True)
    return CellComparison(
        name=_name(a if b.published else b, extra),
        a=ours,
        b=theirs,
        speed=speed,
        memory=_memory(a, b),
        energy=_energy(a, b),
        changes=tuple(changes),
        no_speed_up="; ".join(unlike.values()),
        command=_command(a, b, speed, trained),
        trained=trained,
        input_wait=wait if b.kind is RunKind.WATCH else None,
        quantities=quantity_changes(a.check, b.check),
    )


def _command(a: Measured, b: Measured, speed: Difference | Absent, trained: TrainedDifference | None) -> str:
    """What to type for more runs of each side that has too few."""
    judged = trained.judged if trained is not None else speed
    if isinstance(judged, Absent) or judged.more_repeats is None or b.kind in (RunKind.WATCH, RunKind.EXPLAIN):
        return ""
    wanted = min(judged.repeats) + judged.more_repeats
    if trained is None:
        wanted = max(ENOUGH, wanted)
    elif min(judged.repeats) < 2:
        wanted = ENOUGH_TRAININGS
    elif wanted > MOST_TRAININGS:
        return ""
    few = dict.fromkeys(cell.command for cell in (a, b) if len(cell.processes) < wanted)
    return " && ".join(f"{command} --repeat {wanted}" for command in few)


def _no_interval(one: Pair) -> str:
    """Why the speeds of the two have no ratio with an interval."""
    reasons = [NO_SPEED.reason for cell in one if cell.kind is RunKind.PARITY]
    reasons += [f"{cell.name} did not complete: {cell.failure}" for cell in one if cell.failure]
    reasons += ["published without repeats: nothing shows its noise" for cell in one if cell.published]
    untimed = [cell for cell in one if not cell.processes or len(cell.processes) < len(cell.trainings)]
    reasons += [f"{cell.name}: {ONLY_FIRST_STEPS}" for cell in untimed]
    return reasons[0] if reasons else ""


def _speed(one: Pair, band: float) -> Difference | Absent:
    a, b = one
    why = _no_interval(one)
    if not why:
        return difference(a.processes, b.processes, band=band, sample=SAMPLES[b.kind])
    if a.failure or b.failure or not (a.published or b.published):
        return Absent(reason=why)
    counts = len(a.processes), len(b.processes)
    return Difference(ratio=typical(a.processes) / typical(b.processes), repeats=counts, reason=why)


def _name(cell: Measured, extra: Sequence[str]) -> str:
    return cell.name + "".join(f", {shown(key)} {cell.value(key)}" for key in extra if cell.value(key))


def _side_figures(cell: Measured, extra: Sequence[str], target: float | None) -> SideFigures:
    lost = NO_SPEED if cell.check is not None else Absent(reason=cell.failure or ONLY_FIRST_STEPS)
    per_sample = None if cell.failure or not cell.processes else typical(cell.processes)
    energy = cell.energy
    joules = [] if isinstance(energy, Absent) else [value for values in energy.values() for value in values]
    newest = cell.explained[-1] if cell.explained else None
    shares = newest.shares if newest is not None else ()
    typical_joules = math.exp(sum(map(math.log, joules)) / len(joules)) if joules and min(joules) > 0 else 0.0
    return SideFigures(
        name=_name(cell, extra),
        keys={**cell.what, **cell.how},
        processes=len(cell.processes),
        step_s=lost if per_sample is None else per_sample * cell.samples_per_step,
        samples_per_s=lost if per_sample is None else 1 / per_sample,
        memory_bytes=cell.memory_bytes,
        joules_per_sample=energy if isinstance(energy, Absent) else typical_joules,
        energy_of="" if isinstance(energy, Absent) else "; ".join(energy),
        flags=cell.flags,
        notes=cell.notes,
        failure=cell.failure,
        published=cell.published,
        records=tuple(run.id for run in cell.runs),
        trained=trained_figures(cell, target) if cell.kind is RunKind.TRAINING else None,
        parity=cell.check.verdict if cell.check is not None else cell.parity,
        input_waits=cell.input_waits,
        bottleneck=newest.bottleneck.value if newest is not None else "",
        shares_s={one.cause.value: one.seconds for one in shares},
        share_errors_s={one.cause.value: one.error_s for one in shares},
        tuned=_tuned_figures(cell.tuned[-1].best) if cell.tuned else None,
    )


def _tuned_figures(best: Rung) -> TunedFigures:
    return TunedFigures(change=best.change, gain=best.gain, low=best.low, high=best.high, status=best.status.value)


def _memory(a: Measured, b: Measured) -> Ratio | Absent:
    ours, theirs = a.memory, b.memory
    if isinstance(ours, Absent):
        return ours
    if isinstance(theirs, Absent):
        return theirs
    if ours.of != theirs.of:
        return Absent(reason=f"A's is what the {ours.of} counted, B's what the {theirs.of} did")
    return Ratio(value=theirs.bytes / ours.bytes) if ours.bytes else Absent(reason="nothing was held")


def _energy(a: Measured, b: Measured) -> Ratio | Absent:
    if isinstance(a.energy, Absent):
        return a.energy
    if isinstance(b.energy, Absent):
        return b.energy
    if len(a.energy) != 1 or len(b.energy) != 1:
        return Absent(reason="its processes were not metered alike")
    ours, theirs = ([[joules] for values in energy.values() for joules in values] for energy in (a.energy, b.energy))
    if min(map(min, (*ours, *theirs))) <= 0:
        return Absent(reason="the meter counted nothing")
    # `difference` is of times: B's energy over A's is the inverse of its ratio.
    found = difference(ours, theirs)
    if found.low is None or found.high is None:
        return Ratio(value=1 / found.ratio)
    return Ratio(value=1 / found.ratio, low=1 / found.high, high=1 / found.low)


# Which sides there are, and why two can't be compared


def _without_checks(sides: Sequence[Side]) -> list[Side]:
    """Return the sides without the parity checks that were made on the way to measured runs, which carry their verdict;
    of a tuning and its trials, or of an explanation and the bench runs that verify it, the tuning or the explanation is
    compared. Trials are compared by themselves where one side has nothing else."""
    kinds = {cell.kind for side in sides for cell in side.cells}
    for whole in (RunKind.TUNE, RunKind.EXPLAIN):
        if all(whole in {cell.kind for cell in side.cells} for side in sides):
            return [Side(side.name, [cell for cell in side.cells if cell.kind is whole]) for side in sides]
    left_out = ({RunKind.PARITY} if kinds > {RunKind.PARITY} else set()) | {RunKind.TUNE}
    kept = [Side(side.name, [cell for cell in side.cells if cell.kind not in left_out]) for side in sides]
    # A side of nothing but checks or tunings stays, so that what is said of it is right.
    return [one if one.cells else side for one, side in zip(kept, sides, strict=True)]


def _why_unpaired(a: Side, b: Side, found: Comparison) -> UsageError:
    unlike = found.unlike
    if unlike:
        speakable = all(key in cell.speakable for key in unlike for cell in (*a.cells, *b.cells))
        keys = ",".join(key.replace(" ", "-") for key in unlike)
        by = f"If that is what you compare, say so: --by {keys}. " if speakable else ""
        return UsageError(
            f"{b.name} against {a.name} is not like for like: {'; '.join(unlike.values())}.",
            hint=f"Measure the same thing twice. {by}`--anyway` shows it, marked.",
        )
    reason = found.unpaired[0].reason if found.unpaired else "one of them has no cell"
    return UsageError(
        f"No cell of {b.name} has its like in {a.name}: {reason}.",
        hint="`metalmark runs show RUN` says what each holds.",
    )
