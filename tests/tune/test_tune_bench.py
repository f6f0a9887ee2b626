"""What a tuner knows of time: how long a trial will take, and when it is given up."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest

from metalmark.app import tune_bench
from metalmark.app.tune_bench import TrialBench
from metalmark.model.measurement import BenchRun, Measurement
from metalmark.model.plan import Plan, PlanChange
from metalmark.model.tuning import TuningRequest
from tests import samples

COMPILED = PlanChange(settings={"compile": True})
FUSED = PlanChange(settings={"fused": True})
TIME_S = 100.0


class Trials:
    """Trials that take as long as they are told to, on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.takes_s, self.first_step_s = 0.0, 3.0, 0.1
        self.limits_s: list[float] = []
        monkeypatch.setattr(tune_bench, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def is_known(self, _plan: Plan, *, repeats: int = 1) -> bool:
        assert repeats
        return False

    def measure(self, plans: Sequence[Plan], *, repeats: int = 1) -> list[list[BenchRun]]:
        self.limits_s += [plan.budget.timeout_s for plan in plans]
        self.now_s += self.takes_s * len(plans) * repeats
        measured = msgspec.structs.replace(samples.completed().measurement, first_step_s=self.first_step_s)
        assert isinstance(measured, Measurement)
        return [[samples.record(samples.completed(measurement=measured), plan=plan)] * repeats for plan in plans]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    return Trials(monkeypatch)


def bench_of(trials: Trials) -> TrialBench:
    request = TuningRequest(time_s=TIME_S, repeats=2, seconds=3.0)
    return TrialBench(samples.plan(), request, trials)  # type: ignore[arg-type]


def test_what_compiles_is_expected_to_take_as_long_as_it_took_before(trials: Trials) -> None:
    bench = bench_of(trials)
    bench.measure([PlanChange()])
    assert (bench.usual_s, bench.usual_final_s) == (3.0, 5.0)
    assert bench.has_time(0.1, cost=2.0), "nothing has been compiled yet: twice as long as the baseline"
    trials.takes_s, trials.first_step_s = 43.0, 40.0
    bench.measure([COMPILED])
    assert bench.elapsed_s() == 46.0
    trials.takes_s, trials.first_step_s = 3.0, 0.1
    bench.measure([FUSED])
    assert bench.usual_s == 3.0, "one trial that compiled says nothing of the next"
    assert bench.has_time(0.6)
    assert not bench.has_time(0.9, cost=2.0), "40 s more, which end after 92"
    assert bench.has_time(0.93, cost=2.0)


def test_a_trial_of_the_search_is_given_up_in_time_for_the_finalists(trials: Trials) -> None:
    bench = bench_of(trials)
    trials.takes_s = 10.0
    bench.measure([PlanChange()])
    bench.measure([FUSED])
    trials.takes_s = 30.0
    bench.measure([COMPILED])
    bench.measure([FUSED], final=True)
    assert trials.limits_s == [
        100.0,  # the baseline
        45.0,  # until 55% of the time
        35.0,
        60.0,  # a finalist has what is left, and a minute at least
    ]
    bench.measure([COMPILED])
    assert trials.limits_s[-1] == 2 * bench.usual_s == 60.0, "there is no time left, but what it should take it may"
