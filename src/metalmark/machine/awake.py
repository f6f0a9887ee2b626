"""Keeping an unattended machine awake, where Linux and macOS differ.

A Mac that nobody touches goes to sleep after minutes, whatever runs on it. On Linux this is left to whoever set the
machine up: servers do not sleep, and desktops have no common way to be asked.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# By its full path, so that no other program of that name is started.
CAFFEINATE = "/usr/bin/caffeinate"
GRACE_S = 2.0


@contextmanager
def kept_awake() -> Iterator[str]:
    """Keep the machine from falling asleep by itself until the block ends; yield a note where that is not possible.

    It covers idle sleep alone: closing the lid, an empty battery and the Apple menu still put a Mac to sleep.
    """
    helper: subprocess.Popen[bytes] | str = ""
    if sys.platform == "darwin":
        helper = start_caffeinate()
    try:
        yield helper if isinstance(helper, str) else ""
    finally:
        if not isinstance(helper, str):
            helper.terminate()
            try:
                helper.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()


def start_caffeinate() -> subprocess.Popen[bytes] | str:
    """Return the running tool, or why there is none."""
    try:
        return subprocess.Popen(
            # -w: it ends with this process, so nothing is left behind even by kill -9.
            [CAFFEINATE, "-i", "-w", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is not for it: a script that catches it goes on, and is still to be kept awake.
            start_new_session=True,
        )
    except OSError as error:
        return f"Nothing keeps this Mac awake: caffeinate could not be started ({error.strerror or error})."
