"""Every framework's trainer through one suite. A framework that is not installed skips with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.plan import Settings
from tests.conftest import ROOT
from tests.training.checks import NAMES

TRAINERS = [framework.name for framework in visible()]


THREADS = {"torch": "1"}
"""PyTorch's wait for each other on a busy machine."""


@cache
def results(framework: str, threads: str = "", *chosen: str) -> dict[str, str]:
    with TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        run = subprocess.run(
            [sys.executable, "-m", "tests.training.checks", framework, str(answer), threads, *chosen],
            env={**os.environ, **FRAMEWORKS[framework].environment(Settings())},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=560,
        )
        assert answer.exists(), f"exit code {run.returncode}: {run.stderr[-3000:]}"
        return dict(json.loads(answer.read_text()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("framework", TRAINERS)
def test_contract(framework: str, check: str) -> None:
    require(framework)
    trouble = results(framework, THREADS.get(framework, ""))[check]
    assert not trouble, trouble


@pytest.mark.timeout(600)
def test_tensorflow_on_one_thread_needs_no_switch_to_give_the_same_bits() -> None:
    require("tensorflow")
    (trouble,) = results("tensorflow", "1", "check_the_same_seed_gives_the_same_bits").values()
    assert not trouble, trouble


def require(framework: str) -> None:
    if missing := FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
