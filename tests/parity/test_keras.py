"""The sides of TensorFlow and JAX. A framework that is not installed skips with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Settings
from tests.conftest import ROOT
from tests.parity.keras_checks import NAMES
from tests.processes import QUICKLY_COMPILED

# What bert shows is Keras', not JAX': so JAX need not compile it, which takes it most of a minute. And JAX always
# compiles, so that there are no parts of a network to compare.
CHOSEN = {"tensorflow": NAMES, "jax": [name for name in NAMES if name not in ("check_bert", "check_compiled_parts")]}


@cache
def results(framework: str) -> dict[str, str]:
    with TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        # Each check opens subjects of its own: JAX need not compile the same step for each.
        compiled = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        if framework == "jax":
            compiled["XLA_FLAGS"] = QUICKLY_COMPILED
        run = subprocess.run(
            [sys.executable, "-m", "tests.parity.keras_checks", framework, str(answer), *CHOSEN[framework]],
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
@pytest.mark.parametrize(
    ("framework", "check"), [(framework, check) for framework, checks in CHOSEN.items() for check in checks]
)
def test_side(framework: str, check: str) -> None:
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
    trouble = results(framework)[check]
    assert not trouble, trouble
