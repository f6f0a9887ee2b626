"""Overview: what a sweep or a training does now, gathered from its events; and the live status file made from it."""

import time
from collections.abc import Sequence
from typing import Self

from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun
from metalmark.model.plan import Sweep
from metalmark.model.run import Failed, RunKind, now_utc
from metalmark.model.tuning import TuningRun
from metalmark.report.text.run_tables import summary
from metalmark.report.text.units import duration, figures, seconds, share
from metalmark.results.cells import cells_of
from metalmark.runner.events import Ended, Event, Paused, Progress, Sampled, Started, TrainingProgress
from metalmark.runner.sweeping import was_interrupted
from metalmark.scrub import printable
from metalmark.store.address import Address
from metalmark.store.live import MOST_POINTS, THROUGHPUT, UNITS, History, LiveFile, LiveStatus, clear_left_behind
from metalmark.telemetry.sampler import Sampler
from metalmark.training.derived import elapsed_s
from metalmark.training.folder import Request

WATCH_EVERY_S = 1.0
WATCH_POINTS = 100_000
"""A day of seconds."""
STATUS_EVERY_S = 0.5
"""Writing a status takes some hundred microseconds; the worker being measured needs the core more."""
MOST_ENDED = 8
EARLY_SHARE = 0.05
"""An epoch of which less is done says too little about its length."""
MOST_SHOWN = 12
"""Nodes that have a line of their own while they are busy."""
MEASURED = {"measure", "training"}


class RemainingTime:
    """Estimates how long the rest takes, if the parts to come (cells or epochs) are like those that ended."""

    def __init__(self) -> None:
        self._lengths_s: list[float] = []
        self._began_s = time.monotonic()

    def start(self) -> None:
        self._began_s = time.monotonic()

    def end(self, length_s: float | None = None) -> None:
        """Count a part that ended; without a length, the time since it started."""
        self._lengths_s.append(time.monotonic() - self._began_s if length_s is None else length_s)
        self.start()

    def text(self, parts: int, done: float = 0.0) -> str:
        """Describe what is left: so many parts, of the first of which a share of `done` is over."""
        running_s = time.monotonic() - self._began_s
        if parts <= 0:
            return ""
        if self._lengths_s:
            mean_s = sum(self._lengths_s) / len(self._lengths_s)
        elif done > EARLY_SHARE:
            mean_s = running_s / done
        else:
            return ""
        left_s = (parts - 1) * mean_s + max(0.0, mean_s - running_s)
        return f"about {duration(max(left_s, 1))} left"


