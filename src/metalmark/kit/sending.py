"""Trackers of a watched loop. Named ones are fed by a queue on disk; each of the user's own runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, runtime_checkable

from metalmark.errors import UsageError
from metalmark.model.plan import Scalar
from metalmark.scrub import scrub
from metalmark.track.destination import TRACKERS

PATIENCE_S = 30.0


@runtime_checkable
class Tracker(Protocol):
    """Called in this order, from one thread that is not the training's. What it raises ends its tracking, never the
    training; it may take its time."""

    def start(self, params: Mapping[str, Scalar]) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def artifact(self, path: Path) -> None:
        """Keep a file, which is gone afterwards."""

    def finish(self) -> str | None:
        """Return what the user should know of it, if anything."""


Track = Tracker | str | Sequence[Tracker | str] | None


def split_trackers(track: Track) -> tuple[list[Tracker], str]:
    """Return the user's own trackers, and the named ones as --track takes them."""
    if track is None:
        return [], ""
    given = [track] if isinstance(track, str) or not isinstance(track, Sequence) else track
    own: list[Tracker] = []
    named: list[str] = []
    for each in given:
        if isinstance(each, str):
            named.append(each)
        elif isinstance(each, Tracker):
            own.append(each)
        else:
            raise UsageError(
                f"A {type(each).__name__} is not a tracker.",
                hint="A tracker has start, log, artifact and finish; or name one: " + ", ".join(TRACKERS),
            )
    return own, ",".join(named)


class TrackerThread:
    """A tracker of the user's own in a thread, so that a slow or broken one costs the training nothing."""

    def __init__(self, tracker: Tracker, params: Mapping[str, Scalar]) -> None:
        self._tracker = tracker
        self._params = params
        self._rows: SimpleQueue[tuple[int, Mapping[str, float]] | None] = SimpleQueue()
        self._artifact: Path | None = None
        self._name = f"tracker {type(tracker).__name__}"
        self._trouble = ""
        # A daemon: the interpreter's end must not wait for a tracker that hangs.
        self._thread = threading.Thread(target=self._run, daemon=True, name=self._name)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.put((step, metrics))

    def finish(self, artifact: Path) -> str:
        """Wait until it has taken everything, within reason; return what went wrong, or nothing."""
        self._artifact = artifact
        self._rows.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self._name} had not taken everything after {PATIENCE_S:g} s"
        return self._trouble

    def _run(self) -> None:
        try:
            self._tracker.start(self._params)
            while (row := self._rows.get()) is not None:
                self._tracker.log(*row)
            assert self._artifact is not None
            self._tracker.artifact(self._artifact)
            self._trouble = self._tracker.finish() or ""
        except BaseException as error:  # noqa: BLE001  whatever a tracker throws costs only its own tracking
            self._trouble = scrub(f"{self._name} stopped: {type(error).__name__}: {error}")[:500]
