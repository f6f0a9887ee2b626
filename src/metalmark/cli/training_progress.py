"""What a training shows on stderr: a bar an epoch for people, a line an epoch for logs."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from metalmark.model.training import Ending, TrainingRun
from metalmark.report.training_table import summary
from metalmark.report.units import duration
from metalmark.scrub import printable
from metalmark.training.derived import elapsed_s
from metalmark.training.job import TrainingProgress
from metalmark.training.launch import Event

REFRESH_HZ = 2.0
"""Drawing costs a core some milliseconds; the training needs them more."""


class Display(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, event: Event) -> None: ...


def make_display(*, quiet: bool) -> Display:
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


class Silent:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def __call__(self, event: Event) -> None: ...


class Pace:
    """How long the rest will take if the epochs to come are like those that ended."""

    def __init__(self) -> None:
        self.epochs = 0
        self._lengths: list[float] = []
        self._began_s = time.monotonic()

    def hear(self, event: Event) -> None:
        if isinstance(event, TrainingRun):
            self.epochs = event.goal.epochs
        elif event.ended is not None:
            self._lengths.append(elapsed_s(event.ended) + event.ended.checkpoint_s)
            self._began_s = time.monotonic()

    def left(self, epoch: int, done: float) -> str:
        """At epoch `epoch`, of which a share of `done` is trained. Without an ended epoch, this one is the measure."""
        running_s = time.monotonic() - self._began_s
        if self._lengths:
            mean_s = sum(self._lengths) / len(self._lengths)
        elif done > 0.05:
            mean_s = running_s / done
        else:
            return ""
        left_s = (self.epochs - epoch) * mean_s + max(0.0, mean_s - running_s)
        return f"about {duration(max(left_s, 1))} left"


class Lines(Silent):
    """For logs: one line when an epoch ends."""

    def __init__(self) -> None:
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        self._pace.hear(event)
        if isinstance(event, TrainingProgress) and event.ended is not None:
            epoch = event.ended
            left = self._pace.left(epoch.number + 1, 0.0) if epoch.number < self._pace.epochs else ""
            line = f"[{epoch.number}/{self._pace.epochs}] {summary(epoch)}"
            print(printable(f"{line}  ({left})" if left else line), file=sys.stderr, flush=True)  # noqa: T201


class Bars(Silent):
    """For people: a bar for each epoch, what it does now, and how long it will still take."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            console=Console(stderr=True),
            refresh_per_second=REFRESH_HZ,
        )
        self._task: TaskID | None = None
        self._epoch = -1

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        self._pace.hear(event)
        if isinstance(event, TrainingRun):
            if event.ending is Ending.RUNNING:
                self._new("starting")
            return
        if event.epoch and event.epoch != self._epoch:
            self._epoch = event.epoch
            self._new(f"epoch {event.epoch}/{self._pace.epochs}")
        if self._task is None:
            return
        if event.ended is not None:
            self._progress.update(self._task, completed=1.0, said=summary(event.ended))
        elif event.phase == "validating":
            left = self._pace.left(self._epoch, 1.0)
            self._progress.update(self._task, said=f"validating {(event.done or 0) * 100:.0f}%  ·  {left}")
        elif event.epoch:
            said = [f"loss {event.losses[-1]:.4f}"] if event.losses else []
            left = self._pace.left(self._epoch, event.done or 0.0)
            self._progress.update(
                self._task, completed=event.done, said="  ·  ".join([*said, *([left] if left else [])])
            )
        else:
            share = f" {event.done * 100:.0f}%" if event.done is not None else ""
            self._progress.update(self._task, said=f"{event.phase}{share}")

    def _new(self, name: str) -> None:
        if self._task is not None and name.startswith("epoch 1/"):
            self._progress.update(self._task, completed=1.0, said="ready")
        self._task = self._progress.add_task(name, total=1.0, said="")
