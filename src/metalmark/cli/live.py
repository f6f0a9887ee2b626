"""The status that a running `bench` keeps for `metalmark serve`, from the events its display hears."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from metalmark.cli.progress import Pace, plan_name, result_line
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.sweep import Sweep, now_utc
from metalmark.runner.job import Progress
from metalmark.scrub import printable
from metalmark.store.live import THROUGHPUT, UNITS, History, Kind, LiveFile, Status, clear_left_behind
from metalmark.telemetry.sampler import Sampler

EVERY_S = 0.5
"""A status costs some hundred microseconds; the worker being measured needs the core more."""
MOST_ENDED = 8


class Keeping:
    """What both have in common: the file, when it was last written, and the history of the worker that runs."""

    def __init__(self, store: Path, identifier: str, kind: Kind, total: int) -> None:
        self._store, self._id, self._kind = store, identifier, kind
        self._started_at = now_utc()
        self._file = LiveFile(store, identifier)
        self._written_s = 0.0
        self._sampler: Sampler | None = None
        self._history = History()
        self._what, self._phase, self._left = "", "starting", ""
        self._share: float | None = None
        self._done, self._total = 0, total
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        clear_left_behind(self._store)
        self._write(now=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.remove()

    def sampling(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def _see(self, at_s: float, samples_s: float | None) -> None:
        """A point of each quantity, as often as it is written."""
        if time.monotonic() - self._written_s < EVERY_S:
            return
        latest = self._sampler.latest if self._sampler else {}
        found = {name: value for name, value in latest.items() if name.endswith(tuple(UNITS))}
        self._history.see(at_s, {**({THROUGHPUT: samples_s} if samples_s else {}), **found})
        self._write()

    def _write(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._written_s < EVERY_S:
            return
        self._written_s = time.monotonic()
        self._file.write(
            Status(
                id=self._id,
                kind=self._kind,
                pid=self._file.pid,
                process_s=self._file.process_s,
                started_at=self._started_at,
                updated_at=now_utc(),
                what=printable(self._what),
                phase=printable(self._phase),
                share=self._share,
                done=self._done,
                total=self._total,
                left=self._left,
                traces=self._history.traces(),
                ended=tuple(self._lines[-MOST_ENDED:]),
            )
        )


class BenchStatus(Keeping):
    """Of a sweep: which cell runs, and the figures of its worker."""

    def __init__(self, store: Path, sweep: Sweep, done: int) -> None:
        super().__init__(store, sweep.id, Kind.BENCH, len(sweep.plans) * sweep.repeats)
        self._sweep, self._pace, self._samples = sweep, Pace(sweep, done), 1
        self._done = done

    def cooling(self, text: str) -> None:
        self._phase, self._share = text, None
        self._write()

    def started(self, cell: int, repeat: int) -> None:
        plan = self._sweep.plans[cell]
        times = f", process {repeat + 1} of {self._sweep.repeats}" if self._sweep.repeats > 1 else ""
        self._what, self._phase, self._share = f"{plan_name(plan)}{times}", "starting", None
        self._samples, self._history, self._sampler = samples_of(plan), History(), None
        self._pace.start()
        self._write()

    def progress(self, progress: Progress) -> None:
        self._phase, self._share, self._left = progress.phase, progress.done, self._pace.left()
        self._see(progress.at_s, self._samples / progress.step_s if progress.step_s else None)

    def ended(self, record: BenchRun) -> None:
        self._pace.end(record)
        self._done, self._total, self._left = self._pace.done, self._pace.total, self._pace.left()
        self._lines.append(printable(f"{plan_name(record.plan)}: {result_line(record)}"))
        self._write()


def samples_of(plan: Plan) -> int:
    return int(plan.params.get("batch_size", 1))
