"""What a resolver says of `make demo` and `make test` on a Mac. It needs the package index, and skips without it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import resolve
from tests.processes import ROOT, run


def test_every_set_can_be_installed_on_an_arm64_mac() -> None:
    done = run([sys.executable, "tools/resolve.py"])
    if done.returncode == resolve.NOTHING_PROVED:
        pytest.skip(" ".join((done.stderr + done.stdout).split())[:300])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"{goal}, Python 3.{minor}" for goal in ("make demo", "make test") for minor in (11, 12, 13, 14)
    ]
    for line in lines:
        assert "torch 2.13.0, " in line
        assert re.search(r"jax \S+, mlx \S+", line)
        if "3.11:" in line or "3.12:" in line:
            assert re.search(r"tensorflow 2\.19\.\S+, tensorflow-metal 1\.2\.0,", line)
        if "3.13:" in line:
            assert "tensorflow 2.21.0," in line
            assert "without tensorflow-metal;" in line
        if "3.14:" in line:
            assert "without tensorflow, tensorflow-metal, zeus-apple-silicon;" in line


FAKE_UV = """#!/bin/sh
cat > {asked}
echo "$MACOSX_DEPLOYMENT_TARGET $*" >> {asked}
{then}
"""


@pytest.fixture
def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A uv that writes down what it was asked and ends as `then` says."""
    path = tmp_path / "uv"
    monkeypatch.setattr(resolve, "find_uv", lambda: str(path))
    monkeypatch.setattr(resolve, "PYTHONS", [(3, 13)])
    return path


def put(path: Path, then: str) -> Path:
    asked = path.with_name("asked")
    path.write_text(FAKE_UV.format(asked=asked, then=then))
    path.chmod(0o755)
    return asked


def test_the_installers_own_requirements_are_resolved_for_a_mac(
    fake_uv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = put(fake_uv, "printf 'torch==2.13.0\\nmetalmark @ file:///x\\ntensorflow==2.21.0\\n'")
    assert resolve.main(["demo"]) == 0
    lines = asked.read_text().splitlines()
    assert lines[:-2] == ["torch", "tensorflow", "jax", "mlx", "zeus-apple-silicon", "keras"]
    assert lines[-2] == f"metalmark[web] @ {ROOT.as_uri()}"
    for words in ("14.0 pip compile", "aarch64-apple-darwin", "--python-version 3.13", "--only-binary :all:"):
        assert words in lines[-1]
    told = capsys.readouterr().out
    assert told.startswith("make demo, Python 3.13: torch 2.13.0, tensorflow 2.21.0; without tensorflow-metal,")


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        ("Because torch==2.13.0 has no wheels", 1, "no solution: Because torch==2.13.0 has no wheels"),
        ("error: Failed to fetch: tcp connect error", 3, "the index did not answer: error: Failed to fetch"),
    ],
)
def test_no_solution_is_told_from_an_index_that_is_silent(
    fake_uv: Path, capsys: pytest.CaptureFixture[str], said: str, code: int, told: str
) -> None:
    put(fake_uv, f"echo '{said}' >&2; exit 1")
    assert resolve.main(["demo"]) == code
    assert told in capsys.readouterr().out


def test_without_uv_nothing_is_proved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(resolve, "find_uv", lambda: None)
    assert resolve.main([]) == resolve.NOTHING_PROVED
    assert "uv is missing" in capsys.readouterr().err
    assert resolve.main(["demmo"]) == 2
