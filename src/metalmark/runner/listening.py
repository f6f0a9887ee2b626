"""Listener: who hears how a sweep goes, such as a display, or the status that a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from metalmark.model.measurement import BenchRun
from metalmark.runner.job import Progress
from metalmark.telemetry.sampler import Sampler


class Listener(Protocol):
    """What it hears. Nothing of it runs while the worker's clock does, except between its blocks."""

    def cooling(self, text: str) -> None: ...
    def started(self, cell: int, repeat: int) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def sampling(self, sampler: Sampler) -> None: ...
    def ended(self, record: BenchRun) -> None: ...


class Listeners:
    """All of them as one, each told in its turn."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def cooling(self, text: str) -> None:
        for one in self._listeners:
            one.cooling(text)

    def started(self, cell: int, repeat: int) -> None:
        for one in self._listeners:
            one.started(cell, repeat)

    def progress(self, progress: Progress) -> None:
        for one in self._listeners:
            one.progress(progress)

    def sampling(self, sampler: Sampler) -> None:
        for one in self._listeners:
            one.sampling(sampler)

    def ended(self, record: BenchRun) -> None:
        for one in self._listeners:
            one.ended(record)
