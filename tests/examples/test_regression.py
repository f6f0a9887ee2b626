"""The example on a table: measured, trained, and gone on with."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import metalmark as mm
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.training import TrainingRun
from tests.processes import ROOT

EXAMPLE = ROOT / "examples" / "regression_csv.py"


@pytest.mark.skipif(not find_spec("torch"), reason="it takes torch")
def test_a_table_is_measured_trained_and_gone_on_with(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
    table = tmp_path / "houses.csv"
    subprocess.run([sys.executable, EXAMPLE, table], check=True)
    workload, store = f"{EXAMPLE}:prices", tmp_path / "store.sqlite3"
    where = {"framework": "torch", "device": "cpu", "store": store, "progress": False, "telemetry": "off"}
    given = {"data": str(table), "target_column": "price"}
    (bench,) = mm.bench(workload, data_from="pipeline", workers=0, prefetch=0, steps=10, **given, **where)
    assert isinstance(bench, BenchRun)
    assert isinstance(bench.outcome, Completed), bench.outcome
    assert bench.outcome.data.startswith("table of 2,000 rows, 4 columns and the target price")
    out = tmp_path / "training"
    (first,) = mm.train(workload, epochs=1, out=out, **given, **where)
    (run,) = mm.train(resume=out, epochs=2, store=store, progress=False)
    assert isinstance(first, TrainingRun)
    assert isinstance(run, TrainingRun)
    assert run.failure is None
    assert run.epochs[:1] == first.epochs
    errors = [epoch.metrics["error"] for epoch in run.epochs]
    assert len(errors) == 2
    assert errors[1] < errors[0]
    assert run.setting is not None
    assert run.setting.task == "regression"
