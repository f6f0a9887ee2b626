"""MLX's side of a parity check, in one process of its own."""

from __future__ import annotations

import shutil
import sys

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from tests import processes

pytestmark = [
    pytest.mark.skipif(bool(FRAMEWORKS["mlx"].missing()), reason="mlx is not installed"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles for the CPU with g++, which is not here"),
]


def test_a_network_can_be_looked_into_and_begins_anew_with_each_load() -> None:
    run = processes.run([sys.executable, "-m", "tests.parity.mlx_checks"])
    assert run.stdout.strip().endswith("good"), run.stderr[-3000:]
