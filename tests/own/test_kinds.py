"""Every file of docs/own.md steps, moves its weights, and where it trains goes on from its own checkpoint."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.own import blocks

PACKAGES = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "mlx": "mlx"}


@pytest.mark.parametrize("framework", PACKAGES)
def test_the_files_of_the_page(framework: str, tmp_path: Path) -> None:
    if find_spec(PACKAGES[framework]) is None:
        pytest.skip(f"{framework} is not installed")
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": framework if framework != "torch" else "jax",
    }
    if framework == "mlx":
        environment.pop("KERAS_BACKEND")
    done = subprocess.run(
        [sys.executable, "-m", "tests.own.blocks", framework, str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told
    for name, found in told.items():
        assert all(map(math.isfinite, found["losses"])), name
        assert found["moved"] == found["arrays"] == found["named"] > 0, (name, found)
        if "same" in found:
            assert found["same"], f"{name}: a resumed training came to other weights"
            assert math.isfinite(found["validation"]), name


def test_the_page_has_twenty_kinds() -> None:
    page = blocks.PAGE.read_text(encoding="utf-8")
    rows = page.partition("## Twenty kinds")[2].partition("###")[0].splitlines()
    assert sum(row.startswith("| ") for row in rows) >= 21, "twenty kinds and the table's head"
    assert sum(len(blocks.names_in(source)) for _, source in blocks.blocks().values()) >= 18
