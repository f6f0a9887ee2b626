"""PagingSensor: a Mac's swap traffic and memory pressure, by `vm_stat` and `memory_pressure`. Needs no root.

psutil's counters for a Mac hold every page read from a file too; these hold what went to and came from swap.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from metalmark.machine.apple import MEMORY_PRESSURE, PAGING, parse_free_memory
from metalmark.machine.tools import run_tool
from metalmark.model.run import Absent
from metalmark.telemetry.answers import ToolAnswers
from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.pace import TOOL_EVERY_S

_PAGE = re.compile(r"page size of (\d{1,9}) bytes")
_SWAPPED = re.compile(r"^Swap(in|out)s:\s*(\d{1,18})\.?\s*$", re.MULTILINE)


class PagingSensor:
    name = "paging"
    source = "vm_stat"

    def __init__(self, run: Callable[..., str | Absent] = run_tool) -> None:
        self._start_bytes: dict[str, float] = {}
        self._tools = ToolAnswers(
            {PAGING: self._since_start, MEMORY_PRESSURE: parse_pressure},
            every_s=TOOL_EVERY_S,
            run=run,
        )

    def available(self) -> str | None:
        return self._tools.available()

    def read(self) -> list[Reading]:
        return self._tools.read()

    def close(self) -> None:
        """Nothing is held open."""

    def _since_start(self, text: str) -> list[Reading]:
        return [
            Reading(name=name, unit=Unit.BYTES, value=total - self._start_bytes.setdefault(name, total))
            for name, total in parse_vm_stat(text).items()
        ]


def parse_vm_stat(text: str) -> dict[str, float]:
    """Bytes swapped since the machine started, by series."""
    page = _PAGE.search(text)
    if page is None:
        return {}
    return {f"system_swap_{way}": float(int(pages) * int(page[1])) for way, pages in _SWAPPED.findall(text)}


def parse_pressure(text: str) -> list[Reading]:
    percent = parse_free_memory(text)
    if percent is None:
        return []
    return [Reading(name="system_memory_free", unit=Unit.PERCENT, value=percent, source="memory_pressure")]
