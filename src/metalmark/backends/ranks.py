"""Ranks: the processes that train one network together, as one of them sees the others.

One file per framework joins them: `torch_world.py`, `tensorflow_world.py`, `jax_world.py`, `mlx_world.py`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from metalmark.model.run import Absent


class Ranks(Protocol):
    number: int
    """Which of them this process is; the first is 0."""
    count: int

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of every process, in their order. All must call it, with as many values."""

    def apart(self, session: Any) -> AbstractContextManager[Any] | Absent:
        """Return a context in which the steps of a session exchange nothing, or why there can't be one."""

    def leave(self) -> None:
        """End the connection, when all have done their work."""


class OneRank:
    """A process by itself."""

    number, count = 0, 1

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]

    def apart(self, session: Any) -> Absent:  # noqa: ARG002
        return Absent(reason="one process exchanges nothing")

    def leave(self) -> None: ...


ONE = OneRank()


def agreed(ranks: Ranks, value: float) -> float:
    """Return the first process's value."""
    return ranks.gather([float(value)])[0][0]


def mean_of(ranks: Ranks, value: float) -> float:
    return sum(row[0] for row in ranks.gather([value])) / ranks.count
