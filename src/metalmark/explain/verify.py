"""Do what is proposed and measure it: the baseline and every change in turn, as cells of one sweep of the ordinary
bench, compared by the statistics of `metalmark compare`."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from metalmark.model.explanation import Explained, ExplanationRun, MeasuredGain, Proposal
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Plan, Sweep
from metalmark.model.run import Failed, FailureKind, now_utc
from metalmark.stats.difference import difference, typical

REPEATS = 3
"""The fewest processes per cell from which an interval says something."""
TIMES_AN_EXPERIMENT = 5.0
"""A process of the bench measures so many times as long as one experiment of the explanation did."""


class ProposalTrial(Struct, frozen=True, kw_only=True):
    """A proposal, and the cells that measure what it changes and what it is compared with."""

    run: str
    """The id of its explanation."""
    place: int
    """Which of the explanation's proposals it is."""
    baseline: int
    changed: int


class Verification(Struct, frozen=True, kw_only=True):
    sweep: Sweep
    trials: tuple[ProposalTrial, ...]


def plan_verification(
    runs: Iterable[ExplanationRun],
    *,
    sweep: str,
    seconds: float,
    repeats: int = REPEATS,
    paths: dict[str, str] | None = None,
) -> Verification | None:
    """Return what has to be measured; None where nothing is proposed that Metalmark can do itself. `seconds`: how long
    an experiment was timed."""
    plans: list[Plan] = []
    trials: list[ProposalTrial] = []

    def cell_of(plan: Plan) -> int:
        if plan not in plans:
            plans.append(plan)
        return plans.index(plan)

    for run in runs:
        if run.plan is None or not isinstance(run.outcome, Explained):
            continue
        budget = msgspec.structs.replace(run.plan.budget, seconds=seconds * TIMES_AN_EXPERIMENT)
        baseline = msgspec.structs.replace(run.plan, budget=budget)
        for place, proposal in enumerate(run.outcome.proposals):
            changed = baseline if proposal.change is None else proposal.change.applied(baseline)
            if changed != baseline:
                trial = ProposalTrial(run=run.id, place=place, baseline=cell_of(baseline), changed=cell_of(changed))
                trials.append(trial)
    if not trials:
        return None
    # Every cell once, then every cell again: what slows the machine for a while slows all of them.
    made = Sweep(id=sweep, created_at=now_utc(), plans=tuple(plans), repeats=repeats, paths=paths or {})
    return Verification(sweep=made, trials=tuple(trials))


def with_gains(
    runs: Iterable[ExplanationRun], verification: Verification, measured: Sequence[BenchRun]
) -> list[ExplanationRun]:
    """Return the explanations with what was measured of each proposal; one that was not reached stays as it is."""
    cells: dict[int, list[BenchRun]] = {}
    for bench in measured:
        cells.setdefault(bench.cell, []).append(bench)
    return [_with_gains(run, [one for one in verification.trials if one.run == run.id], cells) for run in runs]


def measured_gain(baseline: Sequence[BenchRun], changed: Sequence[BenchRun]) -> MeasuredGain | None:
    """Compare the processes of two cells by their time per sample. None: one of them has not been measured."""
    ours, theirs = _times_per_sample(baseline), _times_per_sample(changed)
    if not ours:
        return None
    samples = _completed(baseline)[0].samples_per_step
    baseline_s = typical(ours) * samples
    failure = failure_of(changed)
    if failure is not None:
        return MeasuredGain(baseline_s=baseline_s, changed_s=None, gain=None, failed=failure.message)
    if not theirs:
        return None
    found = difference(ours, theirs)
    return MeasuredGain(
        baseline_s=baseline_s, changed_s=typical(theirs) * samples, gain=found.ratio, low=found.low, high=found.high
    )


def failure_of(runs: Sequence[BenchRun]) -> Failed | None:
    """Return why a cell could not be measured; that Ctrl-C ended it says nothing about the change."""
    failures = [run.outcome for run in runs if isinstance(run.outcome, Failed)]
    return next((each for each in failures if each.kind is not FailureKind.INTERRUPTED), None)


def _with_gains(
    run: ExplanationRun, trials: Sequence[ProposalTrial], cells: dict[int, list[BenchRun]]
) -> ExplanationRun:
    outcome = run.outcome
    if not trials or not isinstance(outcome, Explained):
        return run
    proposals: list[Proposal] = list(outcome.proposals)
    for trial in trials:
        gain = measured_gain(cells.get(trial.baseline, []), cells.get(trial.changed, []))
        proposals[trial.place] = msgspec.structs.replace(proposals[trial.place], measured=gain)
    notes = outcome.notes
    failure = failure_of(cells.get(trials[0].baseline, []))
    if failure is not None:
        notes = (
            *notes,
            f"Nothing could be verified, since the baseline failed when it was measured: {failure.message}",
        )
    explained = msgspec.structs.replace(outcome, proposals=tuple(proposals), notes=notes)
    return msgspec.structs.replace(run, outcome=explained)


def _completed(runs: Sequence[BenchRun]) -> list[Completed]:
    return [run.outcome for run in runs if isinstance(run.outcome, Completed)]


def _times_per_sample(runs: Sequence[BenchRun]) -> list[list[float]]:
    """Return a list for each process: of each of its blocks, the seconds per sample."""
    return [
        [block.elapsed_s / block.steps / done.samples_per_step for block in done.measurement.blocks]
        for done in _completed(runs)
    ]
