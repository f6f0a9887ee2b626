"""`metalmark report`: let me look instead of read, in one file that needs no other."""

import sys
from pathlib import Path

import click

from metalmark.cli.complete import complete_runs
from metalmark.cli.options import DocumentedCommand, LeftOut, against_option, store_option
from metalmark.errors import UsageError


@click.command("report", cls=DocumentedCommand)
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@click.option("-o", "--output", metavar="FILE",
              help="File to write, whole or not at all; - is stdout (default: report.html or stdout).")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["html", "markdown", "csv", "json", "parquet"]), default=None,
              help="Format (default: by the file's ending, else html).")  # fmt: skip
@click.option("--site", metavar="DIR", default=None,
              help="Take RUNS as a folder of bundles and write a static site of them, with leaderboards.")  # fmt: skip
@against_option
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser, where there is a desktop.")
@store_option
def command(runs: tuple[str, ...], output: str | None, form: str | None, against: str | None, opens: bool,
            store: str | None, site: str | None) -> int:  # fmt: skip
    """Write a report of RUNS: the answer, tables, charts, training curves, what could not run, the machine.

    The page is one file: it loads nothing, runs without script, follows light and dark, and prints.
    """
    if site is not None:
        if output is not None or form is not None or against:
            raise UsageError("--site writes pages and nothing else.", hint="Leave -o, --format and --against out.")
        return _write_site(runs, site, opens=opens)
    from metalmark.app import report
    from metalmark.app.runs import write_file

    chosen = report.form_of(form, output)
    left_out = LeftOut()
    content = report.gather(runs, store, published=bool(against), say=_say, on_damaged=left_out)
    data = report.render(content, chosen, say=_say)
    name = output or report.DEFAULTS.get(chosen, "-")
    if name == "-":
        if chosen == "parquet" and sys.stdout.isatty():
            raise UsageError("Parquet is not for a terminal.", hint="Name a file: -o blocks.parquet")
        click.echo(data, nl=False)
    else:
        write_file(name, data)
        _say(f"{len(data) / 1024:,.0f} kB written:")
        click.echo(name)
    if opens:
        if name == "-" or chosen != "html":
            _say("--open shows a page in a file: nothing was opened.")
        elif why := report.open_page(Path(name)):
            _say(why)
    return left_out.exit_code


def _write_site(runs: tuple[str, ...], out: str, *, opens: bool) -> int:
    """Return 1 when a file of the folder is not in the site: whoever publishes by a script has to hear of that."""
    from metalmark.app.report import open_page
    from metalmark.report.html.site import find_bundles, write_site
    from metalmark.report.text.units import count
    from metalmark.scrub import printable

    if len(runs) != 1:
        raise UsageError("--site takes one folder of bundles.", hint="metalmark report --site DIR FOLDER")
    written = write_site(find_bundles(Path(runs[0])), Path(out))
    for name, reason in written.refused.items():
        _say(printable(f"left out: {name}: {reason}"))
    index = Path(out) / "index.html"
    click.echo(str(index))
    pages, runs_shown = count(len(written.pages), "page"), count(written.records, "run")
    _say(f"{pages} of {runs_shown} written, of {count(written.machines, 'kind')} of machines.")
    if opens and (why := open_page(index)):
        _say(why)
    return 1 if written.refused else 0


def _say(text: str) -> None:
    click.echo(text, err=True)
