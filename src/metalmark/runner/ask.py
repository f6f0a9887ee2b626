"""Asks a short-lived process one question. The answer comes in a file; a crash or a hang is an answer too."""

import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from metalmark.errors import FormatError
from metalmark.machine.orphans import forget_group, mark, scratch_folder, watch_group
from metalmark.machine.processes import signal_group, wait_for_exit
from metalmark.model.codec import read_json
from metalmark.scrub import scrub

T = TypeVar("T", bound=Struct)


class NoAnswer(Struct, frozen=True, kw_only=True, tag="no-answer"):
    reason: str
    detail: str = ""


class Asker:
    """Whoever asks several questions at once, and may have to give them up together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._gave_up = False

    def give_up(self) -> None:
        """End the processes that were asked, and those that are being started."""
        with self._lock:
            self._gave_up = True
            for group in self._groups:
                signal_group(group, signal.SIGKILL)

    def begin(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            if self._gave_up:
                signal_group(group, signal.SIGKILL)

    def end(self, group: int) -> None:
        """End what is left of a process and its children, whose exit status is not collected yet."""
        with self._lock:
            self._groups.discard(group)
            signal_group(group, signal.SIGKILL)


def ask(
    module: str,
    argument: str,
    kind: type[T],
    *,
    environment: dict[str, str],
    timeout_s: float,
    asker: Asker | None = None,
) -> T | NoAnswer:
    """Run `python -m module argument FILE`, which writes a `kind` or a NoAnswer into FILE."""
    asker, marked = asker or Asker(), mark()
    with scratch_folder() as folder:
        answer, output = folder / "answer.json", folder / "output.txt"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", module, argument, str(answer)],
                env={**os.environ, **environment, **marked},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                # A group of its own: a user's file may end its group, and what it started is ended with it.
                start_new_session=True,
            )
            waiter = threading.Thread(target=wait_for_exit, args=(process.pid,), daemon=True, name="answer")
            try:
                watch_group(process.pid)
                asker.begin(process.pid)
                waiter.start()
                waiter.join(timeout_s)
                hung = waiter.is_alive()
            finally:
                # Its exit status is collected last: until then its group can't be anyone else's.
                asker.end(process.pid)
                forget_group(process.pid, marked)
                if waiter.ident is not None:
                    waiter.join()
                process.wait()
            if hung:
                return NoAnswer(reason=f"it hung: no answer in {timeout_s:g} s.", detail=tail(output))
        if answer.exists():
            try:
                return read_json(answer.read_bytes(), kind | NoAnswer, source="its answer")  # type: ignore[arg-type]
            except FormatError as error:
                return NoAnswer(reason=error.message, detail=tail(output))
        return NoAnswer(reason=how_it_ended(process.returncode), detail=tail(output))


def tail(path: Path, limit: int = 4000) -> str:
    """Return the end of what a process printed, as text that can be stored."""
    try:
        data = path.read_bytes()[-limit:]
    except OSError as error:
        return f"(its output can't be read: {error.strerror})"
    return scrub(data.decode("utf-8", "replace")).strip()


def how_it_ended(code: int) -> str:
    if code < 0:
        return f"it was ended by {signal_name(-code)}."
    return f"it ended with exit code {code} and no answer."


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def in_one_line(error: BaseException, before: str = "") -> str:
    """Return an exception's type and the first line of its message, as text that can be stored."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return scrub(f"{before}{type(error).__name__}: {first}")[:500]


def traceback_of(error: BaseException) -> str:
    return scrub("".join(traceback.format_exception(error)))[-4000:]
