"""`metalmark schema`."""

import click

from metalmark.cli.options import DocumentedCommand


@click.command("schema", cls=DocumentedCommand)
def command() -> None:
    """Print the JSON schema of a run, as `runs export` and `bench --json` write it."""
    import json

    from metalmark.model.codec import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
