"""`metalmark env`: the shell lines that suit this machine."""

import click

from metalmark.cli.options import DocumentedCommand


@click.command("env", cls=DocumentedCommand)
@click.option("--shell", type=click.Choice(["bash", "zsh", "fish"]), default="bash", show_default=True,
              help="Whose syntax.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(shell: str, as_json: bool) -> None:
    """Print what to set in the shell before you train on this machine, and why.

    Limits, thread counts and variables, as lines to evaluate. Nothing is changed by printing them.
    """
    from metalmark.doctor.collect import collect_quickly
    from metalmark.doctor.environment import advise
    from metalmark.report.text.doctor_page import shell_lines

    steps = advise(collect_quickly())
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(steps), indent=2).decode())
    else:
        click.echo(shell_lines(steps, shell))
