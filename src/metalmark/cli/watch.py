"""`metalmark watch`: a script of one's own, unchanged, and what its steps were made of."""

import click

from metalmark.cli.options import DocumentedCommand, store_option


@click.command(
    "watch",
    cls=DocumentedCommand,
    # From the command's first word on, nothing is an option of ours.
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.argument("words", nargs=-1, metavar="-- COMMAND", type=click.UNPROCESSED)
@click.option("--name", default=None, help="Name of the run (default: the script's).")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing beside what the script prints.")
@store_option
def command(words: tuple[str, ...], name: str | None, quiet: bool, store: str | None) -> int:
    """Run COMMAND, for example `python train.py`, and keep a run of it: its steps, what they waited for, its losses.

    Nothing in the script is changed.
    """
    from metalmark.app.watch import summary, watch

    code, run = watch(words, name=name, store=store)
    if not quiet:
        for line in summary(run):
            click.echo(f"metalmark: {line}", err=True)
    return code
