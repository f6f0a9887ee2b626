"""What trials came to: the figure that a goal makes smaller, and rungs of the ladder. Pure functions on bench runs."""

from collections.abc import Sequence

from metalmark.explain.verify import failure_of
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import PlanChange
from metalmark.model.run import Absent
from metalmark.model.tuning import Rung, RungStatus, TuningGoal, TuningRequest
from metalmark.results.cells import Cell
from metalmark.results.derived import Cost, derive
from metalmark.stats.difference import Difference, difference, typical

EXCESS_POWER = 4.0
"""What needs twice the memory that is allowed counts as 16 times as slow: a search then first finds what fits."""


def completed(runs: Sequence[BenchRun]) -> list[BenchRun]:
    return [run for run in runs if isinstance(run.outcome, Completed)]


def figures_of(runs: Sequence[BenchRun], request: TuningRequest) -> list[list[float]] | Absent:
    """Return what the goal makes smaller: a list for each process, for speeds one figure per block."""
    found: list[list[float]] = []
    for run in completed(runs):
        figures = _figures(run, request)
        if isinstance(figures, Absent):
            return figures
        found.append(figures)
    return found


def value_of(runs: Sequence[BenchRun], request: TuningRequest) -> float | None:
    """Return the one figure of some settings; None: they could not be measured."""
    found = figures_of(runs, request)
    if isinstance(found, Absent) or not found or failure_of(runs):
        return None
    penalty: float = excess_of(runs, request) ** EXCESS_POWER
    return typical(found) * penalty


def excess_of(runs: Sequence[BenchRun], request: TuningRequest) -> float:
    """Return how many times as much memory as is allowed they need; 1 where that is no more, or nobody knows."""
    done = completed(runs)
    if not done or request.memory_limit_bytes is None:
        return 1.0
    needed = Cell(plan=done[0].plan, records=tuple(done)).memory_bytes
    return max(1.0, (needed or 0) / request.memory_limit_bytes)


def compared(baseline: Sequence[BenchRun], runs: Sequence[BenchRun], request: TuningRequest) -> Difference | None:
    """Compare settings with the baseline by the statistics of `metalmark compare`."""
    ours, theirs = figures_of(baseline, request), figures_of(runs, request)
    if isinstance(ours, Absent) or isinstance(theirs, Absent) or not ours or not theirs:
        return None
    return difference(ours, theirs)


def rung_of(
    title: str,
    change: PlanChange,
    runs: Sequence[BenchRun],
    baseline: Sequence[BenchRun],
    request: TuningRequest,
    status: RungStatus,
) -> Rung:
    """Put together what was measured of some settings. `baseline`: measured in the same way."""
    ids = tuple(run.id for run in runs)
    failure, done = failure_of(runs), completed(runs)
    if failure is not None or not done:
        reason = failure.message if failure is not None else "It was stopped before it was measured."
        return Rung(title=title, change=change, status=RungStatus.FAILED, reason=reason, runs=ids)
    cell = Cell(plan=done[0].plan, records=tuple(done))
    first = [run.outcome.measurement.first_step_s for run in done if isinstance(run.outcome, Completed)]
    found = compared(baseline, runs, request) if runs is not baseline else None
    energies = [cost.joules_per_sample for run in done if isinstance(cost := _energy(run), Cost)]
    return Rung(
        title=title, change=change, status=status, value=value_of(runs, request), step_s=cell.step_s,
        samples_per_step=samples_per_step(done), gain=1.0 if runs is baseline else found.ratio if found else None,
        low=found.low if found else None, high=found.high if found else None, processes=len(done),
        first_step_s=max(first), peak_bytes=cell.memory_bytes,
        joules_per_sample=typical([[each] for each in energies]) if energies else None, runs=ids,
    )  # fmt: skip


def samples_per_step(runs: Sequence[BenchRun]) -> int:
    return next((run.outcome.samples_per_step for run in runs if isinstance(run.outcome, Completed)), 1)


def _figures(run: BenchRun, request: TuningRequest) -> list[float] | Absent:
    assert isinstance(run.outcome, Completed)
    if request.goal is TuningGoal.ENERGY:
        cost = _energy(run)
        return cost if isinstance(cost, Absent) else [cost.joules_per_sample]
    if request.goal is TuningGoal.MEMORY:
        memory = Cell(plan=run.plan, records=(run,)).memory
        return memory if isinstance(memory, Absent) else [float(memory.bytes)]
    measured = run.outcome.measurement
    samples = run.outcome.samples_per_step if request.goal is TuningGoal.THROUGHPUT else 1
    # The first step compiles and captures: over the steps that are planned, a part of each of them.
    extra_s = measured.first_step_s / request.steps_planned if request.steps_planned else 0.0
    return [(block.elapsed_s / block.steps + extra_s) / samples for block in measured.blocks]


def _energy(run: BenchRun) -> Cost | Absent:
    derived = derive(run)
    return derived.energy if derived is not None else Absent(reason="it failed")
