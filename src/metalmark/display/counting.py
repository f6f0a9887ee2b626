"""CountingLine: how far long work is, in one line that changes on a terminal, and a line now and then in a log."""

import sys
import time
from typing import Self

TERMINAL_EVERY_S = 0.2
LOG_EVERY_S = 10.0


class CountingLine:
    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._in_place = sys.stderr.isatty()
        self._told_s = time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")

    def tell(self, target: str, done: int, total: int) -> None:
        """Say how many of all runs were copied to the target."""
        every_s = TERMINAL_EVERY_S if self._in_place else LOG_EVERY_S
        now = time.monotonic()
        if self._quiet or now - self._told_s < every_s:
            return
        self._told_s = now
        line = f"{done:,} of {total:,} runs to {target}"
        if self._in_place:
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
