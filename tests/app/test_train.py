"""`mm.train` on several frameworks and seeds, as the store and `mm.compare` see it. A session here trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import metalmark as mm
from metalmark.app import train as use_case
from metalmark.backends.catalog import Framework
from metalmark.model.run import FailureKind
from metalmark.model.training import Ending, TrainingRun
from metalmark.runner.events import Ended, Listener
from metalmark.store.store import Store
from metalmark.training.folder import Request, write_record
from tests.samples import epoch, failed, training_run, training_session

ACCURACIES = {("torch", 0): 0.81, ("torch", 1): 0.83, ("jax", 0): 0.61, ("jax", 1): 0.63}
SETTING = training_run().setting


def session(
    request: Request, run: TrainingRun, folder: Path, *, listeners: Sequence[Listener], **_: object
) -> TrainingRun:
    """Ends at once. MLX has no room for it; made-up samples are others for each seed."""
    plan, sessions = request.plan, (training_session(),)
    if plan.framework == "mlx":
        why = failed(FailureKind.OUT_OF_MEMORY)
        run = msgspec.structs.replace(run, ending=Ending.FAILED, failure=why, sessions=sessions)
    else:
        assert SETTING is not None
        setting = msgspec.structs.replace(SETTING, data_digest=f"{plan.seed}" * 64)
        epochs = (epoch(1, ACCURACIES[plan.framework, plan.seed]),)
        run = msgspec.structs.replace(run, ending=Ending.EPOCHS, setting=setting, epochs=epochs, sessions=sessions)
    write_record(folder, run)
    for listener in listeners:
        listener(Ended(run=run))
    return run


@pytest.fixture(autouse=True)
def trains_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_case, "train_session", session)
    monkeypatch.setattr(Framework, "missing", lambda _: ())


def test_a_repeat_that_is_left_out_is_in_the_store_as_failed(store_file: Path) -> None:
    runs = mm.train(
        "mnist-mlp", framework="mlx,torch", device="cpu", epochs=1, repeat=2, store=store_file, progress=False
    )
    assert [run.header.ending for run in runs] == ["out of memory", "all epochs done"] * 2
    with Store(store_file, readonly=True) as store:
        listed = {row.id: row.ending for row in store.rows()}
    assert listed == {run.id: run.header.ending for run in runs}
    assert str(mm.runs(store=store_file)).count("out of memory") == 2


def test_repeats_on_made_up_samples_are_compared_by_framework(store_file: Path) -> None:
    mm.train("mnist-mlp", framework="torch,jax", device="cpu", epochs=1, repeat=2, store=store_file, progress=False)
    compared = mm.compare("last", by="framework", store=store_file)
    assert not compared.refused
    (row,) = compared.to_dicts()
    assert (row["a_runs"], row["b_runs"]) == (2, 2)
    assert "less accurate" in str(compared)
    assert "compared with the same seed" in str(compared)
