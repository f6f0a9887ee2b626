"""Tracking: runs to trackers. A run is written to a queue on disk, and a process per destination sends it.

`Tracking` is for runs that are alive, `push` for runs that are over, `waiting`, `sync` and `matching_queues` for what
could not be sent. Nothing here imports a tracker's library.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from metalmark.errors import FormatError, MetalmarkError, UsageError
from metalmark.machine.orphans import MARK
from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Scalar
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.runner.events import Ended, Event, Listener, Started, TrainingProgress
from metalmark.scrub import printable
from metalmark.store.sqlite import store_path
from metalmark.track import story
from metalmark.track.destination import Destination, TrackTargets, full_uri, parse_track
from metalmark.track.queue import Begin, Delivery, End, Queue, QueueEvent, QueueWriter, clear_sent, queues

PATIENCE_S = 10.0
"""How long the end of a run waits for its trackers; what needs longer goes on without it."""
FEW = 4
"""Up to so many runs have a line each; more have one for each destination and each reason."""
DEFAULTS = {
    # Nothing is uploaded unasked: what these libraries tell their makers is not what the user tracks.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    # MLflow's own are minutes, and it is we who try again.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "PYTHONWARNINGS": "ignore",
}

Say = Callable[[str], None]


def say_nothing(_: str) -> None:
    """For a caller that wants no messages."""


def say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


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
        self._senders: list[_Sender] = []
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
                self._senders += _start(self._measured, self._targets.destinations, uri=self._targets.uri)
            outcomes = _wait(self._senders, PATIENCE_S)
        except Exception as error:  # noqa: BLE001  whatever it is, the run is over and kept
            self._stop(error)
        if self.trouble:
            self._warn(f"metalmark: {self.trouble}")
        _report(outcomes, self._say, self._warn)
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
        elif isinstance(event, Ended) and isinstance(event.run, BenchRun):
            self._measured.append(_written(event.run, self._targets.destinations))
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
        self._senders += _start([self._writer.queue], self._targets.destinations, uri=self._targets.uri)

    def _append(self, *events: QueueEvent) -> None:
        assert self._writer is not None
        self._writer.append(*events)

    def _conclude(self, run: AnyRun, folder: Path | None = None) -> None:
        assert self._writer is not None
        story.conclude(self._writer, run, folder)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def push(
    runs: Sequence[AnyRun],
    to: str,
    *,
    folders: Mapping[str, Path] | None = None,
    say: Say = say_nothing,
    warn: Say = say_on_stderr,
) -> bool:
    """Send runs that are over and wait for it; True when the trackers have all of them.

    `to` is as --track takes it. `folders`: run id → the folder of that training, for its model; an imported training
    has none.
    """
    targets = parse_track(to)
    if not targets.destinations:
        warn("Nothing is sent: W&B is disabled.")
        return True
    written = [_written(run, targets.destinations, (folders or {}).get(run.id)) for run in runs]
    for note in targets.notes:
        say(note)
    say(f"Sending {_count(written)} to {' and '.join(map(str, targets.destinations))} ...")
    return _report(_wait(_start(written, targets.destinations, uri=targets.uri), None), say, warn)


class WaitingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run that one tracker does not have whole, as `track list --json` shows it."""

    run: str
    what: str
    tracker: str
    place: str
    events: int
    sent: int
    tries: int
    state: str
    """"running", "being sent", "waiting", or "damaged" for what can't be sent."""
    why: str


def waiting() -> list[WaitingRun]:
    """Return what has not been sent."""
    clear_sent()
    runs = []
    for queue in queues():
        try:
            runs += _waiting(queue)
        except (FormatError, OSError) as error:
            why = error.message if isinstance(error, FormatError) else f"it can't be read: {error.strerror}"
            runs.append(_damaged(queue, "", why))
    return runs


