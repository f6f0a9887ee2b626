"""`metalmark runs`: list, show, name, export, import, sync, push and delete runs of every kind."""

import sys

import click

from metalmark.cli import options as shared
from metalmark.cli.complete import LAST, complete_names, complete_runs
from metalmark.errors import UsageError


def counted(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


@click.group("runs", cls=shared.DocumentedGroup)
def command() -> None:
    """List, show, name, export, import, sync, push and delete runs: of bench, train and parity, and watched ones."""


@command.command("list")
@click.option("--limit", type=shared.ROWS, default=40, show_default=True, help="Maximum number of runs.")
@shared.json_option
@shared.wide_option
@shared.store_option
def list_(limit: int, as_json: bool, store: str | None) -> None:
    """List the newest runs of every kind, the newest last."""
    from metalmark.app.runs import list_runs
    from metalmark.report.text.run_list import run_rows_json, run_rows_text

    listing = list_runs(limit=limit, store=store)
    if as_json:
        shared.print_data(run_rows_json(listing.rows, listing.names) + "\n")
    elif not listing.rows:
        click.echo(f"No runs yet in {listing.store}. Measure something: metalmark bench mnist-mlp", err=True)
    else:
        text, missing = run_rows_text(listing.rows, listing.names, width=shared.table_columns())
        click.echo(text)
        if missing:
            click.echo(missing, err=True)
        if listing.total > len(listing.rows):
            click.echo(f"The newest {len(listing.rows)} of {listing.total}; --limit shows more.", err=True)


@command.command("show")
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@shared.form_options
@shared.against_option
@shared.store_option
def show(runs: tuple[str, ...], form: str | None, against: str | None, store: str | None) -> int:
    """Show RUNS (default: what the newest command made) as the tables they made, with how and where they ran."""
    from metalmark.app.runs import describe_runs
    from metalmark.app.runs import runs as find_runs
    from metalmark.report.text.width import wrapped

    left_out = shared.LeftOut()
    chosen = find_runs(*(runs or (LAST,)), store=store, on_damaged=left_out)
    shared.print_runs(chosen, form)
    if form is None:
        click.echo(wrapped(describe_runs(chosen, on_damaged=left_out), shared.table_columns()))
    if against:
        shared.print_published(chosen, form)
    return left_out.exit_code


@command.command("name")
@click.argument("run", shell_complete=complete_runs)
@click.argument("name")
@shared.store_option
def name(run: str, name: str, store: str | None) -> None:
    """Give RUN the NAME, until another run gets it: a baseline to compare with."""
    _name((run,), name, store, add=False)


@command.command("tag")
@click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs)
@click.argument("tag")
@shared.store_option
def tag(runs: tuple[str, ...], tag: str, store: str | None) -> None:
    """Add RUNS to those that have the TAG. Runs of the same cell count as its repeats."""
    _name(runs, tag, store, add=True)


def _name(runs: tuple[str, ...], name: str, store: str | None, *, add: bool) -> None:
    from metalmark.app.runs import name_runs

    click.echo(f"{name} names {', '.join(name_runs(runs, name, add=add, store=store))}.", err=True)


@command.command("unname")
@click.argument("name", shell_complete=complete_names)
@shared.store_option
def unname(name: str, store: str | None) -> None:
    """Take a NAME or tag away; the runs stay."""
    from metalmark.app.runs import unname_runs

    unname_runs(name, store=store)
    click.echo(f"{name} names nothing now.", err=True)


@command.command("export")  # fmt: skip
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@click.option("-o", "--output", metavar="FILE", help="File to write, whole or not at all; - is stdout (default: -).")
@click.option("--bundle", metavar="FILE",
              help="Compressed file to write and share: hashed, and searched for personal data.")  # fmt: skip
