"""HostBatches: batches as a plan's loader makes them, one after another in this process, and nothing on the device."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from types import TracebackType
from typing import Any, Self

from metalmark.feeds.leaves import Arrays
from metalmark.feeds.source import OpenBatches, Source, open_batches
from metalmark.model.plan import Loader, Plan
from metalmark.model.workload import Recipe, Workload


class HostBatches:
    """A context: a user's own loader may hold processes until it is closed. Nothing is opened before it is needed."""

    def __init__(self, plan: Plan, workload: Workload, recipe: Recipe) -> None:
        self._source = Source(workload, recipe, plan)
        self._open: OpenBatches | None = None
        self._batches: Iterator[Arrays] | None = None
        self._first: Arrays | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            self._open.__exit__(kind, error, trace)

    def make(self) -> Arrays:
        if self._batches is None:
            self._open = open_batches(self._source, Loader(), _in_this_process)
            self._batches = self._open.__enter__()
        return next(self._batches)

    @property
    def first(self) -> Arrays:
        """One of them, made once: for timing what is done with it."""
        if self._first is None:
            self._first = self.make()
        return self._first


def _in_this_process(source: Source, _: Loader) -> Any:
    return closing(source[number] for number in count())
