"""Overview: what a sweep or a training does now, gathered from its events; and the live status file made from it."""

import time
from collections.abc import Sequence
from typing import Self

import msgspec

from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun
from metalmark.model.plan import Plan, Sweep
from metalmark.model.run import Failed, RunKind, now_utc
from metalmark.model.tuning import Rung, TuningPhase, TuningRun
from metalmark.report.text.explain_page import gain_words
from metalmark.report.text.run_tables import summary
from metalmark.report.text.tune_page import rung_line
from metalmark.report.text.units import duration, figures, seconds, share
from metalmark.results.cells import cells_of
from metalmark.runner.events import Ended, Event, Paused, Progress, Sampled, Started, TrainingProgress, TuningProgress
from metalmark.runner.sweeping import was_interrupted
from metalmark.scrub import printable
from metalmark.store.address import Address
from metalmark.store.live import (
    MOST_POINTS,
    THROUGHPUT,
    UNITS,
    History,
    LiveFile,
    LiveStatus,
    LiveTuning,
    clear_left_behind,
)
from metalmark.telemetry.sampler import Sampler
from metalmark.training.derived import elapsed_s
from metalmark.training.folder import Request
from metalmark.tune.ladder import best_so_far, change_words

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
        self.tunings: dict[str, TuningProgress] = {}
        """How far the search that runs now is, by the node that it runs on; "" is this machine."""
        self.trying: dict[str, str] = {}
        """What each of them tries, in the words of its ladder."""
        self.tuned: list[str] = []
        """One line per baseline whose search has ended."""
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
        if isinstance(event, TuningProgress):
            self._tune(event)
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
            stopped = was_interrupted(event.run)
            if not stopped:
                self._count(event.run)
                self._end_part(event)
            tuning = self.tunings.get(event.node)
            # A trial by itself is told of with its gain, by the progress that comes next.
            if stopped or tuning is None or len(tuning.trying) > 1:
                label = self._label(event.node, event.run.plan, event.run.repeat)
                self.ended.append(printable(f"{label}{_at(event)}: {result_line(event.run)}"))
        elif isinstance(event, Ended) and isinstance(event.run, ParityRun):
            self.done += 1
            self._end_part(event)
            label = self._label(event.node, event.run.plan)
            against = f", against {event.run.reference.label}" if self.tunings else ""
            self.ended.append(printable(f"{label}{against}{_at(event)}: {event.run.verdict.value}"))
        elif isinstance(event, Ended) and isinstance(event.run, ExplanationRun):
            self.done += 1
            self._remaining.end()
            self.ended.append(printable(f"{event.run.subject}: {event.run.header.ending}"))
        elif isinstance(event, Ended) and isinstance(event.run, TuningRun):
            # Its trials were counted when each of them ended.
            self.tunings.pop(event.node, None)
            self.tuned.append(printable(f"{event.run.plan.label}{_at(event)}: {event.run.header.ending}"))
            self.ended.append(self.tuned[-1])

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
        label = f"{self.label}: " if self.label else ""
        head = f"[{self.counter}] {label}{self.phase}{percent}{self.detail}"
        return printable("  ·  ".join(part for part in (head, self.left, self.best, load) if part))

    @property
    def best(self) -> str:
        """The best that a tuning has found so far; empty where it runs on other machines, or nothing is tuned."""
        best = best_so_far(self.tunings[""].rungs) if "" in self.tunings else None
        return f"best so far: {best.title}, {gain_words(best.gain, best.low, best.high)}" if best else ""

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
            self._labels[node] = self._label(node, event.plan, event.repeat)
            self.running[node] = f"{self._labels[node]}: starting"
        elif isinstance(event, Paused):
            self.running[node] = f"{label}: {event.reason}"
        elif isinstance(event, Progress):
            percent = f" {event.done * 100:.0f}%" if event.done is not None else ""
            self.running[node] = f"{label}: {event.phase}{percent}"
        elif isinstance(event, Ended):
            self.running.pop(node, None)

    def _label(self, node: str, plan: Plan, repeat: int = 0) -> str:
        """Name what runs: the plan, or what it is to a tuning, as in "search, bfloat16 + compile"."""
        tuning = self.tunings.get(node)
        if tuning is None:
            return plan.label
        phase = "" if tuning.phase is TuningPhase.BASELINE else f"{tuning.phase.value}, "
        return f"{self._baseline(tuning)}{phase}{_tried_words(tuning, plan, repeat)}"

    def _baseline(self, tuning: TuningProgress) -> str:
        """Name the baseline before what is tried, where the command has several."""
        return f"{tuning.plan.label}: " if self.sweep is not None and len(self.sweep.plans) > 1 else ""

    def _tune(self, event: TuningProgress) -> None:
        """Note how far a search is, with a line for each of its settings that were measured or judged since."""
        before = self.tunings.get(event.node)
        known = {_measured_of(rung) for rung in (before.rungs if before is not None else ())}
        self.tunings[event.node], best = event, best_so_far(event.rungs)
        head = f"{event.node}: {self._baseline(event)}" if event.node else self._baseline(event)
        news = [rung for rung in event.rungs if _measured_of(rung) not in known]
        self.ended += [printable(f"{head}{rung_line(rung, best)}") for rung in news]

    def _end_part(self, event: Ended) -> None:
        """Count a part. Where several run at once, parts end as often as they have so far."""
        now_s = time.monotonic()
        self._remaining.end(now_s - self._ended_s if event.node else None)
        self._ended_s = now_s

    def _start(self, event: Started) -> None:
        repeats = self.sweep.repeats if self.sweep else 1
        again = f", repeat {event.repeat + 1} of {repeats}" if repeats > 1 else ""
        label = self._label(event.node, event.plan, event.repeat)
        self.label, self.phase, self.detail, self.share = f"{label}{again}", "starting", "", None
        if event.node in self.tunings:
            self.trying[event.node] = _tried_words(self.tunings[event.node], event.plan, event.repeat)
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

    def __init__(
        self,
        store: Address,
        what: Sweep | Request,
        previous: Sequence[BenchRun] = (),
        *,
        tuning_limit_s: float | None = None,
    ) -> None:
        """`tuning_limit_s`: the sweep is a tuning's, which may take so long."""
        self._overview = Overview(what, previous, status=True, limit_s=tuning_limit_s)
        self._limit_s = tuning_limit_s
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
        # What a process begins with is written at once: it may be silent for minutes while it compiles.
        if isinstance(event, Started) or time.monotonic() - self._written_s >= STATUS_EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        overview, tunes = self._overview, self._limit_s is not None
        kind = RunKind.TUNE if tunes else RunKind.BENCH if overview.sweep else RunKind.TRAINING
        searched = dict.fromkeys(each.plan.label for each in overview.tunings.values())
        status = LiveStatus(
            id=overview.id, kind=kind, pid=self._file.pid,
            process_s=self._file.process_s, started_at=self._started_at, updated_at=now_utc(),
            what=printable(" and ".join(searched) if tunes else overview.label),
            phase=printable(overview.phase + overview.detail), share=overview.share,
            done=overview.done, total=overview.total, left=overview.left, traces=overview.history.traces(),
            ended=tuple((overview.tuned if tunes else overview.ended)[-MOST_ENDED:]), limit_s=self._limit_s,
            tunings=tuple(
                LiveTuning(
                    baseline=printable(each.plan.label), goal=each.goal, phase=each.phase,
                    trying=printable(overview.trying.get(node, "")), rungs=each.rungs, node=printable(node),
                )
                for node, each in overview.tunings.items()
            ),
        )  # fmt: skip
        self._file.write(status)


def _measured_of(rung: Rung) -> tuple[object, ...]:
    """Tell whether a rung has news. Its gain may change because the baseline was measured again, which is none."""
    return rung.runs, rung.title, rung.status, rung.reason


def _tried_words(tuning: TuningProgress, plan: Plan, repeat: int) -> str:
    """Say which of the settings that are tried in turn a plan has, in the words of the ladder."""
    tried = [
        change for change in tuning.trying
        if msgspec.structs.replace(change.applied(tuning.plan), budget=plan.budget) == plan
    ]  # fmt: skip
    # What the gate checks may have a smaller batch, and is none of them.
    words = " and ".join(map(change_words, tried or tuning.trying))
    return f"{words}, process {repeat + 1}" if tuning.phase is TuningPhase.FINALISTS else words


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
