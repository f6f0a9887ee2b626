"""`metalmark track`: what waits for a tracker, and sending it."""

import click

from metalmark.cli.complete import complete_waiting
from metalmark.cli.options import DocumentedGroup, table_columns, wide_option


@click.group("track", cls=DocumentedGroup)
def command() -> None:
    """Show and send what waits for MLflow and W&B."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@wide_option
def list_(as_json: bool) -> None:
    """List what has not been sent, where to, and why not."""
    from metalmark.track.queue import queue_root
    from metalmark.track.waiting import waiting

    runs = waiting()
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode())
    elif runs:
        from metalmark.report.text.run_list import fitted_columns
        from metalmark.report.text.width import WIDE, wrapped
        from metalmark.scrub import printable

        width = table_columns()
        narrow = width < WIDE
        rows = [
            (run.run, run.what, f"{run.tracker} ({run.place})", str(run.events), str(run.sent), str(run.tries),
             f"{run.state}: {run.why}" if run.why and not narrow else run.state)
            for run in runs
        ]  # fmt: skip
        headers = ("run", "what", "to", "events", "sent", "tries", "state")
        shown = [tuple(printable(value) for value in row) for row in rows]
        drop, numeric = ("tries", "sent", "events", "what"), {"events", "sent", "tries"}
        text, missing = fitted_columns(headers, shown, numeric, drop=drop, width=width)
        click.echo(text)
        for run in runs if narrow else ():
            if run.why:
                click.echo(wrapped(printable(f"{run.run}: {run.why}"), width))
        if missing:
            click.echo(missing, err=True)
    else:
        click.echo(f"Nothing waits in {queue_root()}.", err=True)


@command.command("sync")  # fmt: skip
@click.argument("runs", nargs=-1, shell_complete=complete_waiting)
@click.option("--to", "to", type=click.Choice(["mlflow", "wandb"]), help="Send only what is for that tracker.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
def sync(runs: tuple[str, ...], to: str | None, quiet: bool) -> int:
    """Send what waits (default: of all runs). A run already begun there is continued; nothing is sent twice."""
    from metalmark.track.launch import say_nothing, say_on_stderr
    from metalmark.track.waiting import sync

    return 0 if sync(runs, to=to, say=say_nothing if quiet else say_on_stderr) else 1


@command.command("delete")
@click.argument("runs", nargs=-1, required=True, shell_complete=complete_waiting)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(runs: tuple[str, ...], yes: bool) -> None:
    """Forget what waits of RUNS. The runs themselves stay: metalmark runs push can queue them again."""
    import sys

    from metalmark.errors import UsageError
    from metalmark.report.text.units import count
    from metalmark.track.waiting import matching_queues

    queues = matching_queues(runs)
    what = count(len(queues), "queue")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"This would forget {what}.", hint="Add --yes to do it without being asked.")
        click.confirm(f"Forget {what}?", abort=True, err=True)
    for queue in queues:
        queue.remove()
    click.echo(f"{what} deleted.", err=True)
