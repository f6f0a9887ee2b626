"""ToolStream: a tool that prints one sample after another, in a process of its own, and is never waited for."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import IO

from metalmark.machine.processes import signal_group
from metalmark.scrub import scrub
from metalmark.telemetry.base import SensorLostError

_MOST_BYTES = 1 << 20
_KEPT_BYTES = 4096
"""Of the error messages: the last line of them may be why a tool ended."""
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
        self._open_pipes: list[IO[bytes]] = []
        self._rest = b""
        self._complaints = b""
        self._complained_bytes = 0
        self._heard_s = 0.0

    def open(self) -> str | None:
        """None once the first sample waits to be read, else the reason why none came."""
        if self._process is not None:
            return None
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                # Not a file: an endless complaint would fill the disk.
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                # Ctrl-C in the terminal is ours to handle, and a tool's helpers can be ended with it.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"{self.tool} could not be started: {getattr(error, 'strerror', None) or error}"
        self._open_pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        for pipe in self._open_pipes:
            os.set_blocking(pipe.fileno(), False)
        self._heard_s = time.monotonic()
        try:
            while self._end not in self._rest and not self._ended:
                self._wait(self._heard_s + self._start_s - time.monotonic())
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
            self._complained_bytes = 0
        elif self._ended:
            raise SensorLostError(self._how_it_ended())
        self._check_patience(self._silence_s)
        return [(sample + self._end).decode("utf-8", "replace") for sample in whole]

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # Once it has been waited for, its number may be another group's.
        for number in (signal.SIGTERM, signal.SIGKILL) if process.returncode is None else ():
            signal_group(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
                break
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        self._open_pipes = []

    @property
    def _ended(self) -> bool:
        """Whether its output is closed."""
        assert self._process is not None
        return self._process.stdout not in self._open_pipes

    def _wait(self, most_s: float) -> None:
        # Not select.select(), which takes no file descriptor above 1023.
        with selectors.PollSelector() as selector:
            for pipe in self._open_pipes:
                selector.register(pipe, selectors.EVENT_READ)
            selector.select(max(0.0, most_s))

    def _fill(self) -> None:
        assert self._process is not None
        self._rest += self._read(self._process.stdout, _MOST_BYTES - len(self._rest))
        complaints = self._read(self._process.stderr, _MOST_BYTES)
        self._complaints += complaints
        if len(self._complaints) > _KEPT_BYTES:
            # From the next line on: what a line begins with says whether a path stands in it.
            self._complaints = self._complaints[-_KEPT_BYTES:].partition(b"\n")[2]
        self._complained_bytes += len(complaints)
        if self._complained_bytes > _MOST_BYTES:
            raise SensorLostError(f"{self.tool} printed a megabyte of error messages")

    def _read(self, pipe: IO[bytes] | None, most_bytes: int) -> bytes:
        """What waits in a pipe, some bytes more than the most at the most."""
        data = bytearray()
        while pipe in self._open_pipes and len(data) <= most_bytes:
            assert pipe is not None
            try:
                piece = os.read(pipe.fileno(), 65536)
            except BlockingIOError:
                break
            if not piece:
                self._open_pipes.remove(pipe)
            data += piece
        return bytes(data)

    def _check_patience(self, patience_s: float) -> None:
        if len(self._rest) > _MOST_BYTES and self._end not in self._rest:
            raise SensorLostError(f"{self.tool} printed a megabyte without the end of a sample")
        if not self._ended and time.monotonic() - self._heard_s >= patience_s and self._end not in self._rest:
            raise SensorLostError(f"{self.tool} gave no sample for {patience_s:g} s")

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return f"{self.tool} closed its output"
        self._fill()
        lines = self._complaints.decode("utf-8", "replace").strip().splitlines()
        said = f": {scrub(lines[-1])[:_REASON_CHARS]}" if lines else ""
        return f"{self.tool} ended with status {status}{said}"
