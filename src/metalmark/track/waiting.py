"""What waits for a tracker because it could not be sent, and sending it after all."""

from collections.abc import Sequence

import msgspec

from metalmark.errors import FormatError, UsageError
from metalmark.scrub import printable
from metalmark.track.destination import Destination
from metalmark.track.launch import (
    Say,
    count_runs,
    report_outcomes,
    say_nothing,
    say_on_stderr,
    start_senders,
    wait_for_senders,
)
from metalmark.track.queue import Begin, End, Queue, clear_sent, queues


class WaitingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run that one tracker does not have whole, as `track list --json` shows it."""

    run: str
    what: str
    tracker: str
    place: str
    events: int
    sent: int
    tries: int
    state: str
    """"running", "being sent", "waiting", or "damaged" for what can't be sent."""
    why: str


def waiting() -> list[WaitingRun]:
    """Return what has not been sent."""
    clear_sent()
    runs = []
    for queue in queues():
        try:
            runs += _waiting(queue)
        except (FormatError, OSError) as error:
            why = error.message if isinstance(error, FormatError) else f"it can't be read: {error.strerror}"
            runs.append(_damaged(queue, "", why))
    return runs


def _waiting(queue: Queue) -> list[WaitingRun]:
    events, _ = queue.read()
    damage = queue.damage()
    if not events and not queue.is_written() and not damage:
        return []
    begin = next((event for event in events if isinstance(event, Begin)), None)
    what = begin.name.removesuffix(f" {queue.id}") if begin is not None else ""
    running = queue.is_written() and not (events and isinstance(events[-1], End))
    runs = []
    for delivery in queue.deliveries():
        if delivery.done and not running and not damage:
            continue
        sending = queue.is_sent(delivery.destination.key)
        state = "running" if running else "being sent" if sending else "damaged" if delivery.done else "waiting"
        runs.append(
            WaitingRun(
                run=queue.id,
                what=what,
                tracker=delivery.destination.tracker,
                place=delivery.destination.place,
                events=len(events),
                sent=delivery.sent,
                tries=delivery.tries,
                state=state,
                why=". ".join(filter(None, (delivery.trouble, damage))),
            )
        )
    return runs + [_damaged(queue, key, why, what=what, events=len(events)) for key, why in queue.unreadable().items()]


def _damaged(queue: Queue, key: str, why: str, *, what: str = "", events: int = 0) -> WaitingRun:
    tracker = key.partition("-")[0]
    advice = f"Queue the run again: metalmark runs push {queue.id} --to {tracker or 'TRACKER'}; or forget it: "
    return WaitingRun(
        run=queue.id, what=what, tracker=tracker, place="", events=events, sent=0, tries=0, state="damaged",
        why=f"{why} {advice}metalmark track delete {queue.id}",
    )  # fmt: skip


def matching_queues(run_queries: Sequence[str]) -> list[Queue]:
    """Return the queues whose run's id begins so; none that is still written."""
    every = queues()
    matching: dict[str, Queue] = {}
    for query in run_queries:
        of_query = [queue for queue in every if query and queue.id.startswith(query)]
        if not of_query:
            raise UsageError(f"Nothing of {printable(query)!r} waits.", hint="`metalmark track list` shows what does.")
        matching.update((queue.folder.name, queue) for queue in of_query)
    alive = [queue for queue in matching.values() if queue.is_written()]
    if alive:
        raise UsageError(
            f"The run {alive[0].id} is not over.", hint="It sends by itself; wait for its end, or stop it with Ctrl-C."
        )
    return list(matching.values())


def sync(
    run_queries: Sequence[str], *, to: str | None = None, say: Say = say_nothing, warn: Say = say_on_stderr
) -> bool:
    """Send what waits of these runs, or of all, and wait for it however long it takes; True when nothing is left."""
    clear_sent()
    ended = [queue for queue in (matching_queues(run_queries) if run_queries else queues()) if not queue.is_written()]
    unsent: dict[Destination, list[Queue]] = {}
    for queue in ended:
        for delivery in queue.deliveries():
            if not delivery.done and to in (None, delivery.destination.tracker):
                unsent.setdefault(delivery.destination, []).append(queue)
    outcomes = []
    for destination, of_it in unsent.items():
        say(f"Sending {count_runs(of_it)} to {printable(str(destination))} ...")
        outcomes += wait_for_senders(start_senders(of_it, [destination], once=True), None)
    damaged = [run for run in waiting() if run.state == "damaged" and to in (None, run.tracker, "")]
    for run in damaged:
        warn(printable(f"{run.run}: {run.why}"))
    if not outcomes and not damaged:
        say("Nothing waits.")
    return report_outcomes(outcomes, say, warn) and not damaged
