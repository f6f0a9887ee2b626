"""The anatomies of TensorFlow, JAX and MLX, each in one process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Settings
from tests.conftest import ROOT


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", ["tensorflow", "jax", "mlx"])
def test_a_step_is_taken_apart_counted_and_profiled(framework: str) -> None:
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
    if framework == "mlx" and shutil.which("g++") is None:
        pytest.skip("MLX compiles for the CPU with g++, which is not here")
    run = subprocess.run(
        [sys.executable, "-m", "tests.explain.anatomy_checks", framework],
        env={**os.environ, **FRAMEWORKS[framework].environment(Settings())},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert run.stdout.strip().endswith("good"), run.stderr[-3000:]
