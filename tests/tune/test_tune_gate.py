"""The gate of a tuner: at which batch the CPU checks settings."""

from __future__ import annotations

from typing import Any

import pytest

from metalmark.app import tune_gate
from metalmark.app.tune_gate import TuneGate
from metalmark.model.plan import Dtype, Plan, Settings
from metalmark.model.run import Run, Software
from metalmark.parity.examine import Examined
from tests import samples


class Kept:
    """Keeps runs, and no more."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(self, run: Run) -> None:
        self.runs.append(run)

    put = add


@pytest.mark.parametrize(
    ("reference_s", "batch"),
    [pytest.param(3.0, 32, id="the whole batch"), pytest.param(1.0, 8, id="a part"), pytest.param(0.0, 2, id="least")],
)
def test_the_batch_of_a_check_depends_on_the_searchs_time_and_not_on_what_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch, reference_s: float, batch: int
) -> None:
    asked: list[object] = []

    def examine(plan: Plan, _reference: Plan, **_: Any) -> Examined:
        asked.append(plan.params["batch_size"])
        return Examined(outcome=samples.failed(), software=Software(metalmark="0.1.0", python="3.11.7"))

    monkeypatch.setattr(tune_gate, "examine_twice", examine)
    for left_s in (5.0, 500.0):
        kept = Kept()
        # A step of 32 samples takes a tenth of a second, and a check about 25 of them.
        gate = TuneGate(samples.record(), sweep="sweep00001", store=kept, paths={}, reference_s=reference_s)
        verdict = gate.check(samples.plan(settings=Settings(dtype=Dtype.BFLOAT16)), seconds=left_s, listeners=())
        assert any(f"at a batch of {batch}," in note for note in verdict.notes) == (batch < 32)
        assert len(kept.runs) == 2
    assert asked == [batch, 32] * 2  # the second of each is the loss curve, at the full batch
