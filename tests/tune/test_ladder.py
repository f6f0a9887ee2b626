"""What each setting gained on the way to the best, by the runs that measured it."""

from __future__ import annotations

import pytest

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import PlanChange
from metalmark.model.tuning import RungStatus, TuningRequest
from metalmark.tune.ladder import TriedSettings, ladder_of
from tests import samples

HALF = PlanChange(settings={"dtype": "bfloat16"})
BOTH = PlanChange(settings={"dtype": "bfloat16", "threads": 1})
BEST = PlanChange(settings={"dtype": "bfloat16", "threads": 1}, params={"batch_size": 64})


def measured(*steps_s: float) -> tuple[BenchRun, ...]:
    return tuple(samples.record(samples.completed(step_s), repeat=number) for number, step_s in enumerate(steps_s))


def test_a_disturbance_of_the_baselines_first_process_is_in_no_gain() -> None:
    tried = [
        TriedSettings(change=PlanChange(), short=measured(0.200), final=measured(0.016, 0.016)),
        TriedSettings(change=HALF, short=measured(0.020)),
        TriedSettings(change=BOTH, short=measured(0.008)),
        TriedSettings(change=BEST, short=measured(0.001), final=measured(0.004, 0.004)),
        TriedSettings(change=PlanChange(settings={"fused": True}), short=measured(0.032)),
    ]
    ladder, others = ladder_of(tried, [PlanChange(), BOTH, BEST], TuningRequest(), {})
    assert [rung.title for rung in ladder] == ["baseline", "+ bfloat16 + threads 1", "+ batch 64"]
    assert [rung.gain for rung in ladder] == [1.0, pytest.approx(2.0), pytest.approx(4.0)]
    assert [rung.status for rung in ladder] == [RungStatus.BASELINE, RungStatus.ON_THE_WAY, RungStatus.BEST]
    assert [rung.low is None for rung in ladder] == [True, True, False], "one process tells no interval"
    assert [rung.gain for rung in others] == [pytest.approx(0.8), pytest.approx(0.5)]


def test_before_the_finals_all_are_compared_with_the_short_baseline() -> None:
    tried = [
        TriedSettings(change=PlanChange(), short=measured(0.016)),
        TriedSettings(change=HALF, short=measured(0.008)),
    ]
    ladder, _ = ladder_of(tried, [PlanChange(), HALF], TuningRequest(), {})
    assert [rung.gain for rung in ladder] == [1.0, pytest.approx(2.0)]
