"""`--against published`, for `bench` and `runs show`."""

from __future__ import annotations

import sys

import click

from metalmark.report.exports import markdown
from metalmark.report.published_table import published_tables
from metalmark.report.terminal import print_table
from metalmark.results.cells import Cell


def print_published(cells: list[Cell], form: str | None) -> None:
    """After the table; JSON and CSV are for programs, which read one document, so nothing is added to them."""
    tables = published_tables(cells)
    if not tables:
        click.echo("Nothing was published for these workloads.", err=True)
    for table in tables:
        if form == "markdown":
            click.echo("\n" + markdown(table), nl=False)
        elif form is None:
            click.echo()
            print_table(table)
        else:
            click.echo("--against adds nothing to JSON and CSV.", err=True)
            return
    sys.stdout.flush()
