"""`metalmark list`: workloads, frameworks, devices."""

from typing import Any

import click

from metalmark.cli.options import DocumentedCommand


@click.command("list", cls=DocumentedCommand)
@click.argument("what", type=click.Choice(["workloads", "frameworks", "devices"]))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(what: str, as_json: bool) -> None:
    """List WHAT this installation knows and this machine has."""
    from metalmark.report.text.listing import LISTS, print_list

    if what == "devices" and not as_json:
        click.echo("Asking each framework, in a process of its own ...", err=True)
    entries: list[dict[str, Any]] = LISTS[what]()
    if as_json:
        import json

        click.echo(json.dumps(entries, indent=2))
    else:
        print_list(what, entries)
