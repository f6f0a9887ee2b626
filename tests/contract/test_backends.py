"""Every Backend through one suite. A framework that is not installed skips with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Settings
from tests.contract.backend_checks import ALONE, LATER, NAMES

ROOT = Path(__file__).parents[2]
TOGETHER = (*(name for name in NAMES if name != ALONE), ALONE)


@cache
def results(framework: str, names: tuple[str, ...]) -> dict[str, str]:
    with TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        # Each check opens sessions of its own: JAX need not compile the same step for each.
        compiled = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        run = subprocess.run(
            [sys.executable, "-m", "tests.contract.backend_checks", framework, str(answer), *names],
            env={**os.environ, **FRAMEWORKS[framework].environment(Settings()), **compiled},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert answer.exists(), f"exit code {run.returncode}: {run.stderr[-3000:]}"
        return dict(json.loads(answer.read_text()))


def require(framework: str) -> None:
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")


@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_contract(framework: str, check: str) -> None:
    require(framework)
    trouble = results(framework, TOGETHER)[check]
    if trouble == LATER:
        trouble = results(framework, (check,))[check]
    assert not trouble, trouble


def test_both_sides_of_the_contract_are_tested() -> None:
    """A check that can't fail is none: each must fail on a device that is broken in its own way."""
    from metalmark.backends.fake import FakeBackend, FakeSession
    from tests.contract.backend_checks import Checks

    def broken(name: str, method: Callable[..., object], check: str) -> None:
        original = getattr(FakeSession, name)
        setattr(FakeSession, name, method)
        try:
            with pytest.raises(AssertionError):
                getattr(Checks(FakeBackend()), check)()
        finally:
            setattr(FakeSession, name, original)

    broken("proof", lambda _: float("nan"), "check_training")
    broken("proof", lambda _: 1.0, "check_inference")
    broken("fingerprint", lambda _: (0.0,), "check_training")
    broken("fingerprint", lambda session: (float(session._steps),), "check_inference")
