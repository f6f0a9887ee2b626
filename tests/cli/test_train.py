"""`metalmark train` as a user runs it: real frameworks on small files, resumed, stopped, broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import load_file

from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.model.training import Ending, TrainingRun
from metalmark.training.folder import read_record
from tests import processes
from tests.conftest import ROOT, Cli
from tests.data.files import cifar_files, write_files
from tests.processes import heed_ctrl_c
from tests.training.files import write_learnable_idx

NET = "tests/training/net.py:net"
KILLED = ("torch", "tensorflow")
"""Frameworks whose training is killed and resumed; of the others, two whole runs are compared."""
ABSENT = "cuda" if sys.platform == "darwin" else "mps"
"""A device that no machine of this system has."""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_learnable_idx(tmp_path / "idx")


@pytest.fixture
def start(store_file: Path) -> Start:
    """The command in the background, in a process group as a terminal gives it one."""

    def begin(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "metalmark", "train", *map(str, arguments)],
            env={**os.environ, "METALMARK_STORE": str(store_file)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,
        )

    return begin


def one_thread(framework: str) -> list[str]:
    return ["-f", framework, "-d", "cpu", *(["--threads", "1"] if framework == "torch" else [])]


def require(framework: str) -> None:
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")


def losses(record: TrainingRun) -> list[tuple[float, ...]]:
    return [epoch.losses for epoch in record.epochs]


def alike(one: Path, two: Path) -> None:
    """The same curve and the same weights, to the last bit."""
    assert losses(read_record(one)) == losses(read_record(two))
    first, second = (load_file(out / "last.safetensors") for out in (one, two))
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize("framework", [framework.name for framework in visible() if framework.name not in KILLED])
def test_two_runs_of_a_seed_are_alike_to_the_last_bit(cli: Cli, data: Path, tmp_path: Path, framework: str) -> None:
    require(framework)
    for out in ("one", "two"):
        words = ("train", NET, "--data", data, *one_thread(framework), "--epochs", 2, "--seed", 7, "-o", tmp_path / out)
        # The second process need not compile the step anew.
        run = cli(*words, JAX_COMPILATION_CACHE_DIR=str(tmp_path), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
        assert run.returncode == 0, run.stderr
    assert len(read_record(tmp_path / "one").epochs) == 2
    alike(tmp_path / "one", tmp_path / "two")


def test_a_training_from_start_to_end(cli: Cli, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = cli("train", "mnist-mlp", "--data", data, *one_thread("torch"), "--epochs", 3, "--out", out)
    assert run.returncode == 0, run.stderr
    assert "samples/s" in run.stdout
    assert "3 epochs in" in run.stdout
    assert "200 samples to train, 70 others to validate" in run.stdout
    assert "[3/3] loss" in run.stderr
    assert str(out) in run.stderr
    record = read_record(out)
    assert record.ending is Ending.EPOCHS
    assert [epoch.number for epoch in record.epochs] == [1, 2, 3]
    assert [epoch.steps for epoch in record.epochs] == [7, 7, 7]
    assert record.setting is not None
    assert record.setting.trainable_parameters == 784 * 128 + 128 + 128 * 10 + 10
    (session,) = record.sessions
    assert "torch" in session.software.versions
    assert {series.name for series in session.telemetry.series} >= {"process_cpu"}
    assert session.machine.chip
    assert str(tmp_path) not in (out / "record.json").read_text()
    assert set(load_file(out / "best.safetensors")) >= {"model.0.weight", "optimizer.state.0.exp_avg", "random.cpu"}
    assert cli("train", "mnist-mlp", "--out", out).returncode == 2


def test_an_image_workload(cli: Cli, tmp_path: Path) -> None:
    cifar = write_files(tmp_path / "cifar-10-batches-bin", cifar_files(binary=True))
    run = cli("train", "mobilenet-cifar10", "--data", cifar, *one_thread("torch"), "--epochs", 1, "--pixels", 32,
              "--batch-size", 8, "--workers", 2, "-o", tmp_path / "out")  # fmt: skip
    assert run.returncode == 0, run.stderr
    (epoch,) = read_record(tmp_path / "out").epochs
    assert (epoch.samples, epoch.validation_samples) == (20, 4)
    assert epoch.learning_rate < 5e-4


@pytest.mark.parametrize("framework", KILLED)
def test_after_kill_9_it_goes_on_as_a_run_of_the_same_seed_that_was_not_killed(
    cli: Cli, start: Start, data: Path, tmp_path: Path, framework: str
) -> None:
    require(framework)
    out, common = tmp_path / "out", (NET, "--data", data, *one_thread(framework), "--seed", 7)
    # With PyTorch it dies in the middle of an epoch, and goes on there.
    every = ["--checkpoint-every", "1steps"] if framework == "torch" else []
    running = start(*common, "--epochs", 100_000, *every, "-o", out)
    assert running.stderr is not None
    assert "[1/100000]" in running.stderr.readline()
    running.kill()
    running.communicate(timeout=60)
    killed = read_record(out)
    assert killed.ending is Ending.RUNNING
    wait_for_silence(out)
    idle = framework == "torch"
    if idle:  # a session that finds nothing left to do, which is the same in every framework
        resumed = cli("train", "--resume", "-o", out, "--epochs", 1)
        assert resumed.returncode == 0, resumed.stderr
    done = len(read_record(out).epochs)
    epochs = done + 2
    resumed = cli("train", f"--resume={out}", "--epochs", epochs)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{done} of {epochs} epochs are done" in resumed.stderr
    whole = cli("train", *common, "--epochs", epochs, "-o", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    alike(out, tmp_path / "whole")
    record = read_record(out)
    assert [epoch.session for epoch in record.epochs] == [0] * done + [1 + idle] * 2
    assert len(record.sessions) == 2 + idle


def wait_for_silence(out: Path) -> None:
    """The worker sees that its parent is gone, and goes too: then the checkpoint changes no more."""
    before, deadline = -1.0, time.monotonic() + 30
    while time.monotonic() < deadline:
        now = (out / "last.safetensors").stat().st_mtime
        if now == before:
            return
        before = now
        time.sleep(1)
    pytest.fail("the worker outlives its parent")


def test_ctrl_c_says_how_to_go_on(cli: Cli, start: Start, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out put"
    running = start(NET, "--data", data, *one_thread("torch"), "--epochs", 100_000, "-o", out)
    assert running.stderr is not None
    running.stderr.readline()
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert f"resume with: metalmark train --resume='{out}'" in stderr
    assert "Traceback" not in stderr
    assert "Interrupted" in stdout
    record = read_record(out)
    assert record.ending is Ending.INTERRUPTED
    assert cli("train", f"--resume={out}", "--epochs", len(record.epochs) + 1).returncode == 0


def test_a_nan_stops_it_with_the_step(cli: Cli, data: Path, tmp_path: Path) -> None:
    # 25 steps an epoch.
    run = cli("train", NET, "--data", data, *one_thread("torch"), "--nan-at", 30, "-o", tmp_path / "out")
    assert run.returncode == 1
    assert "The training loss is nan at step 30 (epoch 2, step 5 of 25)" in run.stderr
    assert "Look at: the learning rate" in run.stderr
    assert "Traceback" not in run.stderr
    record = read_record(tmp_path / "out")
    assert record.ending is Ending.FAILED
    assert len(record.epochs) == 1


SLEEPER = """
import sys
from types import SimpleNamespace
from metalmark.machine import awake, sleep
slept = iter((0.0, 340.0))
sleep.asleep_s = lambda: next(slept)
awake.CAFFEINATE, awake.sys = "/nowhere/caffeinate", SimpleNamespace(platform="darwin")
from metalmark.cli import main
sys.argv = ["metalmark", "train", *sys.argv[1:]]
main()
"""


def test_a_machine_that_slept_is_told_and_recorded(data: Path, tmp_path: Path, store_file: Path) -> None:
    arguments = [NET, "--data", data, *one_thread("torch"), "--epochs", 1, "-o", tmp_path / "out"]
    run = processes.run([sys.executable, "-c", SLEEPER, *map(str, arguments)], METALMARK_STORE=str(store_file))
    assert run.returncode == 0, run.stderr
    assert "slept: the machine slept for 340 s while it was measured" in run.stderr
    record = read_record(tmp_path / "out")
    (session,) = record.sessions
    assert session.telemetry.slept_s == 340.0
    assert record.setting is not None
    assert any("Nothing keeps this Mac awake" in note for note in record.setting.notes)


def test_the_target_ends_it_and_the_time_is_told(cli: Cli, data: Path, tmp_path: Path) -> None:
    common = ("mnist-mlp", "--data", data, *one_thread("torch"))
    run = cli("train", *common, "--epochs", 60, "--target-accuracy", 80, "-o", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    record = read_record(tmp_path / "out")
    assert record.ending is Ending.TARGET
    assert record.epochs[-1].accuracy >= 0.8
    assert all(epoch.accuracy < 0.8 for epoch in record.epochs[:-1])
    assert f"The target of 80.00% was reached in epoch {len(record.epochs)}, after" in run.stdout


REGRESSION = """
import numpy as np
from metalmark import Batch, Param, Recipe, Workload

