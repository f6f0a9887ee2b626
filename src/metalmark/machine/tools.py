"""Running a system tool: its text, or the reason why there is none. Never raises, never waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import PurePath

from metalmark.record import Absent
from metalmark.scrub import scrub

_REAP_S = 1.0
_REASON_CHARS = 200


def run_tool(argv: Sequence[str], timeout_s: float, *, partial: bool = False) -> str | Absent:
    """What the tool printed. `partial` also takes it from a tool that ended with an error: `sysctl` asked
    for ten keys of which one is unknown prints the other nine and exits 1."""
    tool = PurePath(argv[0]).name
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            # A group of its own, so that a tool's helpers can be ended with it.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Absent(f"{tool} could not be started: {getattr(error, 'strerror', None) or error}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return Absent(f"{tool} gave no answer within {timeout_s:g} s")
    except BaseException:  # Ctrl-C while we wait: the tool goes with us
        _end(process)
        raise
    text = out.decode("utf-8", "replace")
    if process.returncode == 0 or (partial and text.strip()):
        return text
    lines = err.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return Absent(f"{tool} ended with status {process.returncode}: {scrub(lines[-1])[:_REASON_CHARS]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Its pipes are closed unread: a helper that left the group could hold them open for as long as it likes.
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
