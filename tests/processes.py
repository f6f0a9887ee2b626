"""A program in a process of its own, as a user starts it: nothing on stdin, both streams kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(command: Sequence[str], *, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=240,
    )


def heed_ctrl_c() -> None:
    """For `preexec_fn`: a suite in the background of a shell, or under nohup, inherits an ignored SIGINT or SIGHUP; a
    command in a user's terminal does not."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def metalmark(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "metalmark", *map(str, arguments)]
