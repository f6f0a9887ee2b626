"""Tracker: what an experiment tracker is to a watched loop, and how one is found by its word."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from metalmark.errors import UsageError
from metalmark.track.destination import WORDS, parse


@runtime_checkable
class Tracker(Protocol):
    """Called in this order, from one thread that is not the training's. What it raises ends its tracking, never the
    training; it may take its time."""

    def start(self, params: Mapping[str, str | int | float | bool]) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def artifact(self, path: Path) -> None:
        """A file to keep; it is gone afterwards."""

    def finish(self) -> str | None:
        """What the user should know of it, if anything."""


def resolve(track: Tracker | str | Sequence[Tracker | str] | None, name: str, identifier: str = "") -> list[Tracker]:
    """Trackers as given; words ("mlflow", "wandb=offline", or several by commas) become one that queues for them."""
    if track is None:
        return []
    given = [track] if isinstance(track, str) or not isinstance(track, Sequence) else list(track)
    for each in given:
        if not isinstance(each, str | Tracker):
            raise UsageError(
                f"A {type(each).__name__} is no tracker.",
                hint="A tracker has start, log, artifact and finish; or give a word: " + ", ".join(WORDS),
            )
    trackers = [each for each in given if not isinstance(each, str)]
    words = ",".join(each for each in given if isinstance(each, str))
    if not words:
        return trackers
    from metalmark.track.queueing import QueueTracker

    wish = parse(words)
    for note in wish.notes:
        warnings.warn(f"metalmark: {note}", stacklevel=4)
    return [*trackers, *([QueueTracker(wish, name, identifier)] if wish.destinations else [])]
