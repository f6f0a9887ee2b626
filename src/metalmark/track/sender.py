"""The process that talks to a tracker: `python -m metalmark.track.sender KEY FOLDER...`.

It is no thread of the training's: what a tracker's library costs, leaks or waits for is this process's alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from metalmark.track.deliver import Deliverer
from metalmark.track.destination import Destination
from metalmark.track.service import Service
from metalmark.track.spool import Queue

ONCE = "--once"
NICENESS = 19
SILENCE_S = 1800.0
"""A large model on a slow line takes its time; nothing takes longer without a sign."""
MOST_FAILURES = 2
"""One queue may be refused for what is in it; two in a row mean that the tracker takes none now."""


def make(destination: Destination) -> Service:
    return cast(Service, import_module(f"metalmark.track.{destination.tracker}").service(destination))


@contextlib.contextmanager
def limited(
    deliverer: Deliverer, silence_s: float = SILENCE_S, exit: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Ends the process when the tracker has hung for so long: some libraries wait for their server for ever."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(min(1.0, silence_s)):
            if time.monotonic() - deliverer.heard_s > silence_s:
                deliverer.give_up(f"no answer for {silence_s:g} s")
                exit(1)
                return

    thread = threading.Thread(target=watch, daemon=True, name="silence")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main(key: str, folders: Sequence[str], *, follow: bool) -> int:
    """0 when all of them are sent. Only the first is waited for: others were written before."""
    failures = 0
    every = True
    for number, folder in enumerate(folders):
        queue = Queue(Path(folder))
        with queue.sending(key) as ours:
            if not ours:
                every = False
                continue
            deliverer = Deliverer(queue, key, make)
            with limited(deliverer):
                sent = deliverer.run(follow=follow and number == 0)
            if sent:
                failures = 0
                continue
        every, failures = False, failures + 1
        if failures == MOST_FAILURES:
            break
    return 0 if every else 1


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(NICENESS)  # a training that needs every core gets it
    words = [word for word in sys.argv[1:] if word != ONCE]
    sys.exit(main(words[0], words[1:], follow=ONCE not in sys.argv))