def _waiting(queue: Queue) -> list[WaitingRun]:
    events, _ = queue.read()
    damage = queue.damage()
    if not events and not queue.is_written() and not damage:
        return []
    begin = next((event for event in events if isinstance(event, Begin)), None)
    what = begin.name.removesuffix(f" {queue.id}") if begin is not None else ""
    running = queue.is_written() and not (events and isinstance(events[-1], End))
    runs = []
    for delivery in queue.deliveries():
        if delivery.done and not running and not damage:
            continue
        sending = queue.is_sent(delivery.destination.key)
        state = "running" if running else "being sent" if sending else "damaged" if delivery.done else "waiting"
        runs.append(
            WaitingRun(
                run=queue.id,
                what=what,
                tracker=delivery.destination.tracker,
                place=delivery.destination.place,
                events=len(events),
                sent=delivery.sent,
                tries=delivery.tries,
                state=state,
                why=". ".join(filter(None, (delivery.trouble, damage))),
            )
        )
    return runs + [_damaged(queue, key, why, what=what, events=len(events)) for key, why in queue.unreadable().items()]


def _damaged(queue: Queue, key: str, why: str, *, what: str = "", events: int = 0) -> WaitingRun:
    tracker = key.partition("-")[0]
    advice = f"Queue the run again: metalmark runs push {queue.id} --to {tracker or 'TRACKER'}; or forget it: "
    return WaitingRun(
        run=queue.id, what=what, tracker=tracker, place="", events=events, sent=0, tries=0, state="damaged",
        why=f"{why} {advice}metalmark track delete {queue.id}",
    )  # fmt: skip


def matching_queues(run_queries: Sequence[str]) -> list[Queue]:
    """Return the queues whose run's id begins so; none that is still written."""
    every = queues()
    matching: dict[str, Queue] = {}
    for query in run_queries:
        of_query = [queue for queue in every if query and queue.id.startswith(query)]
        if not of_query:
            raise UsageError(f"Nothing of {printable(query)!r} waits.", hint="`metalmark track list` shows what does.")
        matching.update((queue.folder.name, queue) for queue in of_query)
    alive = [queue for queue in matching.values() if queue.is_written()]
    if alive:
        raise UsageError(
            f"The run {alive[0].id} is not over.", hint="It sends by itself; wait for its end, or stop it with Ctrl-C."
        )
    return list(matching.values())


def sync(
    run_queries: Sequence[str], *, to: str | None = None, say: Say = say_nothing, warn: Say = say_on_stderr
) -> bool:
    """Send what waits of these runs, or of all, and wait for it however long it takes; True when nothing is left."""
    clear_sent()
    ended = [queue for queue in (matching_queues(run_queries) if run_queries else queues()) if not queue.is_written()]
    unsent: dict[Destination, list[Queue]] = {}
    for queue in ended:
        for delivery in queue.deliveries():
            if not delivery.done and to in (None, delivery.destination.tracker):
                unsent.setdefault(delivery.destination, []).append(queue)
    outcomes = []
    for destination, of_it in unsent.items():
        say(f"Sending {_count(of_it)} to {printable(str(destination))} ...")
        outcomes += _wait(_start(of_it, [destination], once=True), None)
    damaged = [run for run in waiting() if run.state == "damaged" and to in (None, run.tracker, "")]
    for run in damaged:
        warn(printable(f"{run.run}: {run.why}"))
    if not outcomes and not damaged:
        say("Nothing waits.")
    return _report(outcomes, say, warn) and not damaged


class SendOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one queue at one destination."""

    delivery: Delivery
    goes_on: bool
    """Its process still sends."""

    @property
    def text(self) -> str:
        """One line for the user; empty for a run that never began."""
        tracker = self.delivery.destination.tracker
        if self.delivery.done:
            return f"{tracker}: {self.delivery.where}" if self.delivery.where else ""
        if self.goes_on:
            why = f" ({self.delivery.trouble})" if self.delivery.trouble else ""
            return f"{tracker}: still sending{why}; `metalmark track list` shows how far it is."
        why = self.delivery.trouble or "its process ended early"
        return f"{tracker}: not sent ({why}). It waits in the queue; send it later: metalmark track sync"

    @property
    def brief(self) -> str:
        """The same for a run's own notes, which name no server."""
        how = "still being sent" if self.goes_on else "not sent yet: metalmark track sync"
        return f"{self.delivery.destination.tracker}: {how}"


