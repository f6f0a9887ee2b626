"""Sender: one tracker and the thread that talks to it, so that a slow or broken one costs the training nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue

from metalmark.model.watch import Value
from metalmark.scrub import scrub
from metalmark.track.base import Tracker

PATIENCE_S = 30.0


class Sender:
    def __init__(self, tracker: Tracker, params: Mapping[str, Value]) -> None:
        self._tracker = tracker
        self._params = params
        self._rows: SimpleQueue[tuple[int, Mapping[str, float]] | None] = SimpleQueue()
        self._artifact: Path | None = None
        self.trouble = ""
        # A daemon: the interpreter's end must not wait for a tracker that hangs.
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"tracker-{type(tracker).__name__}")
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.put((step, metrics))

    def finish(self, artifact: Path | None) -> str:
        """Wait until it has taken everything, within reason; what went wrong, or nothing."""
        self._artifact = artifact
        self._rows.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self._name} had not taken everything after {PATIENCE_S:g} s"
        return self.trouble

    @property
    def _name(self) -> str:
        return f"tracker {type(self._tracker).__name__}"

    def _run(self) -> None:
        flush = getattr(self._tracker, "flush", None)
        try:
            self._tracker.start(self._params)
            while (row := self._rows.get()) is not None:
                self._tracker.log(*row)
                if flush is not None and self._rows.empty():
                    flush()
            if self._artifact is not None:
                self._tracker.artifact(self._artifact)
            self.trouble = self._tracker.finish() or ""
        except BaseException as error:  # noqa: BLE001  whatever a tracker throws costs only its own tracking
            self.trouble = scrub(f"{self._name} stopped: {type(error).__name__}: {error}")[:500]
