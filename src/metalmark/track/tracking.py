"""Tracking: what one command or one watched loop tells its trackers while it runs. Each run is written to a queue on
disk, which processes of their own send (`launch.py`). Nothing here imports a tracker's library."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

from metalmark.errors import MetalmarkError
from metalmark.model.codec import AnyRun
from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun
from metalmark.model.plan import Scalar
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.runner.events import Ended, Event, Listener, Started, TrainingProgress
from metalmark.track import story
from metalmark.track.destination import TrackTargets, parse_track
from metalmark.track.launch import (
    Say,
    SenderProcess,
    SendOutcome,
    report_outcomes,
    say_nothing,
    say_on_stderr,
    start_senders,
    wait_for_senders,
    write_queue,
)
from metalmark.track.queue import Queue, QueueEvent, QueueWriter

PATIENCE_S = 10.0
"""How long the end of a run waits for its trackers; what needs longer goes on without it."""


class Tracking:
    """What one command, or one watched loop, tells its trackers. Whatever goes wrong here ends the tracking, never the
    run: `trouble` says why."""

    def __init__(self, track: str | TrackTargets | None, *, say: Say = say_nothing, warn: Say = say_on_stderr) -> None:
        """`track` is as --track takes it; None tracks nothing. `say` gets the news, `warn` what went wrong."""
        self._targets = track if isinstance(track, TrackTargets) else parse_track(track) if track else TrackTargets()
        self._say, self._warn = say, warn
        self._notes = list(self._targets.notes)
        self._training: TrainingRun | None = None
        self._writer: QueueWriter | None = None
        self._begun = False
        self._began_ms = 0
        self._senders: list[SenderProcess] = []
        self._measured: list[Queue] = []
        """Bench runs. None is sent before the last is measured: that would disturb the others."""
        self.trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def listener(self, folder: Path | None = None) -> Listener:
        """Return who tells the trackers of a sweep's cells, or of the training in `folder`."""
        while self._notes:
            self._say(self._notes.pop(0))
        if self.trouble:  # of the training before; this one has a queue of its own
            self._warn(f"metalmark: {self.trouble}")
            self.trouble = ""
        return lambda event: self._attempt(self._hear, event, folder)

    def begin_watch(self, run_id: str, name: str, started_at: str, params: Mapping[str, Scalar]) -> None:
        """Begin to track a watched loop."""
        self._began_ms = story.milliseconds(started_at)
        self._attempt(self._open, run_id)
        self._attempt(self._append, story.watch_begin(run_id, name, started_at, params))

    def log(self, rows: Iterable[tuple[int, float, Mapping[str, float]]]) -> None:
        """Tell what a watched loop logged: the step, the seconds since the loop began, and the numbers."""
        events = [story.step_row(step, metrics, self._began_ms + round(at_s * 1000)) for step, at_s, metrics in rows]
        self._attempt(self._append, *events)

    def end_watch(self, run: WatchedRun) -> list[str]:
        """Tell what a watched loop came to, and wait within reason; return what went wrong, for the run's notes."""
        self._attempt(self._conclude, run)
        unsent = [outcome.brief for outcome in self.finish() if not outcome.delivery.done]
        return [self.trouble, *unsent] if self.trouble else unsent

    def finish(self) -> "list[SendOutcome]":
        """Send what is left, wait within reason, and say what became of it."""
        self._close()
        outcomes: list[SendOutcome] = []
        try:
            if self._measured:
                self._senders += start_senders(self._measured, self._targets.destinations, uri=self._targets.uri)
            outcomes = wait_for_senders(self._senders, PATIENCE_S)
        except Exception as error:  # noqa: BLE001  whatever it is, the run is over and kept
            self._stop(error)
        if self.trouble:
            self._warn(f"metalmark: {self.trouble}")
        report_outcomes(outcomes, self._say, self._warn)
        return outcomes

    def _attempt(self, step: Callable[..., None], *arguments: object) -> None:
        if self.trouble or not self._targets.destinations:
            return
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001  whatever it is, it costs the tracking, never the run
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        why = error.message if isinstance(error, MetalmarkError) else f"{type(error).__name__}: {error}"
        self.trouble = f"tracking stopped, the run goes on: {why}"
        self._close()

    def _hear(self, event: Event, folder: Path | None) -> None:
        if isinstance(event, Started) and event.run is not None:
            self._training, self._begun = event.run, False
            self._began_ms = story.milliseconds(event.run.sessions[-1].started_at)
            # The libraries are imported while the framework is; what is sent begins when the training does.
            self._open(event.run.id)
        elif isinstance(event, TrainingProgress):
            self._progress(event)
        elif isinstance(event, Ended) and isinstance(event.run, BenchRun | ParityRun | ExplanationRun | TuningRun):
            self._measured.append(write_queue(event.run, self._targets.destinations))
        elif isinstance(event, Ended) and isinstance(event.run, TrainingRun):
            if self._begun:
                self._append(*story.session_rows(event.run, len(event.run.sessions) - 1))
                self._conclude(event.run, folder)
            self._close()

    def _progress(self, event: TrainingProgress) -> None:
        assert self._training is not None
        at_ms = self._began_ms + round(event.at_s * 1000)
        events: list[QueueEvent] = []
        if event.setting is not None:
            if not self._begun:
                # Bad input is no run: nothing is told before the worker has found its data and its device. A resumed
                # training is told from its beginning: trackers skip what they have.
                events += [story.begin_of(self._training), *story.history(self._training)]
                self._begun = True
            events.append(story.setup_event(event.setting))
        losses = enumerate(event.losses, event.step - len(event.losses) + 1)
        events += [story.step_row(step, {"train/loss": loss}, at_ms) for step, loss in losses]
        if event.ended is not None:
            events.append(story.epoch_row(event.ended, at_ms))
        if events:
            self._append(*events)

    def _open(self, run_id: str) -> None:
        self._close()
        self._writer = QueueWriter(run_id, self._targets.destinations)
        self._senders += start_senders([self._writer.queue], self._targets.destinations, uri=self._targets.uri)

    def _append(self, *events: QueueEvent) -> None:
        assert self._writer is not None
        self._writer.append(*events)

    def _conclude(self, run: AnyRun, folder: Path | None = None) -> None:
        assert self._writer is not None
        story.conclude(self._writer, run, folder)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
