"""How far a download is, told to whoever listens: a long one is no hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listen = Callable[[float | None], None]
"""listen(share done), None where the server does not tell the size."""
_listener: ContextVar[Listen | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listen: Listen) -> Iterator[None]:
    token = _listener.set(listen)
    try:
        yield
    finally:
        _listener.reset(token)


class Meter:
    """What pooch wants as a progress bar: it sets `total`, and calls `update` with each piece's bytes."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._done = 0

    def update(self, count: int) -> None:
        self._done += count
        listen = _listener.get()
        if listen is not None:
            listen(min(1.0, self._done / self.total) if self.total else None)

    def reset(self) -> None:
        """pooch begins anew after its last piece, to leave a full bar behind; there is no bar here."""

    def close(self) -> None:
        """Nothing is drawn."""
