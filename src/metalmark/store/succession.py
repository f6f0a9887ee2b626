"""Succession: whether one run is a later state of another, which has its id."""

from msgspec.structs import replace

from metalmark.model.codec import AnyRun
from metalmark.model.explanation import Explained, ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.run import Failed
from metalmark.model.training import Ending, TrainingRun
from metalmark.model.tuning import TuningRun


def continues(later: AnyRun, earlier: AnyRun) -> bool:
    """Return whether the later run can have come of the earlier one by what Metalmark does with a stored run: a
    training or a search that went on, a mark that was given, proposals that were measured. Two runs of which neither
    continues the other were edited, or are not the same run."""
    if type(later) is not type(earlier) or later.id != earlier.id or later.started_at != earlier.started_at:
        return False
    if isinstance(later, TrainingRun) and isinstance(earlier, TrainingRun):
        return _trained_on(later, earlier)
    if isinstance(later, BenchRun) and isinstance(earlier, BenchRun):
        return earlier.parity is None and later.parity is not None and replace(later, parity=None) == earlier
    if isinstance(later, ExplanationRun) and isinstance(earlier, ExplanationRun):
        return _measured(later) > _measured(earlier) and _unmeasured(later) == _unmeasured(earlier)
    if isinstance(later, TuningRun) and isinstance(earlier, TuningRun):
        same = (later.sweep, later.cell, later.plan) == (earlier.sweep, earlier.cell, earlier.plan)
        return same and _searched(later) > _searched(earlier)
    return False


def _trained_on(later: TrainingRun, earlier: TrainingRun) -> bool:
    if later.plan != earlier.plan or later.epochs[: len(earlier.epochs)] != earlier.epochs:
        return False
    return _trained(later) > _trained(earlier)


def _trained(run: TrainingRun) -> tuple[int, int, bool]:
    return len(run.epochs), len(run.sessions), run.ending is not Ending.RUNNING


def _measured(run: ExplanationRun) -> int:
    proposals = run.outcome.proposals if isinstance(run.outcome, Explained) else ()
    return sum(proposal.measured is not None for proposal in proposals)


def _unmeasured(run: ExplanationRun) -> tuple[object, ...]:
    """What measuring the proposals leaves as it is: they may be put in another order."""
    outcome = run.outcome
    if not isinstance(outcome, Explained):
        return run.subject, run.plan, outcome
    titles = sorted(proposal.title for proposal in outcome.proposals)
    return run.subject, run.plan, outcome.step_s, outcome.shares, outcome.experiments, titles


def _searched(run: TuningRun) -> tuple[int, bool]:
    outcome = run.outcome
    return (0, False) if isinstance(outcome, Failed) else (outcome.trials, outcome.complete)
