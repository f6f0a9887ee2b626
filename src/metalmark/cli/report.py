"""`metalmark report`: let me look instead of read, in one file that needs no other."""

from __future__ import annotations

import click

from metalmark.cli.options import against_option, store_option

EPILOG = """\b
RUNS are each a record's id (its whole cell is meant), a sweep's id, `last`, a name or a tag, a training (its id,
name or folder), a watched loop (its id or name), or a file of `runs export`. Without any: the last sweep.

\b
Examples:
  metalmark report
  metalmark report main last -o compare.html --open
  metalmark report last --against published
  metalmark report run1 run2 -o trainings.html
  metalmark report last --format markdown
  metalmark report last -o blocks.parquet
  metalmark report --site public bundles/

\b
Exit code: 0 written; 1 a site without the bundles that were refused; 2 bad input, or an extra that is not installed.
"""


@click.command("report", epilog=EPILOG)
@click.argument("runs", nargs=-1)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write there, whole or not at all; - is stdout. Default: report.html, report.parquet, else stdout.",
)
@click.option("--format", "form", type=click.Choice(["html", "markdown", "csv", "json", "parquet"]), default=None,
              help="Default: by the file's ending, else html.")  # fmt: skip
@click.option("--site", metavar="DIR", default=None,
              help="RUNS is a folder of bundles: write a static site of them there, with leaderboards.")  # fmt: skip
@against_option
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser, where there is a desktop.")
@store_option
def command(runs: tuple[str, ...], output: str | None, form: str | None, against: str | None, opens: bool,
            store: str | None, site: str | None) -> int:  # fmt: skip
    """Write a report of RUNS: the machine, what ran and what could not, tables, charts, training curves.

    The page is one file: it loads nothing, runs without script, follows light and dark, and prints.
    """
    if site is not None:
        from metalmark.cli.siting import make_site

        return make_site(runs, site, alone=output is None and form is None and not against, opens=opens)
    from metalmark.cli import reporting
    from metalmark.store.place import store_path

    chosen = reporting.form_of(form, output)
    content = reporting.gather(runs, store_path(store), published=bool(against))
    written = reporting.write(content, chosen, output)
    if opens:
        reporting.open_page(written, chosen)
    return 0
