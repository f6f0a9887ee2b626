"""What a person sees of a running sweep, on stderr: a table that fills on a terminal, else a line a cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.run import Failed
from metalmark.model.sweep import Sweep
from metalmark.report.table import sweep_table
from metalmark.report.terminal import render
from metalmark.report.units import duration, figures, seconds, share
from metalmark.results.cells import cells_of
from metalmark.runner.job import Progress
from metalmark.runner.listening import Listener
from metalmark.scrub import printable
from metalmark.telemetry.sampler import Sampler

REFRESH_S = 1.0
"""Drawing costs a core some milliseconds; the worker being measured needs them more."""


class Display(Listener, Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display(sweep: Sweep, records: Sequence[BenchRun], *, quiet: bool) -> Display:
    if quiet:
        return Silent()
    return LiveTable(sweep, records) if sys.stderr.isatty() else Lines(sweep, records)


class Silent:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def cooling(self, text: str) -> None: ...
    def started(self, cell: int, repeat: int) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def sampling(self, sampler: Sampler) -> None: ...
    def ended(self, record: BenchRun) -> None: ...


class Pace:
    """How many runs are done, and how long the rest will take if they are like those that ended."""

    def __init__(self, sweep: Sweep, done: int) -> None:
        self._repeats = sweep.repeats
        self.total = len(sweep.plans) * sweep.repeats
        self.done = done
        self._lengths: list[float] = []
        self._began_s = time.monotonic()

    def start(self) -> None:
        self._began_s = time.monotonic()

    def end(self, record: BenchRun) -> None:
        self.done += 1
        if isinstance(record.outcome, Failed):
            self.total -= self._repeats - 1 - record.repeat  # a failed cell is not repeated
        self._lengths.append(time.monotonic() - self._began_s)

    def left(self) -> str:
        if not self._lengths:
            return ""
        mean_s = sum(self._lengths) / len(self._lengths)
        running_s = min(time.monotonic() - self._began_s, mean_s)
        return f"about {duration(max((self.total - self.done) * mean_s - running_s, 1))} left"


class Lines(Silent):
    """For logs: one line when a run ends."""

    def __init__(self, sweep: Sweep, records: Sequence[BenchRun]) -> None:
        self._sweep = sweep
        self._pace = Pace(sweep, len(records))
        self._cooling = False

    def cooling(self, text: str) -> None:
        if not self._cooling:
            print(printable(text), file=sys.stderr, flush=True)  # noqa: T201
        self._cooling = True

    def started(self, cell: int, repeat: int) -> None:  # noqa: ARG002
        self._cooling = False
        self._pace.start()

    def ended(self, record: BenchRun) -> None:
        self._pace.end(record)
        left = self._pace.left() if self._pace.done < self._pace.total else ""
        line = f"[{self._pace.done}/{self._pace.total}] {plan_name(record.plan)}: {result_line(record)}"
        print(printable(f"{line}  ({left})" if left else line), file=sys.stderr, flush=True)  # noqa: T201


class LiveTable(Silent):
    """For people: the table as it fills, what runs now, and how long it will still take."""

    def __init__(self, sweep: Sweep, records: Sequence[BenchRun]) -> None:
        self._sweep = sweep
        self._records = list(records)
        self._pace = Pace(sweep, len(records))
        self._now = "starting"
        self._plan: Plan | None = None
        self._sampler: Sampler | None = None
        self._drawn_s = 0.0
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def cooling(self, text: str) -> None:
        self._now = text
        self._draw()

    def started(self, cell: int, repeat: int) -> None:
        self._plan = self._sweep.plans[cell]
        times = f", process {repeat + 1} of {self._sweep.repeats}" if self._sweep.repeats > 1 else ""
        self._now = f"starting{times}"
        self._pace.start()
        self._draw()

    def progress(self, progress: Progress) -> None:
        done = f" {progress.done * 100:.0f}%" if progress.done is not None else ""
        pace = f", {seconds(progress.step_s)} a step" if progress.step_s else ""
        self._now = f"{progress.phase}{done}{pace}"
        if time.monotonic() - self._drawn_s >= REFRESH_S:
            self._draw()

    def sampling(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def ended(self, record: BenchRun) -> None:
        self._records.append(record)
        self._pace.end(record)
        self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        table = sweep_table(cells_of(self._records), plans=self._sweep.plans)
        name = plan_name(self._plan) if self._plan else ""
        head = f"[{self._pace.done}/{self._pace.total}] {name}: {self._now}"
        parts = [head, self._pace.left(), self._load()]
        status = Text(printable("  ·  ".join(part for part in parts if part)))
        self._live.update(Group(render(table), *self._below(), status), refresh=True)

    def _below(self) -> Sequence[RenderableType]:
        """What a display adds under the table."""
        return ()

    def _load(self) -> str:
        latest = self._sampler.latest if self._sampler else {}
        cpu = latest.get("process_cpu")
        return f"CPU {cpu:.0f}%" if cpu is not None else ""


def plan_name(plan: Plan) -> str:
    batch = f" batch {plan.params['batch_size']}" if "batch_size" in plan.params else ""
    changed = "".join(f" {name} {value}" for name, value in plan.settings.changed().items())
    return f"{plan.workload} {plan.mode.value}{batch} {plan.framework} {plan.device}{changed}"


def result_line(record: BenchRun) -> str:
    (cell,) = cells_of([record])
    failure = cell.failure
    if failure:
        return f"{failure.kind.value}: {failure.message}"
    interval = cell.interval
    width = f" ± {share(interval.half_share)}" if interval else ""
    return f"{seconds(cell.step_s)} a step{width}, {figures(cell.samples_s)} samples/s"
