"""ToolSensor: what macmon and powermetrics share, readings that a child process prints."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Sequence

from metalmark.telemetry.base import Reading, SensorLostError, Unit
from metalmark.telemetry.stream import ToolStream

_MOST_UNREADABLE = 3
_SHOWN_CHARS = 40


class ToolSensor:
    """`parse` turns one sample into readings and gives none for nonsense, a little of which is passed over. Joules
    are those of a sample alone: they are summed here, from the second sample on."""

    name: str
    source: str

    def __init__(self, argv: Sequence[str], *, end: bytes, silence_s: float, start_s: float) -> None:
        self._argv = argv
        self._stream = ToolStream(argv, end=end, silence_s=silence_s, start_s=start_s)
        self._unreadable = 0
        self._joules: dict[str, float] = {}

    @abstractmethod
    def parse(self, text: str) -> list[Reading]:
        """The readings of one sample."""

    def available(self) -> str | None:
        if shutil.which(self._argv[0]) is None:
            return f"{self._stream.tool} is not installed"
        return self._stream.open()

    def read(self) -> list[Reading]:
        latest: dict[str, Reading] = {}
        for sample in self._stream.samples():
            readings = self.parse(sample)
            self._unreadable = 0 if readings else self._unreadable + 1
            if self._unreadable > _MOST_UNREADABLE:
                raise SensorLostError(
                    f"{self._stream.tool} printed what is no sample: {sample.strip()[:_SHOWN_CHARS]!r}"
                )
            for reading in readings:
                latest[reading.name] = self._summed(reading) if reading.unit is Unit.JOULES else reading
        return list(latest.values())

    def close(self) -> None:
        self._stream.close()

    def _summed(self, reading: Reading) -> Reading:
        assert isinstance(reading.value, int | float)
        total = self._joules.get(reading.name, -reading.value) + reading.value
        self._joules[reading.name] = total
        return Reading(name=reading.name, unit=reading.unit, value=total, source=reading.source)