def data(params):
    inputs = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
    return inputs, inputs.sum(axis=1, keepdims=True)

def build(params):
    import torch
    return Recipe(model=torch.nn.Linear(3, 1), loss=torch.nn.functional.mse_loss,
                  optimizer=lambda parameters: torch.optim.SGD(parameters, lr=params["rate"]),
                  metrics={"near": lambda outputs, targets: float((abs(outputs - targets) < 0.5).mean())})

line = Workload(name="line", title="a line", params=(Param("batch_size", 8), Param("rate", 0.05)),
                build={"torch": build}, batch=lambda params, rng: Batch(inputs=None), data=data)
"""


def test_a_regression_with_a_metric_of_the_users_own(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "line.py").write_text(REGRESSION)
    out = tmp_path / "out"
    run = cli("train", f"{tmp_path / 'line.py'}:line", *one_thread("torch"), "--limit-samples", 120, "--epochs", 20,
              "--target", "near=95%", "-o", out)  # fmt: skip
    assert run.returncode == 0, run.stderr
    record = read_record(out)
    assert record.ending is Ending.TARGET
    assert {epoch.samples for epoch in record.epochs} == {120}
    assert record.epochs[-1].metrics.keys() == {"mae", "rmse", "r2", "near"}
    assert [epoch.metrics["near"] >= 0.95 for epoch in record.epochs].index(True) == len(record.epochs) - 1
    assert "Task: regression." in run.stdout
    assert f"The target of near 0.95 was reached in epoch {len(record.epochs)}, after" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Which workload?"),
        (["mnist-mpl"], "did you mean"),
        (["mnist-mlp", "conv256"], "One workload at a time"),
        (["mnist-mlp", "-f", "fake"], "no implementation for fake"),
        (["vgg16-flowers", "-f", "mlx"], "no implementation for mlx"),
        (["mnist-mlp", "--batch-size", "8,16"], "one value for each parameter"),
        (["mnist-mlp", "--dtype", "float32,bfloat16"], "one value for each setting"),
        (["mnist-mlp", "--target-accuracy", "101"], "share (0.86) or a percentage"),
        (["mnist-mlp", "--target", "val_loss"], "--target takes NAME=VALUE"),
        (["--resume=src", "--limit-steps", "3"], "--limit-steps can't change when a training is resumed"),
        (["mnist-mlp", "-f", "torch", "--monitor", "f1"], "It has: accuracy, top5, train_loss, val_loss"),
        (["mnist-mlp", "--epochs", "0"], "0 is not in the range"),
        (["mnist-mlp", "--data", "nowhere"], "no file or folder nowhere"),
        (["mnist-mlp", "--epoch-count", "3"], "no parameter --epoch-count"),
        (["conv256", "-f", "torch"], "conv256 has no data set"),
        (["mnist-mlp", "-f", "torch", "--data", "src"], "which mnist is not read from"),
        (["mnist-mlp", "-f", "torch", "-d", ABSENT], f"PyTorch has no {ABSENT} here"),
        (["--resume=nowhere"], "holds no training"),
        (["--resume"], "no training to go on with"),
        (["mnist-mlp", "--resume"], "takes no workload"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(inside: Cli, store_file: Path, arguments: list[str], said: str) -> None:
    run = inside("train", *arguments)
    assert run.returncode == 2, run.stdout + run.stderr
    assert said in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(store_file.parent.glob("trainings/*")), "it leaves a folder"


def test_json_is_the_record_and_a_damaged_folder_is_named(cli: Cli, data: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run = cli("train", NET, "--data", data, *one_thread("torch"), "--epochs", 1, "-o", whole, "-q", "--json")
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert msgspec.json.decode(run.stdout, type=TrainingRun) == read_record(whole)
    assert json.loads(run.stdout)["schema"] == 2
    for file in ("job.json", "record.json", "last.safetensors"):
        out = shutil.copytree(whole, tmp_path / file.partition(".")[0])
        (out / file).write_bytes((out / file).read_bytes()[:50])
        run = cli("train", f"--resume={out}", "--epochs", 2)
        assert run.returncode == 2, run.stderr
        assert f"{file} is damaged" in run.stderr
        assert "Traceback" not in run.stderr
