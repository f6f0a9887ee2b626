"""Several real processes train the same network as one does, in every framework, and go on where they were stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.model.training import RankEpoch, TrainingRun
from metalmark.training.folder import read_record
from tests.conftest import Cli

SAMPLES = {"jax": 64}
"""Of an epoch. 73: its last batch has 9 samples, which two processes can't split equally. JAX, which compiles for each
size of a batch, has none."""

SMALL = ("--data", "synthetic", "--batch-size", 32, "--telemetry", "off", "-q")


def trained(cli: Cli, out: Path, *words: object) -> TrainingRun:
    done = cli("train", *words, *([] if "--resume" in str(words) else ["--out", out]))
    assert done.returncode == 0, done.stderr
    return read_record(out)


def losses(run: TrainingRun) -> np.ndarray:
    return np.array([loss for epoch in run.epochs for loss in epoch.losses])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", [framework.name for framework in visible()])
def test_two_processes_train_the_network_that_one_trains(cli: Cli, tmp_path: Path, framework: str) -> None:
    if missing := FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
    samples, epochs = SAMPLES.get(framework, 73), 2 if framework in ("torch", "mlx") else 1
    words = ("mnist-mlp", "-f", framework, "-d", "cpu", "--epochs", epochs, *SMALL, "--limit-samples", samples)
    # One epoch and the next of another session: checkpoints of several processes can be gone on with.
    resumed = framework == "torch"
    one = trained(cli, tmp_path / "one", *words)
    two = trained(cli, tmp_path / "two", *words, "--nproc", 2, *(["--epochs", 1] if resumed else []))
    if resumed:
        two = trained(cli, tmp_path / "two", f"--resume={tmp_path / 'two'}", "--epochs", 2, "-q")
    assert two.plan.processes == 2
    assert len(losses(one)) == len(losses(two)) == epochs * -(-samples // 32)
    # float32 sums of other parts, in another order.
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-4)
    last, alone = two.epochs[-1], one.epochs[-1]
    assert last.samples == alone.samples == samples
    assert last.accuracy == alone.accuracy
    assert last.validation_loss == pytest.approx(alone.validation_loss, rel=1e-4)
    assert isinstance(last.ranks, tuple)
    assert [rank.number for rank in last.ranks] == [0, 1]
    assert all(isinstance(rank, RankEpoch) and rank.compute_s > 0 for rank in last.ranks)
    assert last.compute_s == last.ranks[0].compute_s
    assert "ranks" not in json.loads((tmp_path / "one" / "record.json").read_bytes())["epochs"][0]
