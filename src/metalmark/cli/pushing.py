"""`metalmark runs push`: what was measured before, to a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from metalmark.cli.options import store_option

if TYPE_CHECKING:
    from metalmark.track.destination import Destination
    from metalmark.track.spool import Queue

EPILOG = """\b
RUN is as everywhere in `runs`, or the folder that `metalmark train` wrote.

\b
Examples:
  metalmark runs push --to mlflow last
  metalmark runs push --to mlflow=http://127.0.0.1:5000,wandb=offline k3x9 p2m1
  metalmark runs push --to mlflow run1/

\b
Exit code: 0 sent; 1 it waits in the queue (metalmark track); 2 bad input.
"""


@click.command("push", epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--to", "to", required=True, metavar="mlflow[=URI],wandb[=MODE]", help="The tracker, as --track takes it."
)
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@store_option
def push(runs: tuple[str, ...], to: str, quiet: bool, store: str | None) -> int:
    """Send RUNS to a tracker. A run that is there already is completed, never doubled."""
    from metalmark.cli.tracking import tell
    from metalmark.track.courier import Courier
    from metalmark.track.destination import parse

    wish = parse(to)
    if not wish.destinations:
        click.echo("Nothing is sent: W&B is disabled.", err=True)
        return 0
    queued = _queue(runs, wish.destinations, store)
    if not quiet:
        for note in wish.notes:
            click.echo(note, err=True)
        names = " and ".join(str(destination) for destination in wish.destinations)
        click.echo(f"Sending {'1 run' if len(queued) == 1 else f'{len(queued)} runs'} to {names} ...", err=True)
    parcels = Courier(queued, wish.destinations, uri=wish.uri).wait(None)
    tell(parcels, quiet=quiet)
    return 0 if all(parcel.delivery.done for parcel in parcels) else 1


def _queue(words: Sequence[str], destinations: Sequence[Destination], store: str | None) -> list[Queue]:
    """All of them are found before the first is queued."""
    from metalmark.runner.local import expanded
    from metalmark.store.place import store_path
    from metalmark.store.runs import RunStore
    from metalmark.track.records import spool_record, spool_watched
    from metalmark.track.training import spool_training
    from metalmark.training.job import RECORD, read_record

    folders = {word: folder for word in words if ((folder := expanded(word)) / RECORD).is_file()}
    rest = [word for word in words if word not in folders]
    trainings = [(folder, read_record(folder)) for folder in folders.values()]
    with RunStore(store_path(store), readonly=True) as opened:
        loops = {word: found for word in rest if (found := opened.find_watched(word))}
        rest, rows = opened.split_trainings([word for word in rest if word not in loops])
        records = opened.find(rest) if rest else []
    trainings += [(row.path, row.record()) for row in rows]
    unique = {record.id: (folder, record) for folder, record in trainings}
    watched = {run.id: run for found in loops.values() for run in found}
    return [
        *(spool_training(folder, record, destinations) for folder, record in unique.values()),
        *(spool_watched(run, destinations) for run in watched.values()),
        *(spool_record(record, destinations) for record in records),
    ]
