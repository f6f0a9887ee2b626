"""`metalmark completion`."""

import click

from metalmark.cli.options import DocumentedCommand


@click.command("completion", cls=DocumentedCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that lets SHELL complete verbs, options, workloads, frameworks, devices, dtypes and runs."""
    from click.shell_completion import get_completion_class

    from metalmark.cli import group

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(group, {}, "metalmark", "_METALMARK_COMPLETE").source())
