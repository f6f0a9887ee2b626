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
from metalmark.model.plan import Settings
from tests.conftest import ROOT
from tests.training.checks import NAMES

TRAINERS = [framework.name for framework in visible()]


@cache
def results(framework: str) -> dict[str, str]:
    with TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        # Each check opens trainers of its own: JAX need not compile the same step for each.
        compiled = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        run = subprocess.run(
            [sys.executable, "-m", "tests.training.checks", framework, str(answer)],
            env={**os.environ, **FRAMEWORKS[framework].environment(Settings()), **compiled},
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
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
    trouble = results(framework)[check]
    assert not trouble, trouble
