"""The README's commands on a pretend M1 with Python 3.11, from `make demo` to `report`."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent
from metalmark.store.store import Store
from tests.pretend_mac.conftest import MakeMac
from tests.test_docs import BIN, COMMANDS, ROOT

SMALLER = {
    r"--repeat \d+": "--repeat 1",
    r"--steps \d+": "--steps 10 --seconds 0.2",
    r"--repeats \d+": "--repeats 10",
    # JAX, which is slow to import and to compile, has run for `make demo`; so has MLX, but it has not trained there.
    r"torch,jax": "torch,mlx",
}
"""What makes a command longer, but goes no other way on a Mac: tests/test_docs.py runs each as it stands."""


def smaller(command: str) -> str:
    for pattern, words in SMALLER.items():
        command = re.sub(pattern, words, command)
    return command


@pytest.mark.timeout(1200)
def test_every_command_runs_to_its_end(make_mac: MakeMac, tmp_path: Path) -> None:
    if not (BIN / "metalmark").exists():
        pytest.skip("no .venv: run through make test")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    mac = make_mac("m1-8gb")
    page = tmp_path / "pages" / "demo.html"
    small = ("SECONDS=0.1", "BATCH=1", "MORE=--steps 20 --pixels 32", f"REPORT={page}", "OPEN=")
    words = ["--no-print-directory", "-C", str(ROOT), "demo", *small]
    demo = mac.execute(["make", *words], tmp_path, 600)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for framework in ("torch", "tensorflow", "mlx"):
        assert len(re.findall(rf"\b{framework} +cpu .*loss", demo.stdout)) == 2, demo.stdout
        assert len(re.findall(rf"\b{framework} +mps .*loss", demo.stdout)) == 2, demo.stdout
    assert "jax mps not run: on a Mac, JAX is a CPU framework" in demo.stdout
    assert "Apple M1" in page.read_text()
    assert any(call.startswith("caffeinate -i -w ") for call in mac.called()), "nobody has to keep it awake"
    kept = mac.home / "Library" / "Application Support" / "metalmark" / "records.sqlite3"
    tensorflow_metal_counts_no_memory_and_claims_none(kept)
    last = max(number for number, command in enumerate(COMMANDS) if command.startswith("metalmark report"))
    path = f"{mac.folder / 'bin'}:{BIN}:{mac.environment()['PATH']}"
    for command in COMMANDS[: last + 1]:
        if command.startswith("make "):
            continue
        done = mac.execute(shlex.split(smaller(command)), tmp_path, 280, PATH=path)
        fine = {0, 1} if command == "metalmark doctor" else {0}
        assert done.returncode in fine, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"


def tensorflow_metal_counts_no_memory_and_claims_none(store_file: Path) -> None:
    with Store(store_file, readonly=True) as store:
        runs = [run for run in store.load(store.rows()) if isinstance(run, BenchRun)]
    found = [run for run in runs if (run.plan.framework, str(run.plan.device)) == ("tensorflow", "mps")]
    assert len(found) == 2
    for run in found:
        assert isinstance(run.outcome, Completed), run.outcome
        assert run.outcome.placed_on == "GPU:0"
        assert isinstance(run.outcome.memory.peak_bytes, Absent)
        assert isinstance(run.outcome.memory.live_bytes, Absent)
        assert run.software.versions["tensorflow-metal"] == "1.2.0"
