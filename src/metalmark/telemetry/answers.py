"""ToolAnswers: readings from system tools that answer and end, asked rarely and only while they make sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from metalmark.machine.tools import run_tool
from metalmark.model.run import Absent
from metalmark.telemetry.base import Reading, SensorLostError
from metalmark.telemetry.pace import Pace

_TIMEOUT_S = 3.0

Parse = Callable[[str], list[Reading]]


class ToolAnswers:
    """Command → what reads its answer. A tool that fails or talks nonsense once is not asked again."""

    def __init__(
        self,
        parsers: Mapping[Sequence[str], Parse],
        *,
        every_s: float,
        run: Callable[..., str | Absent] = run_tool,
    ) -> None:
        self._parsers = dict(parsers)
        self._run = run
        self._pace = Pace(every_s)
        self._first: list[Reading] = []
        self._failures: list[str] = []

    def available(self) -> str | None:
        self._first = self._ask()
        return None if self._first else "; ".join(self._failures)

    def read(self) -> list[Reading]:
        """Raises when the last tool has failed."""
        if self._first:
            self._pace.due()
            first, self._first = self._first, []
            return first
        if not self._pace.due():
            return []
        readings = self._ask()
        if not self._parsers:
            raise SensorLostError("; ".join(self._failures))
        return readings

    def _ask(self) -> list[Reading]:
        readings: list[Reading] = []
        for argv, parse in list(self._parsers.items()):
            text = self._run(argv, _TIMEOUT_S)
            found = [] if isinstance(text, Absent) else parse(text)
            if not found:
                tool = PurePath(argv[0]).name
                self._failures.append(text.reason if isinstance(text, Absent) else f"{tool} says nothing of it")
                del self._parsers[argv]
            readings += found
        return readings