class Overview:
    """What a sweep or a training does now. Every display shows from it."""

    def __init__(
        self,
        what: Sweep | Request,
        previous: Sequence[BenchRun] = (),
        *,
        watch: bool = False,
        status: bool = False,
        checks: bool = False,
        limit_s: float | None = None,
    ) -> None:
        """`checks`: the cells of the sweep are checked, not timed. `limit_s`: how long all of it may take.

        `watch` and `status` keep a history of the worker: the one of measured steps, the other of all phases."""
        self.sweep = what if isinstance(what, Sweep) else None
        self.id, self.watch, self.checks = what.id, watch, checks
        self.runs: list[BenchRun] = []
        """The runs of a sweep that ended."""
        self.label, self.phase, self.detail = "", "starting", ""
        """`detail`: the time per step or the loss."""
        self.share: float | None = None
        """How much of the running cell or epoch is done."""
        self.done = 0
        self.total = len(what.plans) * what.repeats if isinstance(what, Sweep) else what.goal.epochs
        """Runs of a sweep, or epochs of a training."""
        self.ended: list[str] = []
        """One line per cell or epoch that ended since this began."""
        self.running: dict[str, str] = {}
        """What each node of a cluster does now."""
        self.sampler: Sampler | None = None
        self._points = WATCH_POINTS if watch else MOST_POINTS if status else 0
        self._every_s = WATCH_EVERY_S if watch else STATUS_EVERY_S
        self.history = History(self._points)
        self._seen_s = 0.0
        self._remaining = RemainingTime()
        self._limit_s, self._began_s = limit_s, time.monotonic()
        self._ended_s = self._began_s
        self._labels: dict[str, str] = {}
        self._epoch_done = 0.0
        self._samples_per_step = 1
        self._step_before: tuple[float, int] | None = None
        for run in previous:
            if not was_interrupted(run):
                self._count(run)

    def __call__(self, event: Event) -> None:
        self._see_node(event)
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Paused):
            self.phase, self.detail, self.share = event.reason, "", None
        elif isinstance(event, Sampled):
            self.sampler = event.sampler
        elif isinstance(event, TrainingProgress):
            self._train(event)
        elif isinstance(event, Progress):
            self.phase, self.share = event.phase, event.done
            self.detail = f", {seconds(event.step_s)} per step" if event.step_s else ""
            self._see(event, self._samples_per_step / event.step_s if event.step_s else None)
        elif isinstance(event, Ended) and isinstance(event.run, BenchRun):
            # What Ctrl-C stopped is measured again when the sweep goes on: it is shown, and not counted as done.
            if not was_interrupted(event.run):
                self._count(event.run)
                self._end_part(event)
            self.ended.append(printable(f"{event.run.plan.label}{_at(event)}: {result_line(event.run)}"))
        elif isinstance(event, Ended) and isinstance(event.run, ParityRun):
            self.done += 1
            self._end_part(event)
            self.ended.append(printable(f"{event.run.plan.label}{_at(event)}: {event.run.verdict.value}"))
        elif isinstance(event, Ended) and isinstance(event.run, ExplanationRun):
            self.done += 1
            self._remaining.end()
            self.ended.append(printable(f"{event.run.subject}: {event.run.header.ending}"))
        elif isinstance(event, Ended) and isinstance(event.run, TuningRun):
            # Its trials were counted when each of them ended.
            self.ended.append(printable(f"{event.run.plan.label}{_at(event)}: {event.run.header.ending}"))

    @property
    def counter(self) -> str:
        """How far it is: the runs done of all, or the time spent of what it may take."""
        if self._limit_s is None:
            return f"{self.done}/{self.total}"
        return f"{duration(time.monotonic() - self._began_s)} of {duration(self._limit_s)}"

    @property
    def left(self) -> str:
        """How long the rest will take, in words; empty where nothing tells."""
        if self._limit_s is not None:
            return ""
        return self._remaining.text(self.total - self.done, self._epoch_done)

    @property
    def line(self) -> str:
        """What runs now, in one line."""
        percent = f" {self.share * 100:.0f}%" if self.share is not None else ""
        cpu = self.sampler.latest.get("process_cpu") if self.sampler else None
        load = f"CPU {cpu:.0f}%" if cpu is not None else ""
        head = f"[{self.counter}] {self.label}: {self.phase}{percent}{self.detail}"
        return printable("  ·  ".join(part for part in (head, self.left, load) if part))

    @property
    def lines(self) -> list[str]:
        """What runs now: one line, or one for each busy node of a cluster after one for all."""
        if not self.running:
            return [self.line]
        head = "  ·  ".join(filter(None, (f"[{self.counter}] {len(self.running)} at once", self.left)))
        more = [f"and {len(self.running) - MOST_SHOWN} more"] if len(self.running) > MOST_SHOWN else []
        nodes = [f"{node}: {what}" for node, what in list(self.running.items())[:MOST_SHOWN]]
        return [printable(line) for line in (head, *nodes, *more)]

    def _see_node(self, event: Event) -> None:
        """Note what a node of a cluster does."""
        node = getattr(event, "node", "")
        if not node:
            return
        label = self._labels.get(node, "")
        if isinstance(event, Started):
            self._labels[node] = event.plan.label
            self.running[node] = f"{event.plan.label}: starting"
        elif isinstance(event, Paused):
            self.running[node] = f"{label}: {event.reason}"
        elif isinstance(event, Progress):
            percent = f" {event.done * 100:.0f}%" if event.done is not None else ""
            self.running[node] = f"{label}: {event.phase}{percent}"
        elif isinstance(event, Ended):
            self.running.pop(node, None)

    def _end_part(self, event: Ended) -> None:
        """Count a part. Where several run at once, parts end as often as they have so far."""
        now_s = time.monotonic()
        self._remaining.end(now_s - self._ended_s if event.node else None)
        self._ended_s = now_s

    def _start(self, event: Started) -> None:
        repeats = self.sweep.repeats if self.sweep else 1
        again = f", repeat {event.repeat + 1} of {repeats}" if repeats > 1 else ""
        self.label, self.phase, self.detail, self.share = f"{event.plan.label}{again}", "starting", "", None
        self.history, self.sampler, self._step_before = History(self._points), None, None
        self._samples_per_step = int(event.plan.params.get("batch_size", 1))
        if event.run is not None:
            self.done, self.total = len(event.run.epochs), event.run.goal.epochs
        self._remaining.start()

    def _count(self, run: BenchRun) -> None:
        self.runs.append(run)
        self.done += 1
        if isinstance(run.outcome, Failed) and self.sweep:
            self.total -= self.sweep.repeats - 1 - run.repeat  # a failed cell is not repeated

    def _train(self, event: TrainingProgress) -> None:
        if event.setting is not None:
            self._remaining.start()  # importing and building are over: the first epoch begins
        self.phase = f"epoch {event.epoch}, {event.phase}" if event.epoch else event.phase
        # Where nobody knows how long an epoch is, its steps say that it goes on.
        steps = f", step {event.step:,}" if event.step and event.done is None else ""
        self.detail = f"{steps}, loss {event.losses[-1]:.4f}" if event.losses else steps
        self.share = event.done
        self._epoch_done = 1.0 if event.phase == "validating" else (event.done or 0.0) if event.epoch else 0.0
        if event.ended is not None:
            self.done = event.ended.number
            self._remaining.end(elapsed_s(event.ended) + event.ended.checkpoint_s)
            self.ended.append(f"epoch {event.ended.number}: {summary(event.ended)}")
        self._see(event, None)

    def _see(self, event: Progress, samples_s: float | None) -> None:
        """Keep a point of each quantity."""
        now_s = time.monotonic()
        if not self._points or now_s - self._seen_s < self._every_s or (self.watch and event.phase not in MEASURED):
            return
        self._seen_s = now_s
        if isinstance(event, TrainingProgress) and event.step:
            samples_s = self._trained_samples_s(event)
        latest = self.sampler.latest if self.sampler else {}
        values = {name: value for name, value in latest.items() if name.endswith(tuple(UNITS))}
        self.history.see(event.at_s, {**({THROUGHPUT: samples_s} if samples_s else {}), **values})

    def _trained_samples_s(self, event: TrainingProgress) -> float | None:
        """Return the samples per second since the last point, by the worker's own clock."""
        before, self._step_before = self._step_before, (event.at_s, event.step)
        if before is None or event.at_s <= before[0] or event.step <= before[1]:
            return None
        return (event.step - before[1]) * self._samples_per_step / (event.at_s - before[0])


