"""The README's commands on a pretend M1 with Python 3.11, from `make demo` to `report`."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.pretend_mac.conftest import MakeMac
from tests.test_docs import BIN, COMMANDS, ROOT


@pytest.mark.timeout(1200)
def test_every_command_runs_to_its_end(make_mac: MakeMac, tmp_path: Path) -> None:
    if not (BIN / "metalmark").exists():
        pytest.skip("no .venv: run through make test")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    mac = make_mac("m1-8gb")
    page = tmp_path / "pages" / "demo.html"
    small = ("SECONDS=0.1", "BATCH=1", "MORE=--steps 20", f"REPORT={page}", "OPEN=")
    words = ["--no-print-directory", "-C", str(ROOT), "demo", *small]
    demo = mac.execute(["make", *words], tmp_path, 600)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for framework in ("torch", "tensorflow", "mlx"):
        assert len(re.findall(rf"\b{framework} +cpu .*loss", demo.stdout)) == 2, demo.stdout
        assert len(re.findall(rf"\b{framework} +mps .*loss", demo.stdout)) == 2, demo.stdout
    assert "jax mps not run: on a Mac, JAX is a CPU framework" in demo.stdout
    assert "Apple M1" in page.read_text()
    assert any(call.startswith("caffeinate -i -w ") for call in mac.called()), "nobody has to keep it awake"
    last = max(number for number, command in enumerate(COMMANDS) if command.startswith("metalmark report"))
    path = f"{mac.folder / 'bin'}:{BIN}:{mac.environment()['PATH']}"
    for command in COMMANDS[: last + 1]:
        if command.startswith("make "):
            continue
        # What repeats is the same process once more; tests/test_docs.py runs each command as it stands.
        done = mac.execute(shlex.split(re.sub(r"--repeat \d+", "--repeat 1", command)), tmp_path, 280, PATH=path)
        fine = {0, 1} if command == "metalmark doctor" else {0}
        assert done.returncode in fine, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
    assert (mac.home / "Library" / "Application Support" / "metalmark" / "records.sqlite3").exists()
