"""What an earlier version wrote is still read, and still says the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.processes import ROOT

OLD = ROOT / "tests" / "fixtures" / "0.1.0"


@pytest.fixture
def old_store(store_file: Path) -> Path:
    """A copy, since reading may bring it up to date."""
    shutil.copy(OLD / "store.db", store_file)
    return store_file


@pytest.mark.usefixtures("old_store")
def test_a_store_of_the_version_before_opens_and_its_runs_show_and_compare(cli: Cli, tmp_path: Path) -> None:
    listed = cli("runs", "list")
    assert listed.returncode == 0, listed.stderr
    for identifier in ("hl17wq91lf", "ezo2nelt7c", "qma7et4d54", "ij4bc8ehxp"):
        assert identifier in listed.stdout
    assert "fixture, main" in listed.stdout
    shown = cli("runs", "show", "ezo2nelt7c")
    assert "1.21 ms" in shown.stdout, shown.stderr
    compared = cli("compare", "main", "--by", "batch_size", "--anyway")
    assert compared.returncode == 0, compared.stderr
    assert "can't tell" in compared.stdout, "two processes on each side"
    page = tmp_path / "report.html"
    assert cli("report", "main", "-o", page).returncode == 0
    assert "1.21 ms" in page.read_text()


def test_its_export_and_its_bundle_are_imported(cli: Cli) -> None:
    for file, count in (("export.json", "7"), ("runs.bundle", "7")):
        run = cli("runs", "import", OLD / file)
        assert run.returncode == 0, run.stderr
        assert count in run.stdout + run.stderr
    assert "ij4bc8ehxp" in cli("runs", "list").stdout


def test_a_trainings_folder_is_reported(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "training.html"
    run = cli("report", OLD / "training", "-o", page)
    assert run.returncode == 0, run.stderr
    assert "17.10%" in page.read_text()
