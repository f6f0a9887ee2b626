"""What `report` does once its words are parsed: find what was asked for, set it out, write it, open it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from metalmark.errors import FormatError, UsageError
from metalmark.model.measurement import BenchRun
from metalmark.model.sweep import Sweep
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.report.content import Content
from metalmark.results.ceilings import ceilings_of
from metalmark.runner.job import write_whole
from metalmark.store.bundle import read_file
from metalmark.store.damage import refuse_damaged
from metalmark.store.runs import RunStore
from metalmark.training.job import RECORD, read_record
from metalmark.workloads.ceiling import COPY, MATMUL

ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json", ".parquet": "parquet"}
DEFAULTS = {"html": "report.html", "parquet": "report.parquet"}
FILE_SIGNS = (".json", ".bundle", ".gz")
LARGE_BYTES = 3 << 20
LAST = "last"


class Found:
    """What the words meant so far; each run once, however often it was named."""

    def __init__(self) -> None:
        self.records: dict[str, BenchRun] = {}
        self.trainings: dict[str, TrainingRun] = {}
        self.watched: dict[str, WatchedRun] = {}
        self.sweeps: dict[str, None] = {}
        """Those asked for as a whole."""

    def add(self, records: Sequence[BenchRun]) -> None:
        self.records.update((record.id, record) for record in records)


def form_of(form: str | None, output: str | None) -> str:
    if form is not None:
        return form
    ending = Path(output).suffix.lower() if output else ""
    return ENDINGS.get(ending, "html")


def gather(words: Sequence[str], path: Path, *, published: bool) -> Content:
    found = Found()
    with RunStore(path, readonly=True) as store:
        for word in words or _default(store):
            _find(word, store, found)
        measured = found.records.values()
        sweeps = [sweep for name in found.sweeps if (sweep := _sweep(name, store)) is not None]
        # Only a device that something ran on has a ceiling that is of interest.
        frameworks = sorted({record.plan.framework for record in measured})
        ceilings = ceilings_of(store.of_workloads([MATMUL, COPY], frameworks=frameworks) if measured else ())
    return Content(
        records=tuple(sorted(measured, key=lambda record: (record.sweep, record.cell, record.repeat))),
        trainings=tuple(found.trainings.values()),
        watched=tuple(found.watched.values()),
        plans=tuple(plan for sweep in sweeps for plan in sweep.plans),
        left_out=tuple(dict.fromkeys(line for sweep in sweeps for line in sweep.left_out)),
        ceilings=ceilings,
        published=published,
    )


def write(content: Content, form: str, output: str | None) -> Path | None:
    """Where it was written; None for stdout. The path is all that goes to stdout, for scripts."""
    data = FORMS[form](content)
    name = output or DEFAULTS.get(form, "-")
    if name == "-":
        if form == "parquet" and sys.stdout.isatty():
            raise UsageError("Parquet is not for a terminal.", hint="Name a file: -o blocks.parquet")
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return None
    path = Path(name)
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(f"{name} can't be written: {error.strerror}.", hint="Name another file with -o.") from error
    click.echo(f"{len(data) / 1024:,.0f} kB written:", err=True)
    click.echo(str(path))
    return path


def open_page(path: Path | None, form: str) -> None:
    if path is None or form != "html":
        click.echo("--open shows a page in a file: nothing was opened.", err=True)
    elif not has_desktop():
        click.echo("There is no desktop here to open it on.", err=True)
    else:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            click.echo("No browser took it: open the file yourself.", err=True)


def has_desktop() -> bool:
    """A browser in a terminal would take that over, so none is asked for where there are no windows.

    A Mac always has windows, but over ssh they are not where the user sits. X's can come through ssh, and say so.
    """
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    remote = os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY")
    return sys.platform in ("darwin", "win32") and not remote


def _default(store: RunStore) -> list[str]:
    if store.rows(limit=1):
        click.echo("Of the last sweep; name runs to choose others.", err=True)
        return [LAST]
    trainings = store.trainings(limit=1)
    if trainings:
        click.echo("Of the last training; name runs to choose others.", err=True)
        return [trainings[0].lineup or trainings[0].id]
    raise UsageError(f"There is nothing to report yet in {store.path}.", hint="Measure: metalmark bench mnist-mlp")


def _find(word: str, store: RunStore, found: Found) -> None:
    # os.path and not Path: a word may be longer than any file's name.
    if word == LAST:
        _find_records(word, store, found)
    elif os.path.isfile(os.path.join(word, RECORD)):
        training = read_record(Path(word))
        found.trainings[training.id] = training
    elif os.path.isfile(word) or word.endswith(FILE_SIGNS):
        records = read_file(word).records
        if not records:
            raise UsageError(f"{word} holds no records.", hint="Make one with `metalmark runs export -o FILE`.")
        for record in records:
            refuse_damaged(record, word)
        found.add(records)
    elif trainings := store.find_trainings(word):
        found.trainings.update((row.id, row.record()) for row in trainings)
    elif watched := store.find_watched(word):
        found.watched.update((run.id, run) for run in watched)
    elif os.sep in word:
        raise FormatError(f"{word} is neither a file nor the folder of a training.", hint="metalmark report --help")
    else:
        _find_records(word, store, found)


def _find_records(word: str, store: RunStore, found: Found) -> None:
    records = store.find([word])
    if word == LAST or any(record.sweep == word.lower() for record in records):
        found.sweeps[records[0].sweep] = None
        found.add(records)
        return
    # A record is one process of its cell; whoever names one means the cell.
    for sweep, cell in dict.fromkeys((record.sweep, record.cell) for record in records):
        found.add(store.of_sweep(sweep, cell))


def _sweep(identifier: str, store: RunStore) -> Sweep | None:
    """None of one whose records were imported: what else was asked for stayed where it ran."""
    try:
        return store.sweep(identifier)
    except UsageError:
        return None


def _html(content: Content) -> bytes:
    from metalmark.report.html.document import document

    data = document(content).encode()
    if len(data) > LARGE_BYTES:
        click.echo(f"It is {len(data) / 2**20:.1f} MiB: name fewer runs for a smaller page.", err=True)
    return data


def _markdown(content: Content) -> bytes:
    from metalmark.report.formats import markdown_text

    return markdown_text(content).encode()


def _csv(content: Content) -> bytes:
    from metalmark.report.formats import csv_text

    return csv_text(content).encode()


def _json(content: Content) -> bytes:
    from metalmark.report.formats import json_bytes

    return json_bytes(content)


def _parquet(content: Content) -> bytes:
    from metalmark.report.formats import parquet_bytes

    return parquet_bytes(content)


FORMS: dict[str, Callable[[Content], bytes]] = {
    "html": _html,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
