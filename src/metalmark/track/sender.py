"""The process that talks to a tracker: `python -m metalmark.track.sender KEY FOLDER...`.

It is a process, not a thread of the training: whatever a tracker's library costs, leaks or waits for stays in here.
It reads along while the run writes its queue, and each try begins at the first event.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Protocol, cast

import msgspec

from metalmark.errors import FormatError
from metalmark.scrub import printable
from metalmark.track.destination import Destination, redact
from metalmark.track.queue import (
    AttachedFile,
    AttachedModel,
    Begin,
    End,
    EndStatus,
    Known,
    MetricRow,
    Queue,
    QueueEvent,
)

SERVICES = {"mlflow": "MlflowService", "wandb": "WandbService"}
ONCE = "--once"
NICENESS = 19
SILENCE_S = 1800.0
"""A large model on a slow line takes its time; nothing takes longer without a sign."""
MOST_FAILURES = 2
"""One queue may be refused for what is in it; two in a row mean that the tracker takes none now."""
LOOK_EVERY_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
LONGEST_REASON = 300
SHARE = 0.02
"""Share of a core for rows while their run is alive. W&B's library takes half a millisecond and ten switches between
processes per row, which made a training of 400 steps per second 3% slower on two cores: what exceeds this share waits
in the queue until the run has ended."""
FEW_ROWS, MANY_ROWS = 100, 10_000


class Service(Protocol):
    """One run at one tracker. It is called in this order from one thread; it may wait for its tracker, and raise.

    What it raises ends this try: the next begins with a new service, is told everything again, and skips what the
    tracker has already.
    """

    def begin(self, begin: Begin) -> str:
        """Continue the run of that id, or create it; return where a user finds it."""

    def known(self, known: Known) -> None: ...

    def rows(self, rows: Sequence[MetricRow]) -> None: ...

    def file(self, path: Path) -> None: ...

    def model(self, path: Path, model: AttachedModel) -> None:
        """`path` is the checkpoint that the event names."""

    def end(self, end: End) -> None:
        """Return when the tracker has everything."""

    def close(self) -> None:
        """Let go of the run, ended or not. May be called twice, and before `begin`."""


ServiceMaker = Callable[[Destination], Service]


def make(destination: Destination) -> Service:
    module = import_module(f"metalmark.track.{destination.tracker}")
    return cast(Service, getattr(module, SERVICES[destination.tracker])(destination))


class Deliverer:
    """Brings one queue to one destination."""

    def __init__(
        self, queue: Queue, key: str, make: ServiceMaker, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._queue, self._make, self._sleep = queue, make, sleep
        self._delivery = queue.delivery(key)
        self._heard_s = time.monotonic()
        """When there was the last sign that it goes on."""
        self._over = threading.Event()

    def run(self, *, follow: bool) -> bool:
        """Send everything; True when the tracker has it. With `follow`, try again as long as the run is alive."""
        pause_s = FIRST_PAUSE_S
        try:
            while not self._delivery.done:
                # Asked before the try: one that began when the run had ended has seen all there is.
                last = not (follow and self._queue.is_written())
                if self._try(follow=follow) or last:
                    break
                self._wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            return self._delivery.done
        finally:
            self._over.set()

    def end_when_silent(self, silence_s: float = SILENCE_S, exit: Callable[[int], object] = os._exit) -> None:
        """End the process when the tracker has hung for so long: some libraries wait for their server for ever, and
        cannot be asked to stop. Runs in a thread beside `run`, and ends with it."""
        while not self._over.wait(min(1.0, silence_s)):
            if time.monotonic() - self._heard_s > silence_s:
                self._keep(trouble=f"no answer for {silence_s:g} s")
                exit(1)
                return

    def _try(self, *, follow: bool) -> bool:
        self._keep(tries=self._delivery.tries + 1, sent=0)
        service: Service | None = None
        try:
            service = self._make(self._delivery.destination)
            done = self._send(service, follow=follow)
            self._keep(done=done, trouble="")
            return done
        except Exception as error:  # noqa: BLE001  whatever a tracker throws is why this try ended
            self._keep(trouble=reason(error))
            return False
        finally:
            if service is not None:
                with contextlib.suppress(Exception):  # it has ended, well or not: how was told above
                    service.close()

    def _send(self, service: Service, *, follow: bool) -> bool:
        offset = sent = 0
        while True:
            # Asked before reading: what was written before the run died is read.
            alive = self._queue.is_written()
            events, offset = self._queue.read(offset)
            beside = follow and alive
            for group in grouped(events, FEW_ROWS if beside else MANY_ROWS):
                began_s = time.monotonic()
                self._tell(service, group)
                sent += len(group)
                self._keep(sent=sent, trouble="")
                if beside and isinstance(group[0], MetricRow):
                    self._wait((time.monotonic() - began_s) * (1 / SHARE - 1))
            if events and isinstance(events[-1], End):
                return True
            if not alive:
                if sent:
                    service.end(End(at_ms=int(time.time() * 1000), status=EndStatus.KILLED))
                return True
            if not follow:
                return False
            self._pause(LOOK_EVERY_S)

    def _tell(self, service: Service, group: Sequence[QueueEvent]) -> None:
        first = group[0]
        if isinstance(first, MetricRow):
            service.rows([event for event in group if isinstance(event, MetricRow)])
        elif isinstance(first, Begin):
            self._keep(where=service.begin(first))
        elif isinstance(first, Known):
            service.known(first)
        elif isinstance(first, AttachedFile):
            service.file(self._queue.file(first.name))
        elif isinstance(first, AttachedModel):
            service.model(self._queue.file(first.name), first)
        else:
            service.end(first)

    def _wait(self, pause_s: float) -> None:
        """Wait so long, or until the run has ended."""
        while pause_s > 0 and self._queue.is_written():
            self._pause(min(pause_s, LOOK_EVERY_S))
            pause_s -= LOOK_EVERY_S

    def _pause(self, pause_s: float) -> None:
        self._sleep(pause_s)
        self._heard_s = time.monotonic()

    def _keep(self, **changes: object) -> None:
        self._heard_s = time.monotonic()
        self._delivery = msgspec.structs.replace(self._delivery, **changes)
        self._queue.keep(self._delivery)


def grouped(events: Sequence[QueueEvent], most_rows: int) -> Iterator[list[QueueEvent]]:
    """Join neighbouring rows, up to a number, since a tracker takes many at once; every other event is alone."""
    for rows, group in groupby(events, key=lambda event: isinstance(event, MetricRow)):
        alike, size = list(group), most_rows if rows else 1
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def reason(error: BaseException) -> str:
    """Return the innermost cause, which says what happened; the libraries' own words around it are long."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = " ".join(redact(printable(str(error))).split()) or "no message"
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON]


def _send_queue(queue: Queue, key: str, *, follow: bool) -> bool | None:
    """Tell whether all of it is sent; None if another process is sending it."""
    with queue.sending(key) as ours:
        if not ours:
            return None
        deliverer = Deliverer(queue, key, make)
        threading.Thread(target=deliverer.end_when_silent, daemon=True, name="silence").start()
        return deliverer.run(follow=follow)


def main(key: str, folders: Sequence[str], *, follow: bool) -> int:
    """Return 0 when all queues are sent. Only the first is followed: the others were written before."""
    failures, every = 0, True
    for number, folder in enumerate(folders):
        try:
            sent = _send_queue(Queue(Path(folder)), key, follow=follow and number == 0)
        except (FormatError, OSError):  # its files can't be read, which `track list` says: it costs that queue alone
            sent = False
        if sent is None or sent:
            failures, every = 0, every and sent is not None
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
