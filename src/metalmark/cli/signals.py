"""TERM and HUP end a command as Ctrl-C does, in order; then the command dies by the signal, as its parent expects."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block when such a signal comes. `nohup`, which ignores HUP, stays in force."""
    received: list[int] = []
    ours = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)  # a second one must not disturb what the first one began
        received.append(number)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if received:
            os.kill(os.getpid(), received[0])
