"""Delivering one queue to one destination: reads along while the run writes, begins again where a try failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby

import msgspec

from metalmark.scrub import printable
from metalmark.track.destination import Destination
from metalmark.track.event import Begin, End, Event, File, Known, Model, Row, Status
from metalmark.track.secret import redact
from metalmark.track.service import Service
from metalmark.track.spool import Queue

LOOK_EVERY_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
LONGEST_TROUBLE = 300
SHARE = 0.03
"""Of a core, for rows while their run is alive. W&B's library takes half a millisecond and ten switches between
processes for each, which made a training of 400 steps a second 3% slower on two cores: what is more than this share
waits in the queue until the run has ended."""
FEW_ROWS, MANY_ROWS = 100, 10_000

Make = Callable[[Destination], Service]
Sleep = Callable[[float], None]


class Deliverer:
    def __init__(self, queue: Queue, key: str, make: Make, *, sleep: Sleep = time.sleep) -> None:
        self._queue, self._make, self._sleep = queue, make, sleep
        self._delivery = queue.delivery(key)
        self.heard_s = time.monotonic()
        """When there was the last sign that it goes on."""

    def run(self, *, follow: bool) -> bool:
        """Send everything; True when the tracker has it. With `follow`, try again as long as the run is alive."""
        if self._delivery.done:
            return True
        pause_s = FIRST_PAUSE_S
        while True:
            # Asked before the try: one that began when the run had ended has seen all there is.
            last = not (follow and self._queue.is_written())
            if self._try(follow=follow):
                return True
            if last:
                return False
            self._wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

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
                with suppress(Exception):  # it has ended, well or not: how was told above
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
                if beside and isinstance(group[0], Row):
                    self._wait((time.monotonic() - began_s) * (1 / SHARE - 1))
            if events and isinstance(events[-1], End):
                return True
            if not alive:
                if sent:
                    service.end(End(at_ms=int(time.time() * 1000), status=Status.KILLED))
                return True
            if not follow:
                return False
            self._pause()

    def _tell(self, service: Service, group: Sequence[Event]) -> None:
        first = group[0]
        if isinstance(first, Row):
            service.rows([event for event in group if isinstance(event, Row)])
        elif isinstance(first, Begin):
            self._keep(where=service.begin(first))
        elif isinstance(first, Known):
            service.known(first)
        elif isinstance(first, File):
            service.file(self._queue.file(first.name))
        elif isinstance(first, Model):
            service.model(self._queue.file(first.name), first)
        else:
            service.end(first)

    def _wait(self, pause_s: float) -> None:
        """Until it is time again, or the run has ended."""
        while pause_s > 0 and self._queue.is_written():
            self._pause(min(pause_s, LOOK_EVERY_S))
            pause_s -= LOOK_EVERY_S

    def give_up(self, trouble: str) -> None:
        """For whoever ends this process: a tracker that hangs in its own library can't be asked to stop."""
        self._keep(trouble=trouble)

    def _pause(self, pause_s: float = LOOK_EVERY_S) -> None:
        self._sleep(pause_s)
        self.heard_s = time.monotonic()

    def _keep(self, **changes: object) -> None:
        self.heard_s = time.monotonic()
        self._delivery = msgspec.structs.replace(self._delivery, **changes)
        self._queue.keep(self._delivery)


def grouped(events: Sequence[Event], most_rows: int) -> Iterator[list[Event]]:
    """Neighbouring rows together, so many at most, since a tracker takes many at once; everything else alone."""
    for rows, group in groupby(events, key=lambda event: isinstance(event, Row)):
        alike, size = list(group), most_rows if rows else 1
        yield from (alike[place : place + size] for place in range(0, len(alike), size))


def reason(error: BaseException) -> str:
    """The innermost cause says what happened; the libraries' own words around it are long."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = " ".join(redact(printable(str(error))).split()) or "no message"
    return f"{type(error).__name__}: {text}"[:LONGEST_TROUBLE]
