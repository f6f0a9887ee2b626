"""Scripts as a user writes them, each in a process of its own: one framework a process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import processes
from tests.simulated.conftest import simulated

__all__ = ["simulated"]

Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path, store_file: Path) -> Script:
    """`script(code, needs="torch", files=64, VARIABLE="value")`: its output; a script that fails is for the test to
    judge."""

    def run(
        code: str, *, needs: str = "", files: int | str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        if needs and importlib.util.find_spec(needs) is None:
            pytest.skip(f"{needs} is not installed")
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(code))
        command = [sys.executable, str(path)]
        if files is not None:
            command = ["sh", "-c", f'ulimit {files} && exec "$@"', "sh", *command]
        quiet = {"METALMARK_STORE": str(store_file), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        return processes.run(command, folder=tmp_path, **{**quiet, **environment})

    return run
