"""A program in a process of its own, as a user starts it: nothing on stdin, both streams kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PATIENCE_S = 150.0
"""A machine that runs other things too takes several times as long; what does not come is waited for so long, once."""
QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""XLA_FLAGS for JAX where compiling takes longer than what is then computed."""


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


def until(true: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class HeldCommand:
    """A command whose worker hangs, once it is so far: the worker writes its process ids to the file HERE."""

    def __init__(self, folder: Path, words: Sequence[object], ready: Callable[[HeldCommand], bool]) -> None:
        self.temporary, self.store, self.told = folder / "temporary", folder / "store.sqlite3", folder / "pids"
        self.temporary.mkdir()
        self.command = subprocess.Popen(
            metalmark(*words, "--store", self.store),
            env={**os.environ, "TMPDIR": str(self.temporary), "HERE": str(self.told)},
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=heed_ctrl_c, start_new_session=True,
        )  # fmt: skip
        until(lambda: self.command.poll() is not None or ready(self))
        assert self.command.poll() is None, self.command.communicate()
        self.pids = [int(pid) for pid in self.told.read_text().split()]

    def ended(self) -> tuple[str, str]:
        """Wait until it has ended, and every process of it; return what it printed."""
        printed = self.command.communicate(timeout=PATIENCE_S)
        until(lambda: not any(map(lives, self.pids)))
        return printed

    def close(self) -> None:
        if self.command.poll() is None:
            self.command.kill()
            self.command.communicate()
