"""`metalmark runs`: list, show, name, export, import, delete."""

from __future__ import annotations

import click

from metalmark.cli.naming import name, tag, unname
from metalmark.cli.options import against_option, store_option

EPILOG = """\b
RUN is a record's id, the beginning of one, a sweep's id, a name, or `last` for the newest sweep.

\b
Examples:
  metalmark runs list
  metalmark runs show last
  metalmark runs name last main
  metalmark runs export last -o mine.json
  metalmark runs import theirs.json
  metalmark runs delete k3x9
"""


@click.group("runs", epilog=EPILOG)
def command() -> None:
    """List, show, name, export, import and delete what was measured."""


for one in (name, tag, unname):
    command.add_command(one)


@command.command("list", epilog="\b\nExample:\n  metalmark runs list --limit 100")
@click.option("--limit", type=click.IntRange(min=1), default=40, show_default=True, help="The newest so many.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@store_option
def list_(limit: int, as_json: bool, store: str | None) -> None:
    """List records, the newest last."""
    from metalmark.report.rows import rows_json, rows_text
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

    path = store_path(store)
    with Store(path, readonly=True) as opened:
        rows, total, names = opened.rows(limit=limit), opened.count(), opened.names()
    if as_json:
        click.echo(rows_json(rows, names))
        return
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
    from metalmark.report.ceilings import ceilings_of
    from metalmark.report.cells import cells_of
    from metalmark.report.exports import comma_separated, json_text, markdown
    from metalmark.report.record_page import record_page
    from metalmark.report.table import sweep_table
    from metalmark.report.terminal import print_table
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store
    from metalmark.workloads.ceiling import COPY, MATMUL

    with Store(store_path(store), readonly=True) as opened:
        records = opened.find(runs)
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


@command.command("export", epilog="\b\nExamples:\n  metalmark runs export -o all.json\n  metalmark runs export last")
@click.argument("runs", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help="Write there, whole or not at all (default: stdout).")
@store_option
def export(runs: tuple[str, ...], output: str | None, store: str | None) -> None:
    """Export RUNS (default: all) as JSON: no host, user, path or serial number is in it."""
    from pathlib import Path

    from metalmark.codec import encode_export
    from metalmark.errors import UsageError
    from metalmark.runner.job import write_whole
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

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


@command.command("import", epilog="\b\nExample:\n  metalmark runs import theirs.json")
@click.argument("files", nargs=-1, required=True)
@store_option
def import_(files: tuple[str, ...], store: str | None) -> None:
    """Import FILES that `runs export` or `bench --json` wrote; what is there already is skipped."""
    from metalmark.codec import read_export
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

    records = [record for name in files for record in read_export(name)]
    with Store(store_path(store)) as opened:
        added = opened.add_all(records)
    click.echo(f"{added} records imported, {len(records) - added} were there already.", err=True)


@command.command("delete", epilog="\b\nExample:\n  metalmark runs delete k3x9 --yes")
@click.argument("runs", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_option
def delete(runs: tuple[str, ...], yes: bool, store: str | None) -> None:
    """Delete RUNS. This can't be undone: export them first if in doubt."""
    import sys

    from metalmark.errors import UsageError
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

    with Store(store_path(store)) as opened:
        ids = [record.id for record in opened.find(runs)]
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(
                    f"This would delete {len(ids)} records.", hint="Add --yes to do it without being asked."
                )
            click.confirm(f"Delete {len(ids)} records for good?", abort=True, err=True)
        gone = opened.delete(ids)
    click.echo(f"{gone} records deleted.", err=True)
