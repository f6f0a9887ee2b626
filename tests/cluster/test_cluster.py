"""A sweep on a real cluster of two nodes: nodes and commands are killed, and every cell ends exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from metalmark.model.parity import ParityRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.store.store import Store
from tests import processes
from tests.cluster.clusters import SmallCluster, metalmark
from tests.processes import until

FAKE = ("fake", "-f", "fake", "-d", "gpu")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallCluster]:
    made = SmallCluster()
    try:
        made.start_head()
        yield made
    finally:
        made.close()


def run(cluster: SmallCluster, store: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**cluster.environment, "METALMARK_STORE": str(store), **environment}
    return processes.run(processes.metalmark(*words), **variables)


def endings(store: Path) -> list[tuple[int, int, str]]:
    if not store.exists():
        return []
    with Store(store, readonly=True) as opened:
        return [(row.cell, row.repeat, row.ending) for row in opened.rows()]


def test_one_node_is_killed_then_the_command_and_every_cell_ends_exactly_once(
    cluster: SmallCluster, store_file: Path, tmp_path: Path
) -> None:
    raylet = cluster.start_node(cpus=2)
    cells, lost = 8, "was lost: its process or the machine ended. Its cell is run elsewhere."
    said = tmp_path / "said.txt"
    words = ("bench", *FAKE, "--batch-size", f"1-{cells}", "--seconds", "0.5", "--nodes", "any", "--on", cluster.direct)
    with said.open("w") as file:
        command = metalmark(cluster, store_file, *words, stderr=file)
    until(lambda: command.poll() is not None or endings(store_file))
    os.kill(raylet, signal.SIGKILL)
    before = len(endings(store_file))
    until(lambda: command.poll() is not None or (len(endings(store_file)) >= before + 2 and lost in said.read_text()))
    assert command.poll() is None, said.read_text()
    command.kill()
    assert command.communicate()[0] == ""
    until(lambda: not cluster.agents())
    stored = endings(store_file)
    assert 3 <= len(stored) < cells

    refused = run(cluster, store_file, "bench", "--resume")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "was begun on a cluster" in refused.stderr

    resumed = run(cluster, store_file, "bench", "--resume", "--on", cluster.client, "--csv")
    assert resumed.returncode == 0, resumed.stderr
    assert len(resumed.stdout.splitlines()) == 1 + cells
    assert f"{len(stored)} of {cells} runs are stored already." in resumed.stderr
    assert Counter(endings(store_file)) == dict.fromkeys([(cell, 0, "completed") for cell in range(cells)], 1)
    until(lambda: not cluster.agents())


def test_parity_and_tune_come_back_as_runs(cluster: SmallCluster, store_file: Path) -> None:
    checked = run(cluster, store_file, "parity", *FAKE, "--seeds", 0, "--repeats", 2, "--on", cluster.direct)
    assert checked.returncode == 0, checked.stderr
    tuned = run(
        cluster, store_file, "tune", *FAKE, "--landscape", 3, "--time", "8s", "--seconds", "0.1", "--repeat", 2,
        "--no-gate", "--keep", "compile,graph,channels_last,fused,threads,batch_size", "--on", cluster.direct,
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    with Store(store_file, readonly=True) as store:
        runs = store.load(store.rows())
    (check,) = [each for each in runs if isinstance(each, ParityRun)]
    (tuning,) = [each for each in runs if isinstance(each, TuningRun)]
    assert check.verdict.value == "agrees"
    assert isinstance(tuning.outcome, Tuned)
    assert tuning.outcome.complete
    assert tuning.outcome.trials == len(runs) - 2


def test_the_doctor_examines_every_node(cluster: SmallCluster, store_file: Path) -> None:
    found = run(cluster, store_file, "doctor", "--on", cluster.direct, "--only", "swap", "--json")
    documents = json.loads(found.stdout)
    (one,) = documents.values()
    assert found.returncode == one["exit_code"]
    assert one["machine"]["chip"] in next(iter(documents))


@pytest.mark.parametrize("entrance", ["direct", "client"])
def test_a_wrong_token_is_a_sentence(cluster: SmallCluster, store_file: Path, entrance: str) -> None:
    address = getattr(cluster, entrance)
    refused = run(cluster, store_file, "bench", *FAKE, "--on", address, **cluster.wrong_token)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"The cluster at {address} does not take the token of this command." in refused.stderr
    assert "RAY_AUTH_TOKEN_PATH" in refused.stderr


def test_a_node_with_another_metalmark_is_named_and_not_used(cluster: SmallCluster, store_file: Path) -> None:
    code = "import metalmark; metalmark.__version__ = '9.9'; from metalmark.cli import main; main()"
    words = [sys.executable, "-c", code, "bench", *FAKE, "--on", cluster.direct]
    refused = processes.run(words, **cluster.environment, METALMARK_STORE=str(store_file))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "node 1 is not used: it has Metalmark 0.1.0, and this command is 9.9" in refused.stderr


def test_a_device_that_no_node_has_is_refused_with_the_reason(cluster: SmallCluster, store_file: Path) -> None:
    refused = run(cluster, store_file, "bench", "fake", "-f", "fake", "-d", "cuda", "--on", cluster.direct)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "No node of the cluster can run fake training batch 32 fake cuda." in refused.stderr
    assert not endings(store_file)
