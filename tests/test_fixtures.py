"""What an earlier version wrote is still read, and still says the same."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from metalmark.errors import UsageError
from metalmark.model.codec import decode_export
from metalmark.training.folder import read_record
from tests.conftest import Cli, Verb
from tests.processes import ROOT

OLD = ROOT / "tests" / "fixtures" / "0.1.0"
TRAINING, WATCHED = "hl17wq91lf", "xxczhnfb28"
SPEED = {"ratio": 2.163326787175791, "low": 0.2270617305260369, "high": 20.61105928009159, "band": 8.527483042448338}
"""What is said of batch size 8 against 4. It was 2.158 (0.239 to 19.5) while `compare` and the tables each had a figure
of their own; now a cell has one (docs/decisions.md, "first contact")."""
ONE_FIGURE = ("step_s", "samples_per_s")
"""Columns that moved by up to 2.2% then, in cells of two processes: their geometric mean instead of their mean."""
EPOCHS = (
    "1 2.3059 2.2957 10.45% 58.05% 0.001 108 ms 513 ms 39.2 ms 119,067",
    "*2 2.2917 2.2860 17.10% 63.64% 0.001 189 ms 459 ms 50.9 ms 92,586",
)
"""Lines of the training's table, as 0.1.0 printed them."""


@pytest.fixture
def old_store(store_file: Path, tmp_path: Path) -> Path:
    """A copy, since reading may bring it up to date. It lists a training, of whose folder this is a copy too."""
    shutil.copy(OLD / "store.db", store_file)
    folder = shutil.copytree(OLD / "training", tmp_path / "run1")
    connection = sqlite3.connect(store_file)
    with connection:
        connection.execute("UPDATE trainings SET folder = ?", (os.fsencode(folder),))
    connection.close()
    return store_file


def read_csv(text: str) -> list[dict[str, str]]:
    """Numbers to nine digits: another processor may round the last one another way."""
    return [{name: rounded(value) for name, value in line.items()} for line in csv.DictReader(text.splitlines())]


def rounded(text: str) -> str:
    try:
        return f"{float(text):.9g}"
    except ValueError:
        return text


@pytest.mark.usefixtures("old_store")
def test_a_store_of_the_version_before_opens_and_its_runs_are_listed_and_reported(cli: Cli, tmp_path: Path) -> None:
    listed = cli("runs", "list")
    assert listed.returncode == 0, listed.stderr
    for identifier in (TRAINING, WATCHED, "ezo2nelt7c", "qma7et4d54", "ij4bc8ehxp"):
        assert identifier in listed.stdout
    assert "fixture, main" in listed.stdout
    page = tmp_path / "report.html"
    assert cli("report", "main", TRAINING, WATCHED, "-o", page).returncode == 0
    for part in ("1.21 ms", "17.10%", "50.2 ms"):
        assert part in page.read_text()


@pytest.mark.usefixtures("old_store")
def test_every_run_shows_what_it_showed(verb: Verb) -> None:
    """shown.csv is what 0.1.0 printed of both sweeps."""
    shown = verb("runs", "show", "6dt8ihfq5q", "aqrspaserw", "--csv").stdout
    now, then = read_csv(shown), read_csv((OLD / "shown.csv").read_text())
    for line, before in zip(now, then, strict=True):
        for name in ONE_FIGURE:
            value, printed = line.pop(name), before.pop(name)
            assert value == printed or float(value) == pytest.approx(float(printed), rel=0.03)
        # Columns that came later: no run of that version was checked, and none had these settings.
        later = {
            "parity": "", "compile_mode": "", "attention_kernel": "", "accumulate": "1", "recompute": "off",
            "conv_search": "off", "environment": "",
        }  # fmt: skip
        assert {name: line.pop(name) for name in later} == later
    assert now == then
    exported = decode_export((OLD / "export.json").read_bytes(), source="export")
    assert len(exported) == 7
    for run in exported:
        assert decode_export(verb("runs", "show", run.id, "--json").stdout.encode(), source="stdout") == [run]
        assert f"run {run.id}: {run.plan.label}" in verb("runs", "show", run.id).stdout
    for query in (TRAINING, "run1"):
        table = [" ".join(line.split()) for line in verb("runs", "show", query).stdout.splitlines()]
        assert set(EPOCHS) <= set(table)
    training = decode_export(verb("runs", "show", TRAINING, "--json").stdout.encode(), source="stdout")
    assert training == [read_record(OLD / "training")]
    loop = verb("runs", "show", "a loop of my own").stdout
    for part in (WATCHED, "40", "50.2 ms", "<0.1%"):
        assert part in loop


@pytest.mark.usefixtures("old_store")
def test_its_runs_compare_as_they_did(verb: Verb) -> None:
    (compared,) = json.loads(verb("compare", "main", "--by", "batch_size", "--anyway", "--json").stdout)
    on_cpu, on_gpu = compared["rows"]
    assert {name: on_cpu["speed"][name] for name in SPEED} == pytest.approx(SPEED)
    assert on_cpu["speed"]["verdict"] == "can't tell", "two processes on each side"
    assert on_cpu["speed"]["reason"] == "2.2x lies inside the noise band of 9.5x"
    assert on_cpu["memory"]["value"] == pytest.approx(329658368 / 328523776)
    assert on_gpu["memory"]["type"] == "absent", "what failed has no memory to compare"
    assert all(on_gpu[side]["failure"].startswith("unsupported: ") for side in "ab")
    with pytest.raises(UsageError, match="Only runs of one kind"):
        verb("compare", TRAINING, WATCHED)


def test_its_export_and_its_bundle_are_imported(verb: Verb) -> None:
    assert "7 runs imported" in verb("runs", "import", OLD / "export.json").stderr
    assert "0 runs imported, 7 were there already" in verb("runs", "import", OLD / "runs.bundle").stderr
    assert "ij4bc8ehxp" in verb("runs", "list").stdout


def test_a_trainings_folder_is_reported(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "training.html"
    run = cli("report", OLD / "training", "-o", page)
    assert run.returncode == 0, run.stderr
    assert "17.10%" in page.read_text()
