"""A process that we have started is ended with all that it started."""

from __future__ import annotations

import subprocess
import sys

import psutil

from metalmark.machine.processes import end_tree
from tests.processes import PATIENCE_S

PARENT = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"


def test_it_ends_with_its_own_children() -> None:
    code = f"{PARENT}print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        end_tree(parent.pid)
        assert parent.wait(PATIENCE_S) != 0
    _, alive = psutil.wait_procs([child], timeout=PATIENCE_S)
    assert not alive


def test_one_that_is_gone_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    end_tree(gone.pid)
