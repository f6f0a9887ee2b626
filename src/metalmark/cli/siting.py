"""What `report --site` does: a folder of bundles to a folder of pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from metalmark.cli.reporting import open_page
from metalmark.errors import UsageError
from metalmark.report.site import find_bundles, write_site
from metalmark.scrub import printable


def make_site(words: Sequence[str], out: str, *, alone: bool, opens: bool) -> int:
    """1 when a file of the folder is not in it: whoever publishes by a script has to hear of that."""
    if len(words) != 1:
        raise UsageError("--site takes one folder of bundles.", hint="metalmark report --site DIR FOLDER")
    if not alone:
        raise UsageError("--site writes pages and nothing else.", hint="Leave -o, --format and --against out.")
    found = write_site(find_bundles(Path(words[0])), Path(out))
    for name, reason in found.refused.items():
        click.echo(printable(f"left out: {name}: {reason}"), err=True)
    index = Path(out) / "index.html"
    click.echo(str(index))
    click.echo(
        f"{len(found.pages)} pages of {found.records} records written; kinds of machines: {found.machines}.", err=True
    )
    if opens:
        open_page(index, "html")
    return 1 if found.refused else 0
