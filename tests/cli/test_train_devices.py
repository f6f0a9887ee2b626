"""`metalmark train --device cpu,gpu` and `--framework torch,mlx`: several trainings, stopped, resumed, compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.codec import decode_export
from metalmark.model.training import Ending, TrainingRun
from metalmark.store.store import Store
from metalmark.training.folder import read_record
from metalmark.training.lineup import read_lineup
from tests import processes
from tests.processes import ROOT, heed_ctrl_c, metalmark
from tests.training.files import write_learnable_idx

NET = "tests/training/net.py:net"
Run = Callable[..., subprocess.CompletedProcess[str]]

FAST = next((name for name in ("mlx", "torch") if not FRAMEWORKS[name].missing()), "")
"""The one that is imported soonest: what is tested here is the same for all."""
pytestmark = pytest.mark.skipif(not FAST, reason="neither mlx nor torch is installed")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return processes.run(metalmark(*arguments), METALMARK_STORE=str(home / "store.sqlite3"))

    return call


@pytest.fixture(scope="module")
def data(home: Path) -> Path:
    return write_learnable_idx(home / "idx", train=64, validation=20)


@pytest.fixture(scope="module")
def trained(run: Run, data: Path, home: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two devices that are there, and one that no Linux machine and no Mac has beside them."""
    absent = "mps" if sys.platform != "darwin" else "cuda"
    out = home / "three devices"
    done = run("train", "mnist-mlp", "--data", data, "-f", FAST, "-d", f"cpu,{absent},any", "--epochs", 2, "-o", out)
    assert done.returncode == 0, done.stderr
    return out, done


