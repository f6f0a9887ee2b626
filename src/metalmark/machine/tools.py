"""Run a system tool and read what it printed.

Each call returns the text, or the reason why there is none. It never raises, never waits for ever, and never takes
more memory than an answer needs.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import IO

from msgspec import Struct

from metalmark.machine.processes import signal_group
from metalmark.model.run import Absent
from metalmark.scrub import printable, scrub

# SYSTEM_VERSION_COMPAT: a shell set up for old programs makes macOS tell every tool that it is version 10.16.
_ENVIRONMENT = {"LC_ALL": "C", "SYSTEM_VERSION_COMPAT": "0"}
_MOST_BYTES = 1 << 20
"""Limit on the output, and on the error messages: the longest expected answer has about ten thousand bytes."""
_REAP_S = 1.0
_REASON_CHARS = 200
_NAME_CHARS = 120
_DIGITS = 18
"""More digits would not fit into the 64 bits of a record's integers."""


class Printed(Struct, frozen=True, kw_only=True):
    """What a tool printed until it ended by itself."""

    status: int
    out: str
    err: str


def run_tool(argv: Sequence[str], timeout_s: float, *, partial: bool = False) -> str | Absent:
    """Return what the tool printed. `partial` also accepts a tool that ended with an error: `sysctl` asked for ten keys
    of which one is unknown prints the other nine and exits 1."""
    printed = ask_tool(argv, timeout_s)
    if isinstance(printed, Absent):
        return printed
    if printed.status == 0 or (partial and printed.out.strip()):
        return printed.out
    lines = printed.err.strip().splitlines() or ["it said nothing"]
    tool = PurePath(argv[0]).name
    return Absent(f"{tool} ended with status {printed.status}: {scrub(lines[-1])[:_REASON_CHARS]}")


def start_tool(argv: Sequence[str]) -> subprocess.Popen[bytes] | Absent:
    """Start a tool whose two outputs are pipes; files would fill the disk with an endless complaint."""
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT},
            # A group of its own: Ctrl-C in the terminal is ours to handle, and a tool's helpers can be ended with it.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return Absent(f"{PurePath(argv[0]).name} could not be started: {reason}")


def ask_tool(argv: Sequence[str], timeout_s: float) -> Printed | Absent:
    """Return both outputs and the exit code, or the reason why the tool could not be started or did not end."""
    process = start_tool(argv)
    if isinstance(process, Absent):
        return process
    assert process.stdout is not None
    assert process.stderr is not None
    # Closed unread if need be: a helper process that left the group could hold them open for ever.
    with process.stdout, process.stderr:
        try:
            printed = _read_to_the_end(process, process.stdout, process.stderr, timeout_s)
        except BaseException:  # Ctrl-C while we wait: the tool goes with us
            _end(process)
            raise
        if isinstance(printed, Absent):
            _end(process)
            return Absent(f"{PurePath(argv[0]).name} {printed.reason}")
    out, err = (data.decode("utf-8", "replace") for data in printed)
    return Printed(status=process.returncode, out=out, err=err)


def _read_to_the_end(
    process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes], timeout_s: float
) -> tuple[bytes, bytes] | Absent:
    deadline_s = time.monotonic() + timeout_s
    printed = {out.fileno(): bytearray(), err.fileno(): bytearray()}
    with selectors.PollSelector() as selector:
        for fd in printed:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return Absent(f"gave no answer within {timeout_s:g} s")
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fd)
                printed[key.fd] += data
                if len(printed[key.fd]) > _MOST_BYTES:
                    return Absent(f"printed more than {_MOST_BYTES >> 20} MiB and was ended")
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Absent(f"gave no answer within {timeout_s:g} s")
    return bytes(printed[out.fileno()]), bytes(printed[err.fileno()])


def _end(process: subprocess.Popen[bytes]) -> None:
    signal_group(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def read_text(path: Path) -> str:
    """Return what a small file of the system says; nothing where it is missing or not readable by us."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def to_count(value: object) -> int | None:
    """Return the count in "16", 16 or " 16 "; None for anything else."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def to_name(value: object) -> str | None:
    """Return one line of text without control characters and repeated spaces; None where nothing is left."""
    if not isinstance(value, str):
        return None
    # A lone surrogate can come out of JSON, and can't go into it again.
    encodable = value.encode("utf-8", "replace").decode("utf-8")
    return " ".join(printable(encodable).split())[:_NAME_CHARS].strip() or None
