"""What is proposed is measured in turn with the baseline: the plans of the sweep, and the gains that its runs show."""

from __future__ import annotations

import msgspec
import pytest

from metalmark.explain.verify import measured_gain, plan_verification, with_gains
from metalmark.model.explanation import Explained, ExplanationRun, Proposal
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Feed, PlanChange
from metalmark.model.run import FailureKind
from tests.samples import completed, explained, explanation_run, failed, plan, record


def proposal(title: str, change: PlanChange | None) -> Proposal:
    return Proposal(title=title, change=change, gain=2.0, reason="it was tried")


def explanation(*proposals: Proposal, **changes: object) -> ExplanationRun:
    return explanation_run(explained(proposals=proposals), plan=plan(), **changes)


def processes(cell: int, *step_s: float, samples: int = 32) -> list[BenchRun]:
    return [
        record(completed(seconds, samples=samples), cell=cell, repeat=repeat) for repeat, seconds in enumerate(step_s)
    ]


FUSED = proposal("fuse the optimiser", PlanChange(settings={"fused": True}))
LARGER = proposal("twice the batch", PlanChange(params={"batch_size": 64}))
WRITTEN = proposal("read the loss less often", None)


def test_the_sweep_has_each_distinct_plan_once_and_every_cell_in_turn() -> None:
    again = proposal("fuse it, in other words", PlanChange(settings={"fused": True}))
    as_it_is = proposal("nothing new", PlanChange(settings={"fused": False}))
    first, second = explanation(FUSED, WRITTEN, LARGER, again, as_it_is), explanation(LARGER)
    planned = plan_verification([first, second], sweep="sweep00009", seconds=0.5, repeats=4, paths={"a": "b"})
    assert planned is not None
    sweep = planned.sweep
    assert (sweep.id, sweep.repeats, sweep.paths, len(sweep.plans)) == ("sweep00009", 4, {"a": "b"}, 3)
    assert [(one.settings.fused, one.params["batch_size"]) for one in sweep.plans] == [
        (False, 32),
        (True, 32),
        (False, 64),
    ]
    assert {one.budget.seconds for one in sweep.plans} == {2.5}, "longer than an experiment"
    assert list(sweep.order())[:4] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    places = [(one.run, one.place, one.baseline, one.changed) for one in planned.trials]
    assert places == [(first.id, 0, 0, 1), (first.id, 2, 0, 2), (first.id, 3, 0, 1), (second.id, 0, 0, 2)]


def test_a_change_of_the_feed_or_the_loader_is_a_change_of_the_plan() -> None:
    resident = proposal("resident batches", PlanChange(feed=Feed.RESIDENT))
    workers = proposal("4 workers", PlanChange(loader={"workers": 4}))
    run = explanation_run(explained(proposals=(workers, resident)))
    planned = plan_verification([run], sweep="sweep00009", seconds=0.5)
    assert planned is not None
    _, more, none = planned.sweep.plans
    assert more.loader is not None
    assert more.loader.workers == 4
    assert (none.feed, none.loader) == (Feed.RESIDENT, None)


def test_nothing_is_measured_where_nothing_can_be_changed() -> None:
    of_a_script = msgspec.structs.replace(explanation(FUSED), plan=None)
    for runs in ([explanation(WRITTEN)], [explanation()], [of_a_script], [explanation_run(failed())], []):
        assert plan_verification(runs, sweep="sweep00009", seconds=0.5) is None


def test_the_gain_is_of_samples_per_second_with_an_interval_over_processes() -> None:
    twice = measured_gain(processes(0, 0.1, 0.101, 0.099), processes(1, 0.05, 0.0505, 0.0495))
    assert twice is not None
    assert twice.gain == pytest.approx(2, rel=0.01)
    assert (twice.baseline_s, twice.changed_s) == (pytest.approx(0.1, rel=0.01), pytest.approx(0.05, rel=0.01))
    assert twice.low is not None
    assert twice.high is not None
    assert twice.low < 2 < twice.high


def test_a_larger_batch_is_compared_by_its_samples() -> None:
    longer = measured_gain(processes(0, 0.1, 0.1, 0.1), processes(1, 0.16, 0.16, 0.16, samples=64))
    assert longer is not None
    assert longer.gain == pytest.approx(1.25)
    assert longer.changed_s == pytest.approx(0.08), "the time of as many samples as the baseline's step has"


def test_what_failed_or_was_not_reached_has_no_gain() -> None:
    run = explanation(FUSED, LARGER, WRITTEN)
    planned = plan_verification([run], sweep="sweep00009", seconds=0.5)
    assert planned is not None
    stopped = record(failed(FailureKind.INTERRUPTED, "Stopped by Ctrl-C."), cell=2)
    (judged,) = with_gains([run], planned, [*processes(0, 0.1, 0.1), record(failed(), cell=1), stopped])
    assert isinstance(judged.outcome, Explained)
    broken, unreached, written = judged.outcome.proposals
    assert broken.measured is not None
    assert (broken.measured.gain, broken.measured.failed) == (None, "no room")
    assert unreached.measured is None
    assert written.measured is None
    assert judged.id == run.id
    (unverified,) = with_gains([run], planned, [record(failed(), cell=0)])
    assert isinstance(unverified.outcome, Explained)
    assert "the baseline failed" in unverified.outcome.notes[-1]
    assert all(each.measured is None for each in unverified.outcome.proposals)
    assert with_gains([run], planned, [])[0].outcome == run.outcome
