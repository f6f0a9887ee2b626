"""The command that runs the core of the tests on other Pythons: which it takes, and how it sums up."""

from __future__ import annotations

from pathlib import Path

import pytest

import pythons

LOG = """$ python -m pytest
........F [100%]
FAILED tests/store/test_sqlite.py::test_one - assert 1 == 0
ERROR tests/web - something
==== 1 failed, 8 passed, 2 skipped in 3.10s ====
"""


def test_the_summary_names_what_failed() -> None:
    assert pythons.summary(LOG, "log").splitlines() == [
        "1 failed, 8 passed, 2 skipped in 3.10s",
        "    FAILED tests/store/test_sqlite.py::test_one - assert 1 == 0",
        "    ERROR tests/web - something",
    ]
    assert pythons.summary("Segmentation fault\n", "build/x.log") == "pytest did not end; see build/x.log"


def test_without_another_python_it_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pythons.main([]) == 2
    assert "make pythons PYTHONS=" in capsys.readouterr().err
    assert pythons.main([str(tmp_path / "python3.12")]) == 2
    assert "does not run" in capsys.readouterr().err


def test_one_python_that_fails_does_not_hide_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def environment(_: str, version: str) -> Path:
        if version == "3.12.1":
            raise pythons.StageError("installing", 1, "  no such wheel")
        return Path("build") / version

    monkeypatch.setattr(pythons, "answer", lambda python, _: {"one": "3.12.1", "two": "3.13.0"}[python])
    monkeypatch.setattr(pythons, "environment", environment)
    monkeypatch.setattr(pythons, "run_tests", lambda *_: (True, "8 passed"))
    assert pythons.main(["one", "two"]) == 1
    told = capsys.readouterr().out
    assert "Python 3.12.1: installing failed\n  no such wheel" in told
    assert "Python 3.13.0: tests without a framework: 8 passed" in told
    assert "Python 3.13.0: tests of JAX and MLX: 8 passed" in told