def test_one_table_with_a_row_for_the_absent(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = trained
    names = read_lineup(out).members
    assert [name.partition("-")[2] for name in names] in (["cpu", "mps", "any"], ["cpu", "cuda", "any"])
    records = [read_record(out / name) for name in names]
    assert [record.ending for record in records] == [Ending.EPOCHS, Ending.FAILED, Ending.EPOCHS]
    assert records[1].failure is not None
    assert records[1].failure.message in done.stdout
    # Known before the first of them began.
    assert done.stderr.index("can't be trained") < done.stderr.index("[1/2] loss")
    for part in ("best accuracy", "input", "compute", "validation", "samples/s", "memory", "2 of 2", "unsupported"):
        assert part in done.stdout
    assert "validation accuracy over epochs" in done.stdout
    assert f"{FAST} any → " in done.stdout
    assert str(out) in done.stderr
    assert "Traceback" not in done.stderr


def test_resuming_what_is_whole_trains_nothing_and_json_has_all(
    run: Run, trained: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    out, _ = trained
    done = run("train", f"--resume={out}", "--json")
    assert done.returncode == 0, done.stderr
    records = msgspec.json.decode(done.stdout, type=list[TrainingRun])
    assert [str(record.plan.device) for record in records][::2] == ["cpu", "any"]
    assert [len(record.sessions) for record in records] == [1, 0, 1]
    assert "all epochs done" in done.stderr
    # One of them by itself is still one of them.
    alone = run("train", f"--resume={out / f'{FAST}-cpu'}", "-q")
    assert alone.returncode == 0, alone.stderr
    assert f"three devices/{FAST}-cpu\n" in run("runs", "list").stdout


def test_a_folder_is_not_written_to_twice(
    run: Run, data: Path, trained: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    out, _ = trained
    for device in ("cpu", "cpu,any"):
        done = run("train", "mnist-mlp", "--data", data, "-f", FAST, "-d", device, "-o", out)
        assert done.returncode == 2
        assert "holds a training already" in done.stderr


def test_they_are_listed_shown_and_deleted(run: Run, trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = trained
    listed = run("runs", "list").stdout
    assert listed.count(f"three devices/{FAST}-") == 3
    entries = [one for one in json.loads(run("runs", "list", "--json").stdout) if one["kind"] == "training"]
    assert [one["epochs"] for one in entries if one["names"][0].startswith("three")] == [2, 0, 2]
    first = next(one for one in entries if one["names"] == [f"three devices/{FAST}-cpu"])
    shown = run("runs", "show", first["id"][:8])
    assert shown.returncode == 0, shown.stderr
    assert "train loss" in shown.stdout
    assert f"{FAST} any → " in run("runs", "show", "three devices").stdout
    assert len(decode_export(run("runs", "show", "three devices", "--json").stdout.encode(), source="stdout")) == 3
    refused = run("runs", "show", first["id"], "--csv")
    assert refused.returncode == 2
    assert "--csv has one line per cell of a bench" in refused.stderr
    assert "1 run." in run("runs", "delete", first["id"]).stderr
    gone = run("runs", "delete", first["id"], "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "is your own folder and was left" in gone.stderr
    assert read_record(out / f"{FAST}-cpu").id == first["id"]
    assert first["id"] not in run("runs", "list").stdout


def test_ctrl_c_keeps_what_ended_and_resume_goes_on(run: Run, data: Path, home: Path) -> None:
    out = home / "stopped"
    arguments = ("train", "mnist-mlp", "--data", data, "-f", FAST, "-d", "cpu,any", "--epochs", 100_000, "-o", out)
    running = subprocess.Popen(
        metalmark(*arguments),
        env={**os.environ, "METALMARK_STORE": str(home / "store.sqlite3")},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    assert running.stderr is not None
    assert f"[1 of 2] {FAST} on cpu" in running.stderr.readline()
    running.stderr.readline()
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert f"resume with: metalmark train --resume={out}" in stderr
    assert "interrupted" in stdout
    assert "not begun" in stdout
    assert "Traceback" not in stderr
    epochs = len(read_record(out / f"{FAST}-cpu").epochs) + 1
    resumed = run("train", "--resume=stopped", "--epochs", epochs)
    assert resumed.returncode == 0, resumed.stderr
    first, second = (read_record(out / name) for name in (f"{FAST}-cpu", f"{FAST}-any"))
    assert (len(first.epochs), len(second.epochs)) == (epochs, epochs)
    assert (len(first.sessions), len(second.sessions)) == (2, 1)
    # The same seed on the same device: resumed or not, the same bits.
    if second.setting is not None and second.setting.placed_on.startswith("cpu"):
        assert [epoch.losses for epoch in first.epochs] == [epoch.losses for epoch in second.epochs]


def test_repeats_stay_beside_their_store_and_are_compared(data: Path, tmp_path: Path) -> None:
    """`--store` is the one place: neither METALMARK_STORE nor the home folder gets anything."""
    (tmp_path / "home").mkdir()
    elsewhere = {"METALMARK_STORE": str(tmp_path / "elsewhere" / "s.sqlite3"), "HOME": str(tmp_path / "home")}

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return processes.run(metalmark(*arguments, "--store", tmp_path / "here" / "s.sqlite3"), **elsewhere)

    arguments = ("mnist-mlp", "--data", data, "-f", FAST, "-d", "cpu,any", "--repeat", 2, "--seed", 5, "--epochs", 1)
    done = call("train", *arguments)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["here"]
    assert not [path for path in (tmp_path / "home").rglob("*") if "metalmark" in path.name]
    (folder,) = (tmp_path / "here" / "trainings").iterdir()
    # Every cell once, then again with the next seed.
    names = [f"{FAST}-cpu", f"{FAST}-any", f"{FAST}-cpu-repeat2", f"{FAST}-any-repeat2"]
    assert list(read_lineup(folder).members) == names
    assert [read_record(folder / name).plan.seed for name in names] == [5, 5, 6, 6]
    assert str(folder) in done.stderr
    compared = call("compare", "last", "--by", "device")
    assert compared.returncode == 0, compared.stderr
    assert "best accuracy" in compared.stdout
    assert any(verdict in compared.stdout for verdict in ("can't tell", "same", "better", "worse", "faster", "slower"))
    assert "over seeds (2 and 2)" in compared.stdout
    assert call("runs", "show", "last").stdout.count("seed 6") >= 2
    deleted = call("runs", "delete", "last", "--yes")
    assert "4 runs deleted" in deleted.stderr
    assert not list((tmp_path / "here" / "trainings").iterdir())


def test_one_that_breaks_costs_the_others_nothing(run: Run, data: Path, home: Path) -> None:
    if FRAMEWORKS["mlx"].missing() or FRAMEWORKS["torch"].missing():
        pytest.skip("it takes mlx and torch")
    out = home / "broken"
    done = run("train", NET, "--data", data, "-f", "torch,mlx", "-d", "cpu", "--nan-at", 3, "--epochs", 1, "-o", out)
    assert done.returncode == 1, done.stderr
    assert "wrong result" in done.stdout
    assert "The training loss is nan at step 3" in done.stdout
    assert read_record(out / "torch-cpu").ending is Ending.FAILED
    assert read_record(out / "mlx-cpu").ending is Ending.EPOCHS
    # A failure is a result: it is not tried again, and the exit code stays.
    again = run("train", f"--resume={out}")
    assert again.returncode == 1
    assert len(read_record(out / "torch-cpu").sessions) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "torch,toch"], "no framework 'toch'"),
        (["-f", "torch,fake"], "no implementation for fake"),
        (["-f", "torch", "-d", "cpu,npu"], "no device 'npu'"),
        (["-f", "torch", "-d", "cpu,"], "empty value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_words_leave_nothing(run: Run, home: Path, arguments: list[str], said: str) -> None:
    done = run("train", "mnist-mlp", *arguments)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(home.glob("trainings/*"))


def test_where_none_is_possible_nothing_is_left(run: Run, data: Path, home: Path) -> None:
    words = "mps,mps:1" if sys.platform != "darwin" else "cuda,cuda:1"
    done = run("train", "mnist-mlp", "--data", data, "-f", FAST, "-d", words)
    assert done.returncode == 2, done.stdout
    assert f"{FRAMEWORKS[FAST].title} has no" in done.stderr
    assert done.stdout == ""
    assert not list(home.glob("trainings/*"))
    with Store(home / "store.sqlite3", readonly=True) as store:
        assert not [row for row in store.rows() if row.name.startswith("mnist-mlp-")]