class LiveStatusFile:
    """The status that a running command keeps for `metalmark serve`."""

    def __init__(self, store: Address, what: Sweep | Request, previous: Sequence[BenchRun] = ()) -> None:
        self._overview = Overview(what, previous, status=True)
        self._store, self._file = store, LiveFile(store, what.id)
        self._started_at = now_utc()
        self._written_s = 0.0

    def __enter__(self) -> Self:
        clear_left_behind(self._store)
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.remove()

    def __call__(self, event: Event) -> None:
        self._overview(event)
        if time.monotonic() - self._written_s >= STATUS_EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        overview = self._overview
        status = LiveStatus(
            id=overview.id, kind=RunKind.BENCH if overview.sweep else RunKind.TRAINING, pid=self._file.pid,
            process_s=self._file.process_s, started_at=self._started_at, updated_at=now_utc(),
            what=printable(overview.label), phase=printable(overview.phase + overview.detail), share=overview.share,
            done=overview.done, total=overview.total, left=overview.left, traces=overview.history.traces(),
            ended=tuple(overview.ended[-MOST_ENDED:]),
        )  # fmt: skip
        self._file.write(status)


def _at(event: Ended) -> str:
    return f" on {event.node}" if event.node else ""


def result_line(run: BenchRun) -> str:
    """Return what a run came to, in one line of a log."""
    (cell,) = cells_of([run])
    if cell.failure:
        return f"{cell.failure.kind.value}: {cell.failure.message}"
    width = f" ± {share(cell.interval.half_share)}" if cell.interval else ""
    rate = f"{figures(cell.samples_s)} samples/s" if cell.tokens_s is None else f"{figures(cell.tokens_s)} tokens/s"
    return f"{seconds(cell.step_s)} per step{width}, {rate}"
