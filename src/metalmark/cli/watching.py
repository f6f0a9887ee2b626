"""`bench --watch`: a long run as it goes, throughput, clocks, watts, heat and memory, each as a line of bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from metalmark.cli.progress import Display, Lines, LiveTable
from metalmark.model.measurement import BenchRun
from metalmark.model.sweep import Sweep
from metalmark.report.spark import spark
from metalmark.report.units import figures, size
from metalmark.runner.job import Progress
from metalmark.telemetry.sampler import Sampler

EVERY_S = 1.0
LINE_EVERY_S = 10.0
BARS = 48
MOST = 100_000
"""A day of them: then the oldest half goes."""
ENDINGS = {
    "_power": "W",
    "_clock": "MHz",
    "_temperature": "°C",
    "_utilisation": "%",
    "_memory": "bytes",
    "_throttle": "",
}
THROUGHPUT = "throughput"


class History:
    """What was seen so far, once a second, for the lines of bars."""

    def __init__(self, samples_per_step: int) -> None:
        self._samples_per_step = samples_per_step
        self._sampler: Sampler | None = None
        self._seen_s = 0.0
        self.began_s = time.monotonic()
        self.values: dict[str, list[float]] = {}

    def sampling(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def see(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if progress.phase != "measure" or now_s - self._seen_s < EVERY_S:
            return
        self._seen_s = now_s
        latest = self._sampler.latest if self._sampler else {}
        found = {name: value for name, value in latest.items() if name.endswith(tuple(ENDINGS))}
        if progress.step_s:
            found = {THROUGHPUT: self._samples_per_step / progress.step_s, **found}
        for name, value in found.items():
            kept = self.values.setdefault(name, [])
            kept.append(value)
            if len(kept) > MOST:
                del kept[: MOST // 2]

    def rows(self, width: int) -> list[tuple[str, str, str]]:
        """Name, bars, and where it is now with the lowest and the highest it was."""
        return [
            (name, spark(values, width), f"{_shown(name, values[-1])} ({_shown(name, min(values))} to "
             f"{_shown(name, max(values))})")
            for name, values in self.values.items()
        ]  # fmt: skip


class WatchTable(LiveTable):
    """The table that fills, and below it the run that is being measured."""

    def __init__(self, sweep: Sweep, records: Sequence[BenchRun]) -> None:
        super().__init__(sweep, records)
        self._history: History | None = None

    def started(self, cell: int, repeat: int) -> None:
        self._history = _history(self._sweep, cell)
        super().started(cell, repeat)

    def sampling(self, sampler: Sampler) -> None:
        super().sampling(sampler)
        if self._history:
            self._history.sampling(sampler)

    def progress(self, progress: Progress) -> None:
        if self._history:
            self._history.see(progress)
        super().progress(progress)

    def _below(self) -> Sequence[RenderableType]:
        if not self._history or not self._history.values:
            return []
        grid = Table.grid(padding=(0, 2))
        for row in self._history.rows(BARS):
            grid.add_row(*map(Text, row))
        return [grid]


class WatchLines(Lines):
    """For logs: a line every ten seconds."""

    def __init__(self, sweep: Sweep, records: Sequence[BenchRun]) -> None:
        super().__init__(sweep, records)
        self._history: History | None = None
        self._said_s = 0.0

    def started(self, cell: int, repeat: int) -> None:
        self._history = _history(self._sweep, cell)
        super().started(cell, repeat)

    def sampling(self, sampler: Sampler) -> None:
        if self._history:
            self._history.sampling(sampler)

    def progress(self, progress: Progress) -> None:
        if not self._history:
            return
        self._history.see(progress)
        now_s = time.monotonic()
        if self._history.values and now_s - self._said_s >= LINE_EVERY_S:
            self._said_s = now_s
            latest = ", ".join(f"{name} {_shown(name, values[-1])}" for name, values in self._history.values.items())
            print(f"{now_s - self._history.began_s:.0f} s: {latest}", file=sys.stderr, flush=True)  # noqa: T201


def make_watch(sweep: Sweep, records: Sequence[BenchRun]) -> Display:
    return WatchTable(sweep, records) if sys.stderr.isatty() else WatchLines(sweep, records)


def _history(sweep: Sweep, cell: int) -> History:
    return History(int(sweep.plans[cell].params.get("batch_size", 1)))


def _shown(name: str, value: float) -> str:
    if name == THROUGHPUT:
        return f"{figures(value)} samples/s"
    unit = next(unit for ending, unit in ENDINGS.items() if name.endswith(ending))
    return size(value) if unit == "bytes" else f"{figures(value)} {unit}".strip()
