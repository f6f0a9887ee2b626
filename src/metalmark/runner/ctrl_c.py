"""Ctrl-C that is not lost: Python drops the exception where it is raised in a callback of the garbage collector, as
those are that run when a worker's threads end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed, whatever became of its exception."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False  # only the main thread can have handlers, and what is ignored stays ignored
        return
    usual, pressed = before, False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
