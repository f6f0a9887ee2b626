"""The examples with a schedule, or a step, of their own: measured, trained in two sessions, and the same as in one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import metalmark as mm
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.training import TrainingRun
from tests.processes import ROOT


@pytest.mark.skipif(not find_spec("torch"), reason="it takes torch")
@pytest.mark.parametrize("name", ["nano_gpt.py:nano_gpt", "gan.py:gan"])
def test_an_example_is_measured_and_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    workload, store = str(ROOT / "examples" / name), tmp_path / "store.sqlite3"
    assert len(Path(workload.rpartition(":")[0]).read_text().splitlines()) < 60
    where = {"framework": "torch", "device": "cpu", "store": store, "progress": False, "telemetry": "off"}
    (bench,) = mm.bench(workload, steps=4, seconds=0.1, **where)
    assert isinstance(bench, BenchRun)
    assert isinstance(bench.outcome, Completed), bench.outcome
    asked = {"limit_samples": 128, "batch_size": 32, **where}
    (whole,) = mm.train(workload, epochs=2, out=tmp_path / "whole", **asked)
    mm.train(workload, epochs=1, out=tmp_path / "parts", **asked)
    (parts,) = mm.train(resume=tmp_path / "parts", epochs=2, store=store, progress=False)
    assert isinstance(whole, TrainingRun)
    assert isinstance(parts, TrainingRun)
    assert len(parts.sessions) == 2
    assert [epoch.losses for epoch in parts.epochs] == [epoch.losses for epoch in whole.epochs]
    assert [epoch.learning_rate for epoch in parts.epochs] == [epoch.learning_rate for epoch in whole.epochs]
    assert parts.epochs[-1].validation_loss == whole.epochs[-1].validation_loss
