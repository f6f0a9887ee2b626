"""`metalmark runs`: list, show, name, export, import, delete."""

from __future__ import annotations

import click

from metalmark.cli.naming import name, tag, unname
from metalmark.cli.options import against_option, store_option
from metalmark.cli.pushing import push

EPILOG = """\b
RUN is a record's id, the beginning of one, a sweep's id, a name, or `last` for the newest sweep.

\b
Examples:
  metalmark runs list
  metalmark runs show last
  metalmark runs name last main
  metalmark runs export last -o mine.json
  metalmark runs export last --bundle mine.bundle
  metalmark runs import theirs.bundle
  metalmark runs push --to mlflow last
  metalmark runs delete k3x9
"""


@click.group("runs", epilog=EPILOG)
def command() -> None:
    """List, show, name, export, import and delete what was measured."""


for one in (name, tag, unname, push):
    command.add_command(one)


@command.command("list", epilog="\b\nExample:\n  metalmark runs list --limit 100")
@click.option("--limit", type=click.IntRange(min=1), default=40, show_default=True, help="The newest so many.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@store_option
def list_(limit: int, as_json: bool, store: str | None) -> None:
    """List records and trainings, the newest last."""
    from metalmark.report.rows import rows_json, rows_text
    from metalmark.report.training_rows import training_entries, training_rows_text
    from metalmark.store.place import store_path
    from metalmark.store.trainings import TrainingStore

    path = store_path(store)
    with TrainingStore(path, readonly=True) as opened:
        rows, total, names = opened.rows(limit=limit), opened.count(), opened.names()
        trainings, trained = opened.trainings(limit=limit), opened.count_trainings()
    if as_json:
        click.echo(rows_json(rows, names, more=training_entries(trainings)))
        return
    if trainings:
        click.echo(training_rows_text(trainings))
        if trained > len(trainings):
            click.echo(f"The newest {len(trainings)} of {trained} trainings; --limit shows more.", err=True)
        if not rows:
            return
        click.echo()
    if not rows:
        click.echo(f"No records yet in {path}. Measure something: metalmark bench mnist-mlp", err=True)
        return
    click.echo(rows_text(rows, names))
    if total > len(rows):
        click.echo(f"The newest {len(rows)} of {total}; --limit shows more.", err=True)


@command.command("show", epilog="\b\nExamples:\n  metalmark runs show last\n  metalmark runs show k3x9 --json")
@click.argument("runs", nargs=-1, required=True)
@click.option("--json", "form", flag_value="json", help="Records with every block.")
@click.option("--csv", "form", flag_value="csv", help="A line a cell.")
@click.option("--markdown", "form", flag_value="markdown", help="A table to paste.")
@against_option
@store_option
def show(runs: tuple[str, ...], form: str | None, against: str | None, store: str | None) -> None:
    """Show RUNS as the table they made, with how and where they were measured."""
    from metalmark.cli.against import print_published
    from metalmark.report.exports import comma_separated, json_text, markdown
    from metalmark.report.record_page import record_page
    from metalmark.report.table import sweep_table
    from metalmark.report.terminal import print_table
    from metalmark.results.ceilings import ceilings_of
    from metalmark.results.cells import cells_of
    from metalmark.store.place import store_path
    from metalmark.store.trainings import TrainingStore
    from metalmark.workloads.ceiling import COPY, MATMUL

    with TrainingStore(store_path(store), readonly=True) as opened:
        words, trainings = opened.split_trainings(runs)
        if trainings:
            from metalmark.cli.trained import show_trainings

            show_trainings(trainings, form, alone=not words)
            if not words:
                return
        records = opened.find(words)
        ceilings = ceilings_of(() if form else opened.of_workloads([MATMUL, COPY]))
    cells = cells_of(records)
    if form == "json":
        click.echo(json_text(records), nl=False)
    elif form == "csv":
        click.echo(comma_separated(cells), nl=False)
    elif form == "markdown":
        click.echo(markdown(sweep_table(cells)), nl=False)
    else:
        print_table(sweep_table(cells))
        click.echo(record_page(records, ceilings))
    if against:
        print_published(cells, form)


EXPORTS = """\b
Examples:
  metalmark runs export -o all.json
  metalmark runs export last
  metalmark runs export last --bundle mine.bundle
"""


@command.command("export", epilog=EXPORTS)
@click.argument("runs", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help="Write there, whole or not at all (default: stdout).")
@click.option("--bundle", metavar="FILE",
              help="One compressed file to share: hashed, and looked through for personal data.")  # fmt: skip
@click.option("--with-names", "named", is_flag=True, help="Put the runs' names and tags into the bundle too.")
@click.option("--scrub", "scrubs", is_flag=True, help="Put plain words in place of personal data, instead of refusing.")
@store_option
def export(
    runs: tuple[str, ...], output: str | None, bundle: str | None, named: bool, scrubs: bool, store: str | None
) -> None:
    """Export RUNS (default: all) as JSON: no host, user, path or serial number is in it."""
    from pathlib import Path

    from metalmark.cli.bundling import export_bundle
    from metalmark.errors import UsageError
    from metalmark.model.codec import encode_export
    from metalmark.runner.job import write_whole
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

    if bundle is not None:
        if output is not None:
            raise UsageError("-o and --bundle are two forms of a file.", hint="Give one of them.")
        export_bundle(runs, bundle, store=store, named=named, scrubs=scrubs)
        return
    if named or scrubs:
        raise UsageError("--with-names and --scrub are of a bundle.", hint="Add --bundle FILE.")
    with Store(store_path(store), readonly=True) as opened:
        records = opened.find(runs)
    data = encode_export(records)
    if output is None:
        click.echo(data, nl=False)
        return
    try:
        write_whole(Path(output), data)
    except OSError as error:
        raise UsageError(f"{output} can't be written: {error.strerror}.", hint="Name another file with -o.") from error
    click.echo(f"{len(records)} records written to {output}.", err=True)


@command.command(
    "import", epilog="\b\nExamples:\n  metalmark runs import theirs.json\n  metalmark runs import *.bundle"
)
@click.argument("files", nargs=-1, required=True)
@click.option("--with-names", "named", is_flag=True, help="Take over the names in a bundle, beside those here.")
@store_option
def import_(files: tuple[str, ...], named: bool, store: str | None) -> None:
    """Import FILES that `runs export` or `bench --json` wrote; what is there already is skipped."""
    from metalmark.cli.bundling import import_files

    import_files(files, store=store, named=named)


@command.command("delete", epilog="\b\nExample:\n  metalmark runs delete k3x9 --yes")
@click.argument("runs", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_option
def delete(runs: tuple[str, ...], yes: bool, store: str | None) -> None:
    """Delete RUNS. This can't be undone: export them first if in doubt."""
    import sys

    from metalmark.cli.trained import delete_trainings
    from metalmark.errors import UsageError
    from metalmark.store.place import store_path
    from metalmark.store.trainings import TrainingStore

    with TrainingStore(store_path(store)) as opened:
        words, trainings = opened.split_trainings(runs)
        ids = [record.id for record in opened.find(words)] if words else []
        counts = {"records": len(ids), "trainings": len(trainings)}
        what = " and ".join(f"{count} {name}" for name, count in counts.items() if count or name == "records")
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(f"This would delete {what}.", hint="Add --yes to do it without being asked.")
            click.confirm(f"Delete {what} for good?", abort=True, err=True)
        opened.delete(ids)
        for line in delete_trainings(opened, trainings, store):
            click.echo(line, err=True)
    click.echo(f"{what} deleted.", err=True)
