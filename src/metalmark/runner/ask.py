"""Asks a short-lived process one question. The answer comes in a file; a crash or a hang is an answer too."""

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from metalmark.scrub import scrub

T = TypeVar("T", bound=Struct)


class NoAnswer(Struct, frozen=True, kw_only=True, tag="no-answer"):
    reason: str
    detail: str = ""


def ask(module: str, argument: str, kind: type[T], *, environment: dict[str, str], timeout_s: float) -> T | NoAnswer:
    """Run `python -m module argument FILE`, which writes a `kind` or a NoAnswer into FILE."""
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        answer, output = Path(folder, "answer.json"), Path(folder, "output.txt")
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", module, argument, str(answer)],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return NoAnswer(reason=f"it hung: no answer in {timeout_s:g} s.", detail=tail(output))
            finally:
                process.kill()
                process.wait()
        if answer.exists():
            try:
                return msgspec.json.decode(answer.read_bytes(), type=kind | NoAnswer)
            except msgspec.DecodeError as error:
                return NoAnswer(reason=f"its answer can't be read: {error}.", detail=tail(output))
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
