"""A tracker in memory that does what a tracker's service must, and fails when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metalmark.track.queue import AttachedModel, Begin, End, Known, MetricRow


class FakeTracker:
    """What is there, over all tries. `fails_at`: calls of `rows` that raise, by number."""

    def __init__(self, *, fails_at: Sequence[int] = (), down: int = 0) -> None:
        self.runs: dict[str, str] = {}
        self.points: list[tuple[str, float, float | None]] = []
        self.files: list[str] = []
        self.statuses: list[str] = []
        self.known: dict[str, object] = {}
        self.closed = 0
        self.calls = 0
        self.fails_at, self.down = set(fails_at), down

    def service(self, _: object = None) -> FakeService:
        if self.down:
            self.down -= 1
            raise ConnectionRefusedError("nobody there")
        return FakeService(self)


class FakeService:
    def __init__(self, tracker: FakeTracker) -> None:
        self._there = tracker
        self._held: set[tuple[str, float]] = set()

    def begin(self, begin: Begin) -> str:
        self._held = {(name, x) for name, x, _ in self._there.points}
        return self._there.runs.setdefault(begin.id, begin.name)

    def known(self, known: Known) -> None:
        self._there.known |= known.params

    def rows(self, rows: Sequence[MetricRow]) -> None:
        self._there.calls += 1
        for number, row in enumerate(rows):
            if self._there.calls in self._there.fails_at and number == len(rows) // 2:
                raise ConnectionResetError("cut off in the middle")
            new = {name: value for name, value in row.values.items() if (name, row.x) not in self._held}
            self._there.points += [(name, row.x, value) for name, value in new.items()]

    def file(self, path: Path) -> None:
        self._there.files.append(path.read_text())

    def model(self, path: Path, model: AttachedModel) -> None:
        self._there.files.append(f"{model.epoch}: {path.read_text()}")

    def end(self, end: End) -> None:
        self._there.statuses.append(end.status.value)

    def close(self) -> None:
        self._there.closed += 1
