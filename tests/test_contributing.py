"""CONTRIBUTING.md is true: its blocks are written where they say, in a copy of the code, and its commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import processes
from tests.processes import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```(python|toml|sh)\n(.*?)```", PAGE, re.DOTALL)


def follow(block: str, checkout: Path) -> None:
    """Write a block: a file of its own, or lines below the one that its first line quotes."""
    first, _, code = block.partition("\n")
    named = re.fullmatch(r'# (\S+?)(?:, (?:below "(.*)"|at the end))?', first)
    assert named is not None, first
    file, anchor = checkout / named[1], named[2]
    if first.endswith(", at the end"):
        file.write_text(file.read_text() + code)
        return
    if anchor is None:
        assert not file.exists(), f"{named[1]} is not new"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
        return
    lines = file.read_text().splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.lstrip().startswith(anchor)]
    assert len(places) == 1, f"{named[1]} has {anchor!r} {len(places)} times"
    lines.insert(places[0] + 1, code)
    file.write_text("".join(lines))


@pytest.mark.skipif(not find_spec("torch"), reason="it takes torch")
def test_a_contributor_who_follows_the_page_gets_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    variables = {"PYTHONPATH": str(tmp_path / "src"), "METALMARK_STORE": str(tmp_path / "store.sqlite3")}
    printed = {}
    for language, block in BLOCKS:
        if language != "sh":
            follow(block, tmp_path)
            continue
        for command in block.strip().splitlines():
            words = shlex.split(command)
            assert words[0] == "metalmark"
            done = processes.run([sys.executable, "-m", *words], folder=tmp_path, **variables)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            printed[command] = done.stdout
    benches = [text for command, text in printed.items() if "--steps 20" in command]
    assert [re.search(r"(torch|numpy) +cpu .* loss ([\d.e-]+) → ([\d.e-]+)", text) is not None for text in benches] == [
        True,
        True,
    ], benches
    assert "numpy" in printed["metalmark list frameworks"]
    assert "five years" in printed["metalmark doctor --explain old-python"]
    assert "system_load" in printed["metalmark runs show last"]
    assert re.search(r"\d+ cores, \d+ GiB", printed["metalmark machine"])
    assert "Example:\n    metalmark machine" in printed["metalmark machine --help"]
    checked = [sys.executable, "-m", "ruff", "check", "--quiet", "--config", str(ROOT / "pyproject.toml")]
    new = [tmp_path / "src/metalmark" / name for name in ("backends/numpy.py", "workloads/linear", "telemetry/load.py")]
    done = processes.run([*checked, *map(str, new)], folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert not os.path.exists(ROOT / "src/metalmark/telemetry/load.py")
