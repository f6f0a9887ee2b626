"""The status that a running `train` keeps for `metalmark serve`."""

from __future__ import annotations

import time
from pathlib import Path

from metalmark.cli.live import EVERY_S, Keeping, samples_of
from metalmark.cli.progress import plan_name
from metalmark.cli.training_progress import Pace
from metalmark.model.training import TrainingRun
from metalmark.report.training_table import summary
from metalmark.store.live import Kind
from metalmark.training.job import Request, TrainingProgress
from metalmark.training.launch import Event


class TrainStatus(Keeping):
    """Of a training: which epoch runs, its loss, and the figures of its worker."""

    def __init__(self, store: Path, request: Request) -> None:
        super().__init__(store, request.id, Kind.TRAIN, request.goal.epochs)
        self._what, self._samples = plan_name(request.plan), samples_of(request.plan)
        self._pace = Pace()
        self._before: tuple[float, int] | None = None

    def __call__(self, event: Event) -> None:
        self._pace.hear(event)
        if isinstance(event, TrainingRun):
            self._done = len(event.epochs)
            return
        self._share = event.done
        self._phase = f"epoch {event.epoch}, {event.phase}" if event.epoch else event.phase
        if event.losses:
            self._phase += f", loss {event.losses[-1]:.4f}"
        if event.ended is not None:
            self._done = event.ended.number
            self._lines.append(f"epoch {event.ended.number}: {summary(event.ended)}")
        self._left = self._pace.left(event.epoch, event.done or 0.0) if event.epoch else ""
        self._see(event.at_s, self._samples_s(event))

    def _samples_s(self, event: TrainingProgress) -> float | None:
        """Since the last point: steps that ended, by the worker's own clock."""
        if time.monotonic() - self._written_s < EVERY_S or not event.step:
            return None
        before, self._before = self._before, (event.at_s, event.step)
        if before is None or event.at_s <= before[0] or event.step <= before[1]:
            return None
        return (event.step - before[1]) * self._samples / (event.at_s - before[0])
