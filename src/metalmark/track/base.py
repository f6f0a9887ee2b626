"""Tracker: what an experiment tracker is to a run, and how one is found by its word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from metalmark.errors import NotInstalledError, UsageError

WORDS = ("mlflow", "wandb")


@runtime_checkable
class Tracker(Protocol):
    """Called in this order, from one thread that is not the training's. What it raises ends its tracking, never the
    training; it may take its time."""

    def start(self, params: Mapping[str, str | int | float | bool]) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def artifact(self, path: Path) -> None:
        """A file to keep; it is gone afterwards."""

    def finish(self) -> None: ...


def resolve(track: Tracker | str | Sequence[Tracker | str] | None, name: str) -> list[Tracker]:
    """Trackers as given, and for "mlflow" or "wandb" (or both, by a comma) what `metalmark.track.WORD.tracker(name)`
    makes."""
    if track is None:
        return []
    if isinstance(track, str):
        return [_by_word(word.strip(), name) for word in track.split(",") if word.strip()]
    if isinstance(track, Sequence):
        return [each for one in track for each in resolve(one, name)]
    if not isinstance(track, Tracker):
        raise UsageError(
            f"A {type(track).__name__} is no tracker.",
            hint="A tracker has start, log, artifact and finish; or give a word: " + ", ".join(WORDS),
        )
    return [track]


def _by_word(word: str, name: str) -> Tracker:
    if word not in WORDS:
        raise UsageError(f"There is no tracker {word!r}.", hint=f"There are: {', '.join(WORDS)}; or give an object.")
    home = f"metalmark.track.{word}"
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name == home:
            raise NotInstalledError(
                f"This Metalmark has no tracker for {word} yet.", hint="Give an object with a Tracker's methods."
            ) from error
        if error.name is None or error.name.partition(".")[0] != word:
            raise
        raise NotInstalledError(
            f'track="{word}" needs the package {word}, which this Python does not have.',
            hint=f"pip install 'metalmark[{word}]'",
        ) from error
    return cast(Tracker, module.tracker(name))
