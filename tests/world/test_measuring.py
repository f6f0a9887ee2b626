"""`bench` with several real processes: their times, what happens when one dies, and that nothing is left behind."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun, Completed, WorldTimes
from metalmark.model.run import Absent, Failed
from metalmark.report.text.exports import json_text
from metalmark.results.cells import cells_of
from metalmark.results.scaling import efficiency, world_figures
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.processes import lives, metalmark, until
from tests.world.ports import free_port

QUICK = ("-f", "torch", "-d", "cpu", "--telemetry", "off", "--threads", 1)


def stored(store_file: Path) -> list[BenchRun]:
    with Store(store_file, readonly=True) as store:
        runs: list[AnyRun] = list(store.load(store.rows()))
    return [run for run in runs if isinstance(run, BenchRun)]


@pytest.mark.timeout(300)
def test_a_sweep_over_processes_has_the_times_of_each_and_the_efficiency(cli: Cli, store_file: Path) -> None:
    words = ("--nproc", "1,2", "--batch-size", 64, "--steps", 20, "--csv", "-q")
    done = cli("bench", "mnist-mlp", *QUICK, *words)
    assert done.returncode == 0, done.stderr
    one, two = csv.DictReader(io.StringIO(done.stdout))
    assert (one["ranks"], one["efficiency"], two["ranks"], two["scaling"]) == ("1", "", "2", "strong")
    runs = stored(store_file)
    cells = cells_of(runs)
    found = efficiency(cells[1], cells)
    assert found is not None
    assert (
        found.value == pytest.approx(cells[0].step_s / cells[1].step_s / 2) == pytest.approx(float(two["efficiency"]))
    )
    assert efficiency(cells[0], cells) is None
    outcome = runs[1].outcome
    assert isinstance(outcome, Completed)
    assert outcome.samples_per_step == 64
    assert isinstance(outcome.world, WorldTimes)
    assert [rank.number for rank in outcome.world.ranks] == [0, 1]
    for rank in outcome.world.ranks:
        assert len(rank.step_s) == len(outcome.measurement.blocks)
        assert len(rank.alone_s) == len(rank.together_s) > 0
    figures = world_figures(outcome.world)
    assert figures.slowest in (0, 1)
    assert not isinstance(figures.communication_share, Absent)
    assert 0 <= figures.communication_share < 1
    shown = cli("runs", "show", "last").stdout
    for words_ in ("processes: 2, on one machine", "step of each rank: 0: ", "slowest rank: ", "communication: "):
        assert words_ in shown
    exported = json.loads(json_text(runs))
    assert "world" not in exported["records"][0]["plan"]
    assert exported["records"][1]["plan"]["world"] == {"nproc": 2, "nnodes": 1, "scaling": "strong"}
    assert exported["derived"][runs[1].id]["world"]["slowest"] == figures.slowest


def ranks_of(command: int) -> dict[int, psutil.Process]:
    """The ranks that have begun to compute: those that have opened connections to each other."""
    found = {}
    for process in psutil.Process(command).children(recursive=True):
        try:
            environment, words = process.environ(), process.cmdline()
            # The launcher has the same words, and no number.
            if "metalmark.runner.worker" in words and "RANK" in environment and process.net_connections():
                found[int(environment["RANK"])] = process
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(300)
def test_a_rank_that_dies_is_named_and_nothing_outlives_the_command(store_file: Path) -> None:
    words = ("mnist-mlp,conv256", *QUICK, "--nproc", 2, "--seconds", 100, "-q")
    command = subprocess.Popen(
        metalmark("bench", *words), env={**os.environ, "METALMARK_STORE": str(store_file)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: len(ranks_of(command.pid)) == 2)
        first = ranks_of(command.pid)
        first[1].send_signal(signal.SIGKILL)
        # The next cell begins, and the command is killed in its middle.
        until(lambda: len(set(ranks_of(command.pid).values()) - set(first.values())) == 2)
        (run,) = stored(store_file)
        assert isinstance(run.outcome, Failed)
        assert "Rank 1 of 2 was ended by SIGKILL" in run.outcome.message
        assert run.outcome.signal == "SIGKILL"
        begun = [process.pid for process in psutil.Process(command.pid).children(recursive=True)]
        assert len(begun) >= 3
        command.send_signal(signal.SIGKILL)
        command.wait()
        until(lambda: not any(map(lives, [*begun, first[0].pid])))
    finally:
        command.kill()
        command.wait()


@pytest.mark.timeout(300)
def test_two_machines_on_one(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    """Each has a store of its own, and the second stores nothing."""
    where = f"127.0.0.1:{free_port()}"
    words = (*QUICK, "--nproc", 1, "--nnodes", 2, "--rdzv", where, "--steps", 10, "-q", "--batch-size", 16)
    other = tmp_path / "other.sqlite3"
    second = subprocess.Popen(
        metalmark("bench", "mnist-mlp", *words, "--node-rank", 1), env={**os.environ, "METALMARK_STORE": str(other)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        done = cli("bench", "mnist-mlp", *words, "--node-rank", 0)
        assert done.returncode == 0, done.stderr
        said = second.communicate(timeout=60)[1]
    finally:
        second.kill()
        second.wait()
    assert second.returncode == 0, said
    assert not other.exists()
    (run,) = stored(store_file)
    assert isinstance(run.outcome, Completed)
    assert isinstance(run.outcome.world, WorldTimes)
    assert len(run.outcome.world.ranks) == 2
    assert where not in store_file.read_bytes().decode("latin-1")
