"""How a worker leaves: at once where it is alone, and as ever where it has processes of its own to end."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVING = """
import atexit, multiprocessing, sys, time
from metalmark.runner.worker import leave

atexit.register(print, "taken apart")
{before}
print("measured", end="")  # not flushed by itself into a pipe
leave()
"""
WITH_A_PROCESS = """
child = multiprocessing.Process(target=time.sleep, args=(600,), daemon=True)
child.start()
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        pytest.param("", "measured", id="alone"),
        pytest.param(WITH_A_PROCESS, "measuredtaken apart\n", id="with a process that its exit ends"),
        pytest.param(
            "import os; os.environ['METALMARK_RANKS'] = 'folder'", "measuredtaken apart\n", id="one of several"
        ),
    ],
)
def test_a_worker_leaves_at_once_where_nothing_is_left_to_end(before: str, printed: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAVING.format(before=before)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == printed
