"""Readings from system tools: from those that answer and end, and from those that print sample after sample."""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import IO

from metalmark.machine.processes import signal_group
from metalmark.machine.tools import run_tool, start_tool
from metalmark.model.run import Absent
from metalmark.scrub import scrub
from metalmark.telemetry.base import Reading, ReadInterval, Sensor, SensorLostError, Unit

TOOL_EVERY_S = 5.0
"""How often a tool that has to be started is asked: five starts per second would be a load of their own."""
_ANSWER_S = 3.0
_MOST_BYTES = 1 << 20
_KEPT_BYTES = 4096
"""How much of the error messages is kept: their last line may say why a tool ended."""
_REAP_S = 0.5
_REASON_CHARS = 120
_MOST_UNREADABLE = 3
_SHOWN_CHARS = 40

RunTool = Callable[..., str | Absent]


class AnswerSensor(Sensor):
    """Readings from tools that answer and end, asked rarely. One that fails or prints nonsense is not asked again."""

    def __init__(
        self,
        parsers: Mapping[tuple[str, ...], Callable[[str], list[Reading]]],
        run: RunTool = run_tool,
        every_s: float = TOOL_EVERY_S,
    ) -> None:
        """`parsers` maps each command to what reads its answer."""
        self._parsers = dict(parsers)
        self._run = run
        self._interval = ReadInterval(every_s)
        self._first: list[Reading] = []
        self._failures: list[str] = []

    def available(self) -> str | None:
        self._first = self._ask()
        return None if self._first else "; ".join(self._failures)

    def read(self) -> list[Reading]:
        """Return new readings; raise when the last tool has failed."""
        if self._first:
            self._interval.due()
            first, self._first = self._first, []
            return first
        if not self._interval.due():
            return []
        readings = self._ask()
        if not self._parsers:
            raise SensorLostError("; ".join(self._failures))
        return readings

    def _ask(self) -> list[Reading]:
        readings: list[Reading] = []
        for argv, parse in list(self._parsers.items()):
            text = self._run(argv, _ANSWER_S)
            parsed = [] if isinstance(text, Absent) else parse(text)
            if not parsed:
                tool = PurePath(argv[0]).name
                self._failures.append(text.reason if isinstance(text, Absent) else f"{tool} says nothing of it")
                del self._parsers[argv]
            readings += parsed
        return readings


class ToolSensor(Sensor):
    """Readings that a running tool prints, sample after sample: what macmon and powermetrics share.

    `parse` turns one sample into readings and gives none for nonsense, a little of which is passed over. Joules are
    those of one sample: they are summed here, from the second sample on. `end` is how each sample ends. `read` never
    waits for the tool; one that prints no sample for `silence_s`, or no first one for `start_s`, has hung.
    """

    def __init__(self, argv: Sequence[str], *, end: bytes, silence_s: float, start_s: float) -> None:
        self._argv, self._tool = argv, PurePath(argv[0]).name
        self._end = end
        self._silence_s, self._start_s = silence_s, start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._open_pipes: list[IO[bytes]] = []
        self._rest = b""
        self._complaints = b""
        self._complained_bytes = 0
        self._heard_s = 0.0
        self._unreadable = 0
        self._joules: dict[str, float] = {}

    @abstractmethod
    def parse(self, text: str) -> list[Reading]:
        """Return the readings of one sample."""

    def available(self) -> str | None:
        """Start the tool; return None once its first sample can be read, else the reason why none came."""
        if shutil.which(self._argv[0]) is None:
            return f"{self._tool} is not installed"
        if self._process is not None:
            return None
        process = start_tool(self._argv)
        if isinstance(process, Absent):
            return process.reason
        self._process = process
        self._open_pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
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

    def read(self) -> list[Reading]:
        latest: dict[str, Reading] = {}
        for sample in self._samples():
            readings = self.parse(sample)
            self._unreadable = 0 if readings else self._unreadable + 1
            if self._unreadable > _MOST_UNREADABLE:
                shown = sample.strip()[:_SHOWN_CHARS]
                raise SensorLostError(f"{self._tool} printed something that is not a sample: {shown!r}")
            for reading in readings:
                latest[reading.name] = self._summed(reading) if reading.unit is Unit.JOULES else reading
        return list(latest.values())

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

    def _summed(self, reading: Reading) -> Reading:
        assert isinstance(reading.value, int | float)
        total = self._joules.get(reading.name, -reading.value) + reading.value
        self._joules[reading.name] = total
        return Reading(name=reading.name, unit=reading.unit, value=total, source=reading.source)

    def _samples(self) -> list[str]:
        """Return the whole samples since the last call, without waiting for any."""
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

    @property
    def _ended(self) -> bool:
        """Whether the tool has closed its output."""
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
            # From the next whole line on: whether a path is in a line is seen from how the line begins.
            self._complaints = self._complaints[-_KEPT_BYTES:].partition(b"\n")[2]
        self._complained_bytes += len(complaints)
        if self._complained_bytes > _MOST_BYTES:
            raise SensorLostError(f"{self._tool} printed a megabyte of error messages")

    def _read(self, pipe: IO[bytes] | None, most_bytes: int) -> bytes:
        """Return what waits in a pipe; it may be some bytes more than `most_bytes`."""
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
            raise SensorLostError(f"{self._tool} printed a megabyte without the end of a sample")
        if not self._ended and time.monotonic() - self._heard_s >= patience_s and self._end not in self._rest:
            raise SensorLostError(f"{self._tool} gave no sample for {patience_s:g} s")

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return f"{self._tool} closed its output"
        self._fill()
        lines = self._complaints.decode("utf-8", "replace").strip().splitlines()
        said = f": {scrub(lines[-1])[:_REASON_CHARS]}" if lines else ""
        return f"{self._tool} ended with status {status}{said}"
