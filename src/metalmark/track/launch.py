"""The parent's side of sending: a process per destination (`sender.py`), and what became of what it sent."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from metalmark.machine.orphans import MARK
from metalmark.model.codec import AnyRun
from metalmark.scrub import printable
from metalmark.store.address import local_folder, store_address
from metalmark.track import story
from metalmark.track.destination import Destination, full_uri, parse_track
from metalmark.track.queue import Delivery, Queue, QueueWriter, clear_sent

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
    written = [write_queue(run, targets.destinations, (folders or {}).get(run.id)) for run in runs]
    for note in targets.notes:
        say(note)
    say(f"Sending {count_runs(written)} to {' and '.join(map(str, targets.destinations))} ...")
    senders = start_senders(written, targets.destinations, uri=targets.uri)
    return report_outcomes(wait_for_senders(senders, None), say, warn)


class SendOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one queue at one destination."""

    run: str
    delivery: Delivery
    goes_on: bool
    """Its process still sends."""

    def text(self, runs: str = "") -> str:
        """One line for the user, which names the runs that it is of where there are several; empty for a run that never
        began."""
        lead = f"{self.delivery.destination.tracker}:{f' {runs}:' if runs else ''}"
        if self.delivery.done:
            return f"{lead} {self.delivery.where}" if self.delivery.where else ""
        if self.goes_on:
            why = f" ({self.delivery.trouble})" if self.delivery.trouble else ""
            return f"{lead} still sending{why}; `metalmark track list` shows how far it is."
        why = self.delivery.trouble or "its process ended early"
        them = "They wait in the queue; send them" if ", " in runs else "It waits in the queue; send it"
        return f"{lead} not sent ({why}). {them} later: metalmark track sync"

    @property
    def brief(self) -> str:
        """The same for a run's own notes, which name no server."""
        how = "still being sent" if self.goes_on else "not sent yet: metalmark track sync"
        return f"{self.delivery.destination.tracker}: {how}"


class SenderProcess(NamedTuple):
    """A process that brings these queues to one destination."""

    queues: Sequence[Queue]
    key: str
    process: subprocess.Popen[bytes]


def start_senders(
    queues: Sequence[Queue], destinations: Sequence[Destination], *, uri: str = "", once: bool = False
) -> list[SenderProcess]:
    """Start a process per destination. `uri`: MLflow's as given, where it has a password. `once`: do not try again."""
    senders = []
    for destination in destinations:
        environment = {**DEFAULTS, **os.environ}
        # A W&B run of the user's own in this process is none of ours.
        environment.pop("WANDB_SERVICE", None)
        # Of a loop inside a worker: what is sent goes on when the worker has ended.
        environment.pop(MARK, None)
        # Offline, a run's artifacts stay where W&B staged them: that is part of the run, so it lies beside it.
        environment.setdefault("WANDB_DATA_DIR", str(local_folder(store_address()) / "wandb" / "data"))
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
        senders.append(SenderProcess(queues=queues, key=destination.key, process=process))
    return senders


def wait_for_senders(senders: Sequence[SenderProcess], patience_s: float | None) -> list[SendOutcome]:
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
            SendOutcome(run=queue.id, delivery=delivery, goes_on=goes_on or queue.is_sent(sender.key))
            for queue in sender.queues
            for delivery in _deliveries(queue, sender.key)
        ]
    clear_sent()
    return outcomes


def write_queue(run: AnyRun, destinations: Sequence[Destination], folder: Path | None = None) -> Queue:
    with QueueWriter(run.id, destinations) as writer:
        story.write_run(writer, run, folder)
    return writer.queue


def report_outcomes(outcomes: Sequence[SendOutcome], say: Say, warn: Say) -> bool:
    """Say what became of each; True when the trackers have everything. A run that arrived has a line of its own, with
    where it is; those that did not for one reason share a line that names them."""
    several = len({outcome.run for outcome in outcomes}) > 1
    unsent: dict[str, list[SendOutcome]] = {}
    for outcome in outcomes:
        if not outcome.delivery.done:
            unsent.setdefault(outcome.text(), []).append(outcome)
        elif text := outcome.text(outcome.run if several else ""):
            say(printable(text))
    for alike in unsent.values():
        runs = ", ".join(dict.fromkeys(outcome.run for outcome in alike))
        warn(printable(alike[0].text(runs if several else "")))
    return all(outcome.delivery.done for outcome in outcomes)


def _deliveries(queue: Queue, key: str) -> list[Delivery]:
    found = [delivery for delivery in queue.deliveries() if delivery.destination.key == key]
    if found or queue.folder.exists():
        return found
    # Another process has cleared it away since, as is done with what has arrived everywhere.
    return [Delivery(destination=Destination(tracker=key.partition("-")[0], place=""), done=True, where="sent.")]


def count_runs(queues: Sequence[Queue]) -> str:
    return "1 run" if len(queues) == 1 else f"{len(queues)} runs"
