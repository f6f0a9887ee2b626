"""QueueTracker: a watched loop's tracker by word. What it hears goes to the queue; processes of their own send it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from metalmark.errors import UsageError
from metalmark.model.sweep import new_id
from metalmark.model.watch import WatchedRun
from metalmark.track.courier import Courier
from metalmark.track.destination import Wish
from metalmark.track.event import Axis, Begin, Event, File, Row, Value
from metalmark.track.records import conclude_watched
from metalmark.track.spool import Spool

AT_ONCE = 256
"""Rows are written together, since the thread that does it takes its turn with the loop."""


class QueueTracker:
    def __init__(self, wish: Wish, name: str, identifier: str = "") -> None:
        self._wish, self._name, self._id = wish, name, identifier or new_id()
        self._rows: list[Event] = []
        self._spool: Spool | None = None
        self._courier: Courier | None = None

    def start(self, params: Mapping[str, Value]) -> None:
        begin = Begin(
            id=self._id, name=f"{self._name} {self._id}", kind="run", at_ms=round(time.time() * 1000),
            params=dict(params),
        )  # fmt: skip
        self._spool = Spool(self._id, self._wish.destinations)
        self._spool.append(begin)
        self._courier = Courier([self._spool.queue], self._wish.destinations, uri=self._wish.uri)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._rows.append(Row(axis=Axis.STEP, x=step, at_ms=round(time.time() * 1000), values=values))
        if len(self._rows) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Nobody has more for now: what was heard goes to the disk, where it outlives us."""
        if self._rows:
            self._begun().append(*self._rows)
            self._rows.clear()

    def artifact(self, path: Path) -> None:
        """The loop's result: its telemetry and totals are told too, and it is kept as a file."""
        self.flush()
        spool = self._begun()
        data = path.read_bytes()
        try:
            result = msgspec.json.decode(data, type=WatchedRun)
        except msgspec.DecodeError:
            spool.add_file(path.name, data)
            spool.append(File(name=path.name))
        else:
            conclude_watched(spool, result)

    def finish(self) -> str | None:
        self._begun().close()
        assert self._courier is not None
        return "; ".join(parcel.brief for parcel in self._courier.wait() if not parcel.delivery.done) or None

    def _begun(self) -> Spool:
        if self._spool is None:
            raise UsageError("A tracker is told its params first.", hint="Call start() before log().")
        return self._spool
