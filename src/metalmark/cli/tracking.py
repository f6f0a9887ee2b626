"""`--track`, for every verb that has it: parsed before anything runs, finished when the command is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from metalmark.model.measurement import BenchRun
    from metalmark.track.courier import Parcel
    from metalmark.track.destination import Wish
    from metalmark.track.spool import Queue
    from metalmark.track.training import TrainingTracker
    from metalmark.training.job import Request
    from metalmark.training.launch import Listener

F = TypeVar("F", bound=Callable[..., Any])


def track_option(function: F) -> F:
    return click.option(
        "--track",
        default=None,
        metavar="mlflow[=URI],wandb[=MODE]",
        callback=_begin,
        help="Show the run there too; what can't be sent now waits (metalmark track).",
    )(function)


def _begin(ctx: click.Context, _: click.Parameter, text: str | None) -> Tracking | None:
    if not text or ctx.resilient_parsing:
        return None
    from metalmark.track.destination import parse

    tracking = Tracking(parse(text), quiet=lambda: bool(ctx.params.get("quiet")))
    ctx.call_on_close(tracking.finish)
    return tracking


class Tracking:
    def __init__(self, wish: Wish, *, quiet: Callable[[], bool]) -> None:
        self._wish, self._quiet = wish, quiet
        self._trainings: list[TrainingTracker] = []
        self._queues: list[Queue] = []
        self._trouble = ""
        self._noted = False

    def training(self, folder: Path, request: Request) -> list[Listener]:
        """Who listens to that training, if anybody."""
        self._say_notes()
        if not self._wish.destinations:
            return []
        from metalmark.track.training import TrainingTracker

        tracker = TrainingTracker(self._wish, folder, source=request.paths.get(request.plan.workload, ""))
        self._trainings.append(tracker)
        return [tracker]

    def keeping(self, keep: Callable[[BenchRun], None]) -> Callable[[BenchRun], None]:
        """Keeps a measured cell and queues it. Nothing is sent before the last: it would disturb what is measured."""
        self._say_notes()

        def both(record: BenchRun) -> None:
            keep(record)
            if self._wish.destinations and not self._trouble:
                self._queue(record)

        return both

    def finish(self) -> None:
        """Send what is left, wait within reason, and say what became of it."""
        from metalmark.track.courier import Courier

        parcels: list[Parcel] = []
        for tracker in self._trainings:
            parcels += tracker.finish()
            self._trouble = tracker.trouble or self._trouble
        parcels += Courier(self._queues, self._wish.destinations, uri=self._wish.uri).wait()
        if self._trouble:
            click.echo(f"metalmark: {self._trouble}", err=True)
        tell(parcels, quiet=self._quiet())

    def _say_notes(self) -> None:
        for note in () if self._quiet() or self._noted else self._wish.notes:
            click.echo(note, err=True)
        self._noted = True

    def _queue(self, record: BenchRun) -> None:
        from metalmark.track.records import spool_record
        from metalmark.track.story import stopped

        try:
            self._queues.append(spool_record(record, self._wish.destinations))
        except Exception as error:  # noqa: BLE001  whatever it is, it costs the tracking, never the sweep
            self._trouble = stopped(error)


def tell(parcels: list[Parcel], *, quiet: bool) -> None:
    """A line each where there are few; else a line for each destination and each reason."""
    from metalmark.scrub import printable

    if len(parcels) > FEW:
        said = dict.fromkeys(_many(parcels))
    else:
        said = dict.fromkeys((parcel.text, parcel.delivery.done) for parcel in parcels)
    for text, fine in said:
        if text and not (fine and quiet):
            click.echo(printable(text), err=True)


FEW = 4


def _many(parcels: list[Parcel]) -> list[tuple[str, bool]]:
    lines = []
    for word in dict.fromkeys(parcel.delivery.destination.tracker for parcel in parcels):
        group = [parcel for parcel in parcels if parcel.delivery.destination.tracker == word]
        done = sum(parcel.delivery.done for parcel in group)
        if done:
            lines.append((f"{word}: {done} of {len(group)} runs sent to {group[0].delivery.destination.place}.", True))
        lines += [(parcel.text, False) for parcel in group if not parcel.delivery.done][:1]
    return lines