class _Sender(NamedTuple):
    """A process that brings these queues to one destination."""

    queues: Sequence[Queue]
    key: str
    process: subprocess.Popen[bytes]


def _start(
    queues: Sequence[Queue], destinations: Sequence[Destination], *, uri: str = "", once: bool = False
) -> list[_Sender]:
    """Start a process per destination. `uri`: MLflow's as given, where it has a password. `once`: do not try again."""
    senders = []
    for destination in destinations:
        environment = {**DEFAULTS, **os.environ}
        # A W&B run of the user's own in this process is none of ours.
        environment.pop("WANDB_SERVICE", None)
        # Of a loop inside a worker: what is sent goes on when the worker has ended.
        environment.pop(MARK, None)
        # Offline, a run's artifacts stay where W&B staged them: that is part of the run, so it lies beside it.
        environment.setdefault("WANDB_DATA_DIR", str(store_path().parent / "wandb" / "data"))
        if destination.tracker == "mlflow":
            environment["MLFLOW_TRACKING_URI"] = uri or full_uri(destination.place)
        folders = [str(queue.folder) for queue in queues]
        process = subprocess.Popen(
            [sys.executable, "-m", "metalmark.track.sender", destination.key, *folders, *(["--once"] if once else [])],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal, or whatever ends our group, must not cut off what is being sent.
            start_new_session=True,
        )
        senders.append(_Sender(queues=queues, key=destination.key, process=process))
    return senders


def _wait(senders: Sequence[_Sender], patience_s: float | None) -> list[SendOutcome]:
    """Wait until they have ended, or for so long in all."""
    deadline_s = None if patience_s is None else time.monotonic() + patience_s
    outcomes = []
    for sender in senders:
        goes_on = False
        try:
            sender.process.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            goes_on = True
            # Somebody must hear of its end, or it stays in the system's table as long as we live.
            threading.Thread(target=sender.process.wait, daemon=True, name=f"end-of-{sender.key}").start()
        outcomes += [
            SendOutcome(delivery=delivery, goes_on=goes_on or queue.is_sent(sender.key))
            for queue in sender.queues
            for delivery in queue.deliveries()  # none of a queue that another process has cleared away since
            if delivery.destination.key == sender.key
        ]
    clear_sent()
    return outcomes


def _written(run: AnyRun, destinations: Sequence[Destination], folder: Path | None = None) -> Queue:
    with QueueWriter(run.id, destinations) as writer:
        story.write_run(writer, run, folder)
    return writer.queue


def _report(outcomes: Sequence[SendOutcome], say: Say, warn: Say) -> bool:
    """Say what became of them; True when the trackers have everything."""
    lines: list[tuple[str, bool]] = []
    if len(outcomes) <= FEW:
        lines = [(outcome.text, outcome.delivery.done) for outcome in outcomes]
    else:
        for tracker in dict.fromkeys(outcome.delivery.destination.tracker for outcome in outcomes):
            group = [outcome for outcome in outcomes if outcome.delivery.destination.tracker == tracker]
            done = sum(outcome.delivery.done for outcome in group)
            if done:
                place = group[0].delivery.destination.place
                lines.append((f"{tracker}: {done} of {len(group)} runs sent to {place}.", True))
            lines += [(outcome.text, False) for outcome in group if not outcome.delivery.done][:1]
    for text, fine in dict.fromkeys(lines):
        if text:
            (say if fine else warn)(printable(text))
    return all(outcome.delivery.done for outcome in outcomes)


def _count(queues: Sequence[Queue]) -> str:
    return "1 run" if len(queues) == 1 else f"{len(queues)} runs"
