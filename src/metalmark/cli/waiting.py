"""What `metalmark track` shows and sends: the queues that are not empty."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metalmark.cli.tracking import tell
from metalmark.errors import UsageError
from metalmark.report.columns import columns
from metalmark.scrub import printable
from metalmark.track.courier import Courier, Parcel
from metalmark.track.event import Begin, End
from metalmark.track.spool import Queue, clear_sent, queues

HEADERS = ("run", "what", "to", "events", "sent", "tries", "state")
NUMERIC = {"events", "sent", "tries"}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run that one tracker does not have whole."""

    run: str
    what: str
    tracker: str
    place: str
    events: int
    sent: int
    """Of the last try; a try begins at the first event, and a tracker lets pass what it has."""
    tries: int
    state: str
    """running, being sent, waiting."""
    why: str


def waiting() -> list[Entry]:
    found = []
    for queue in queues():
        events, _ = queue.read()
        if not events and not queue.is_written():
            continue
        begin = next((event for event in events if isinstance(event, Begin)), None)
        running = queue.is_written() and not (events and isinstance(events[-1], End))
        for delivery in queue.deliveries():
            if delivery.done and not running:
                continue
            sending = queue.is_sent(delivery.destination.key)
            found.append(
                Entry(
                    run=queue.id,
                    what=begin.name.removesuffix(f" {queue.id}") if begin is not None else "",
                    tracker=delivery.destination.tracker,
                    place=delivery.destination.place,
                    events=len(events),
                    sent=delivery.sent,
                    tries=delivery.tries,
                    state="running" if running else "being sent" if sending else "waiting",
                    why=delivery.trouble,
                )
            )
    return found


def waiting_text(entries: Sequence[Entry]) -> str:
    return columns(HEADERS, [_row(entry) for entry in entries], NUMERIC)


def waiting_json(entries: Sequence[Entry]) -> str:
    return msgspec.json.format(msgspec.json.encode(entries), indent=2).decode()


def find(words: Sequence[str]) -> list[Queue]:
    """Queues by the beginning of their run's id; none that is still written."""
    every = queues()
    if not words:
        return every
    found: dict[str, Queue] = {}
    for word in words:
        matching = [queue for queue in every if word and queue.id.startswith(word)]
        if not matching:
            raise UsageError(f"Nothing of {printable(word)!r} waits.", hint="`metalmark track list` shows what does.")
        found.update((queue.folder.name, queue) for queue in matching)
    alive = [queue for queue in found.values() if queue.is_written()]
    if alive:
        raise UsageError(
            f"The run {alive[0].id} is not over.", hint="It sends by itself; wait for its end, or stop it with Ctrl-C."
        )
    return list(found.values())


def send_waiting(words: Sequence[str], *, to: str | None, quiet: bool) -> int:
    import click

    clear_sent()
    parcels: list[Parcel] = []
    left = [queue for queue in find(words) if not queue.is_written()]
    for key in _keys(left, to):
        with_it = [queue for queue in left if any(one.destination.key == key for one in queue.deliveries())]
        parcels += send(with_it, key, quiet=quiet)
    clear_sent()
    if not parcels and not quiet:
        click.echo("Nothing waits.", err=True)
    tell(parcels, quiet=quiet)
    return 0 if all(parcel.delivery.done for parcel in parcels) else 1


def send(waiting: Sequence[Queue], key: str, *, quiet: bool) -> list[Parcel]:
    """Send these and wait for it, however long it takes."""
    import click

    destination = next(one.destination for one in waiting[0].deliveries() if one.destination.key == key)
    if not quiet:
        count = "1 run" if len(waiting) == 1 else f"{len(waiting)} runs"
        click.echo(f"Sending {count} to {printable(str(destination))} ...", err=True)
    return Courier(waiting, [destination], once=True).wait(None)


def _keys(waiting: Sequence[Queue], to: str | None) -> list[str]:
    found = [delivery for queue in waiting for delivery in queue.deliveries() if not delivery.done]
    return list(dict.fromkeys(one.destination.key for one in found if to in (None, one.destination.tracker)))


def _row(entry: Entry) -> tuple[str, ...]:
    state = f"{entry.state}: {entry.why}" if entry.why else entry.state
    to = f"{entry.tracker} ({entry.place})"
    values = (entry.run, entry.what, to, str(entry.events), str(entry.sent), str(entry.tries), state)
    return tuple(printable(value) for value in values)
