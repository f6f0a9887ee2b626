"""ToolStream: a tool that prints one sample after another, in a process of its own, and is never waited for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import IO

from metalmark.scrub import scrub
from metalmark.telemetry.base import SensorLostError

_MOST_BYTES = 1 << 20
_REAP_S = 0.5
_REASON_CHARS = 120


class ToolStream:
    """`end` is how each sample ends. A tool has hung that gives none for `silence_s`, or no first one for `start_s`."""

    def __init__(self, argv: Sequence[str], *, end: bytes, silence_s: float, start_s: float) -> None:
        self.tool = PurePath(argv[0]).name
        self._argv = argv
        self._end = end
        self._silence_s = silence_s
        self._start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._rest = b""
        self._ended = False
        self._heard_s = 0.0

    def open(self) -> str | None:
        """None once the first sample waits to be read, else the reason why none came."""
        if self._process is not None:
            return None
        # A file, not a pipe: nobody reads it meanwhile, and a full pipe would stop the tool.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env={**os.environ, "LC_ALL": "C"},
                # Ctrl-C in the terminal is ours to handle, and a tool's helpers can be ended with it.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.close()
            return f"{self.tool} could not be started: {getattr(error, 'strerror', None) or error}"
        os.set_blocking(self._fd, False)
        self._heard_s = time.monotonic()
        try:
            while self._end not in self._rest and not self._ended:
                remaining_s = self._heard_s + self._start_s - time.monotonic()
                select.select([self._fd], [], [], max(0.0, remaining_s))
                self._fill()
                self._check_patience(self._start_s)
            if self._end not in self._rest:
                return self._how_it_ended()
        except SensorLostError as error:
            return str(error)
        self._heard_s = time.monotonic()
        return None

    def samples(self) -> list[str]:
        """The whole samples since the last call, without waiting for any."""
        if self._process is None:
            return []
        self._fill()
        *whole, self._rest = self._rest.split(self._end)
        if whole:
            self._heard_s = time.monotonic()
        elif self._ended:
            raise SensorLostError(self._how_it_ended())
        self._check_patience(self._silence_s)
        return [(sample + self._end).decode("utf-8", "replace") for sample in whole]

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                # Not waited for yet, so the group is still its own.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_REAP_S)
                    break
            if process.stdout is not None:
                process.stdout.close()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None

    @property
    def _fd(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _fill(self) -> None:
        while not self._ended and len(self._rest) <= _MOST_BYTES:
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                return
            self._ended = not data
            self._rest += data

    def _check_patience(self, patience_s: float) -> None:
        if len(self._rest) > _MOST_BYTES and self._end not in self._rest:
            raise SensorLostError(f"{self.tool} printed a megabyte without the end of a sample")
        if not self._ended and time.monotonic() - self._heard_s >= patience_s and self._end not in self._rest:
            raise SensorLostError(f"{self.tool} gave no sample for {patience_s:g} s")

    def _how_it_ended(self) -> str:
        assert self._process is not None
        assert self._complaints is not None
        try:
            status = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return f"{self.tool} closed its output"
        self._complaints.seek(0)
        lines = self._complaints.read(_MOST_BYTES).decode("utf-8", "replace").strip().splitlines()
        said = f": {scrub(lines[-1])[:_REASON_CHARS]}" if lines else ""
        return f"{self.tool} ended with status {status}{said}"