@click.option("--with-names", is_flag=True, help="Put the names and tags of the runs into the bundle too.")
@click.option("--scrub", is_flag=True, help="Replace personal data with plain words, instead of refusing it.")
@shared.store_option
def export(runs: tuple[str, ...], output: str | None, bundle: str | None, with_names: bool, scrub: bool,
           store: str | None) -> int:  # fmt: skip
    """Export RUNS (default: all) as JSON: no host, user, path or serial number is in it."""
    from metalmark.app.runs import export_runs, write_file
    from metalmark.report.text.units import size

    if bundle is not None and output is not None:
        raise UsageError("-o and --bundle are two forms of a file.", hint="Give one of them.")
    file, left_out = bundle if bundle is not None else output, shared.LeftOut()
    if bundle == "-" and sys.stdout.isatty():
        raise UsageError("A bundle is not for a terminal.", hint="Name a file: --bundle runs.bundle")
    data, count = export_runs(
        runs, bundle=bundle is not None, with_names=with_names, scrub=scrub, store=store, on_damaged=left_out
    )
    if file is None or file == "-":
        click.echo(data, nl=False)
    else:
        write_file(file, data, option="-o" if bundle is None else "--bundle")
        click.echo(f"{counted(count)} written to {file}, {size(len(data))}.", err=True)
    return left_out.exit_code


@command.command("import")
@click.argument("files", nargs=-1, required=True)
@click.option("--with-names", is_flag=True, help="Take over the names in a bundle, beside those here.")
@shared.store_option
def import_(files: tuple[str, ...], with_names: bool, store: str | None) -> None:
    """Import FILES that `runs export` or `bench --json` wrote; runs that are there already are skipped."""
    from metalmark.app.runs import import_runs
    from metalmark.report.text.units import count

    imported = import_runs(files, with_names=with_names, store=store)
    held = f"{imported.held} {'was' if imported.held == 1 else 'were'} there already"
    click.echo(f"{counted(imported.added)} imported, {held}.", err=True)
    if with_names:
        click.echo(f"{count(imported.names, 'name')} taken over.", err=True)
    elif imported.names_left:
        click.echo("Names were left aside; --with-names takes them over.", err=True)


@command.command("sync")
@click.argument("other")
@click.option("--push", is_flag=True, help="Only send runs to OTHER.")
@click.option("--pull", is_flag=True, help="Only take runs from OTHER.")
@shared.quiet_option
@shared.store_option
def sync(other: str, push: bool, pull: bool, quiet: bool, store: str | None) -> int:
    """Copy runs, sweeps and names that your store or OTHER lacks to it. OTHER is a file or a postgresql:// address."""
    from metalmark.app.sync import sync_runs
    from metalmark.display.counting import CountingLine

    left_out = shared.LeftOut()
    with CountingLine(quiet=quiet) as line:
        synced = sync_runs(other, push=push or not pull, pull=pull or not push, store=store, tell=line.tell,
                           on_damaged=left_out, raise_interrupt=False)  # fmt: skip
    for sentence in synced.sentences:
        click.echo(sentence, err=True)
    if not synced.complete:
        click.echo("Stopped; what was copied is kept. The same command goes on.", err=True)
        return 130
    return 1 if synced.conflicts else left_out.exit_code


@command.command("push")
@click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--to", required=True, metavar="mlflow[=URI],wandb[=MODE]", help="Tracker, as --track takes it.")
@shared.quiet_option
@shared.store_option
def push(runs: tuple[str, ...], to: str, quiet: bool, store: str | None) -> int:
    """Send RUNS to a tracker. A run that is there already is completed, never doubled."""
    from metalmark.app.runs import push_runs

    left_out = shared.LeftOut()
    arrived = push_runs(runs, to=to, progress=not quiet, store=store, on_damaged=left_out)
    return left_out.exit_code if arrived else 1


@command.command("delete")
@click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@shared.store_option
def delete(runs: tuple[str, ...], yes: bool, store: str | None) -> None:
    """Delete RUNS. This can't be undone: export them first if in doubt."""
    from metalmark.app.runs import delete_runs, rows_to_delete

    rows = rows_to_delete(runs, store=store)
    what = counted(len(rows))
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"This would delete {what}.", hint="Add --yes to do it without being asked.")
        click.confirm(f"Delete {what} for good?", abort=True, err=True)
    for line in delete_runs(rows, store=store):
        click.echo(line, err=True)
    click.echo(f"{what} deleted.", err=True)
