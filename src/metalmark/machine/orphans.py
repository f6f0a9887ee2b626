"""A helper process that ends what a command started once the command is gone, even by kill -9.

    mark()                 a variable for the environment of one child, by which its own children are found
    watch_group(pid)       that child, which leads a process group of its own
    forget_group(pid, m)   it has ended and its group with it; to be called before its exit status is collected. What it
                           started and what left its group is found by the mark, and ended
    scratch_folder()       a temporary folder that is removed in any case

The helper waits for the end of a pipe that only the command holds. A thread in the child could not do that: it can't
run while the child computes in C, or is stopped. There is one helper per command, and it sleeps.

As a process: `python -S -P orphans.py COMMAND`, with the number that the marks begin with. It uses nothing but Python's
own modules, to be there at once.
"""

import atexit
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "METALMARK_COMMAND"
"""Environment variable that every process has which a command started to be ended with it."""
PASSES, PAUSE_S = 50, 0.02
"""How often the helper looks for processes: each time it may meet some that were being started the time before."""
_GROUP, _FOLDER, _MARKED, _END = b"g", b"f", b"m", b"\0"
"""A message is a sign, + or -, then what it is, its name, and a null byte, which no path can have."""


class _Helper:
    """The command's side. A helper that was ended is replaced, and told all that is to be known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[bytes] = set()
        self._command = os.urandom(12).hex()
        self._children = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    def mark(self) -> dict[str, str]:
        return {MARK: f"{self._command}.{next(self._children)}"}

    def add(self, name: bytes) -> None:
        with self._lock:
            self._known.add(name)
            if self._process is None or not self._tell(b"+" + name):
                self._start()

    def remove(self, name: bytes) -> None:
        with self._lock:
            self._known.discard(name)
            if self._process is not None:
                self._tell(b"-" + name)

    def close(self) -> None:
        """Let the helper go. Where all was given back, what the command leaves behind it leaves on purpose."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                assert process.stdin is not None
                with suppress(BrokenPipeError), process.stdin:
                    if not self._known:
                        process.stdin.write(b"." + _END)
                process.wait()

    def forget(self) -> None:
        """In a forked copy of the command: the helper is the other's. Holding the pipe would keep it waiting."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.returncode = 0  # it is not a child of this process
        self.__init__()  # type: ignore[misc]

    def _start(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        # Without the mark: a command inside a worker has its own helper, which must outlive that worker.
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        with suppress(OSError):  # a system that can't start it can hardly start a worker, which says so
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-P", __file__, self._command],
                env=environment,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                # Whatever ends our group must not end it.
                start_new_session=True,
            )
            for name in self._known:
                self._tell(b"+" + name)

    def _tell(self, message: bytes) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(message + _END)
        except BrokenPipeError:
            return False
        return True


_helper = _Helper()
atexit.register(_helper.close)
os.register_at_fork(after_in_child=_helper.forget)


def mark() -> dict[str, str]:
    return _helper.mark()


def watch_group(pid: int) -> None:
    _helper.add(_GROUP + str(pid).encode())


def forget_group(pid: int, mark: Mapping[str, str]) -> None:
    _helper.remove(_GROUP + str(pid).encode())
    _helper.remove(_MARKED + mark[MARK].encode())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new temporary folder, and remove it: at the end of the block, or by the helper if there is no end."""
    folder = Path(tempfile.gettempdir(), f"metalmark-{os.urandom(8).hex()}").absolute()
    name = _FOLDER + os.fsencode(folder)
    # Told before it is made, so that there is no moment at which it could be left behind.
    _helper.add(name)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _helper.remove(name)


def main(command: str) -> None:
    """Wait for messages. `command`: what the variable begins with that all children of the command have."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    known: set[bytes] = set()
    rest = b""
    while data := os.read(0, 65536):
        *messages, rest = (rest + data).split(_END)
        for message in messages:
            if message == b".":
                return
            if message[:2] == b"-" + _MARKED:
                _end_marked(f"{MARK}=".encode() + message[2:] + _END)
            (known.add if message[:1] == b"+" else known.discard)(message[1:])
    for name in known:
        if name[:1] == _GROUP:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(name[1:]), signal.SIGKILL)
    _end_marked(f"{MARK}={command}.".encode())
    for name in known:
        if name[:1] == _FOLDER:
            shutil.rmtree(os.fsdecode(name[1:]), ignore_errors=True)


def _end_marked(beginning: bytes) -> None:
    for _ in range(PASSES):
        left = marked_processes(beginning)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(PAUSE_S)


def marked_processes(beginning: bytes) -> list[int]:
    """Return the processes that were started with a variable that begins so, as far as the system tells us. A null byte
    stands for the end of the variable."""
    # A process that forks and ends while the system is asked may be missing together with its child: ask again.
    return _listed(beginning) or _listed(beginning)


def _listed(beginning: bytes) -> list[int]:
    if sys.platform == "darwin":
        # -E prints the environment after the command. Of other users' processes and of Apple's own it prints none.
        command = ["/bin/ps", "-axwwE", "-o", "pid=", "-o", "command="]
        try:
            printed = subprocess.run(command, capture_output=True, timeout=10, check=False, env={}).stdout
        except (OSError, subprocess.TimeoutExpired):
            return []
        return marked_in(printed, beginning)
    found = []
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            with suppress(OSError):  # it has just ended, or is another user's
                # A process that has exited, and is not collected yet, has no environment any more.
                if b"\0" + beginning in b"\0" + Path("/proc", folder, "environ").read_bytes():
                    found.append(int(folder))
    return found


def marked_in(printed: bytes, beginning: bytes) -> list[int]:
    """Return the processes of a listing by macOS's ps: a number, a command and its environment per line, without a sign
    of where the command ends. So no command line of ours may hold the variable."""
    lines = (line.split() for line in printed.splitlines())
    return [int(words[0]) for words in lines if any((word + b"\0").startswith(beginning) for word in words[1:])]


if __name__ == "__main__":
    main(sys.argv[1])
