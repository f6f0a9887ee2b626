"""The command line: one file per verb, imported only when that verb is used."""

import errno
import os
import sys
from importlib import import_module

import click

import metalmark
from metalmark.cli.options import DocumentedGroup
from metalmark.cli.plain import degrade
from metalmark.cli.signals import orderly_end
from metalmark.errors import MetalmarkError, did_you_mean

VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("doctor", "Say what this machine can run, what is broken, and what to type."),
    "bench": ("bench", "Measure how fast each framework and device runs a workload."),
    "train": ("train", "Train a workload to its accuracy, with curves and checkpoints."),
    "parity": ("parity", "Say whether a device, dtype or compiler trains the same network as the CPU."),
    "tune": ("tune", "Find the fastest settings that still train the same network."),
    "explain": ("explain", "Say what a step waits for, and which change would make it faster."),
    "watch": ("watch", "Run your own script unchanged, and keep what its steps were made of."),
    "compare": ("compare", "Say whether B is better than A, or whether it is noise."),
    "serve": ("serve", "Show runs, comparisons and live progress in a browser."),
    "report": ("report", "Write a page of runs: the answer, tables and charts."),
    "runs": ("runs", "List, show, name, export, import, sync, push and delete runs."),
    "track": ("track", "Show and send what is waiting for MLflow and W&B."),
    "ceiling": ("ceiling", "Measure the peak arithmetic and memory rates of each framework and device."),
    "list": ("list", "List workloads, frameworks or devices."),
    "env": ("env", "Print the shell settings to use on this machine, and why."),
    "schema": ("schema", "Print the JSON schema of a run."),
    "completion": ("completion", "Print a completion script for your shell."),
}

STOPPED = 130
"""By Ctrl-C, as shells count it."""
UNWRITABLE = 74
"""EX_IOERR of <sysexits.h>: the output could not be written, as a rule for a full disk."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
ENVIRONMENT = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENXIO,
}  # fmt: skip
"""What the system refuses because of how it is set up, which nobody mends in our source."""


class LazyGroup(DocumentedGroup):
    """Knows its verbs by name and one line of help; imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module, _ = VERBS[cmd_name]
        return import_module(f"metalmark.cli.{module}").command  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = did_you_mean(args[0], VERBS)
            raise click.UsageError(f"There is no command {args[0]!r}{near} Commands: {', '.join(VERBS)}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(metalmark.__version__, prog_name="metalmark")
def group() -> None:
    """Metalmark: how fast, how correctly and how cheaply this machine trains a network."""


def main() -> None:
    """Errors meant for the user become a message and an exit code; nothing else is hidden."""
    degrade(sys.stdout, sys.stderr)
    with orderly_end():
        sys.exit(_exit_code())


def _exit_code() -> str | int | None:
    try:
        code = _with_unsent(_run())
        # What is still in the buffer would otherwise fail when the interpreter ends, where nobody can explain it.
        _flush_output()
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing to say, and nobody to say it to.
        _output_is_lost()
        code = 0
    except OSError as error:
        if _output_is_lost() or error.errno in FULL:
            code = UNWRITABLE
            what = error.filename or "the output"
            hint = "Free some space, or send it somewhere else."
            _say(f"metalmark: {what} could not be written: {error.strerror}. {hint}")
        elif "temporary directory" in str(error.strerror):
            code = 2
            _say("metalmark: There is no folder for temporary files.\n  Name one that you may write: TMPDIR=FOLDER")
        elif error.errno in ENVIRONMENT and error.filename is not None:
            code = 2
            _say(f"metalmark: {_named(error.filename)} can't be used: {error.strerror}.")
            _say("  Check its path and its rights.")
        else:
            raise
    return code


def _named(file: object) -> str:
    return os.fsdecode(file) if isinstance(file, bytes) else str(file)


def _run() -> str | int | None:
    try:
        code = group.main(prog_name="metalmark", standalone_mode=False)
    except SystemExit as ended:  # click ends a completion so
        return ended.code
    except MetalmarkError as error:
        from metalmark.scrub import printable  # here, since only errors need it

        click.echo(printable(f"metalmark: {error.message}"), err=True)
        if error.hint:
            click.echo(printable(f"  {error.hint}").replace("\n", "\n  "), err=True)
        return error.exit_code
    except click.exceptions.Abort:
        return STOPPED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        click.echo("metalmark: stopped.", err=True)
        return STOPPED
    return code if isinstance(code, int) else 0


def _with_unsent(code: str | int | None) -> str | int | None:
    """Say which runs a server did not take, and don't call it a success."""
    spool = sys.modules.get("metalmark.store.spool")  # not imported: then no store was opened
    unsent = spool.unsent() if spool is not None else []
    for sentence in unsent:
        click.echo(f"metalmark: {sentence}", err=True)
    return 1 if unsent and not code else code


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _output_is_lost() -> bool:
    """Whether one of our own streams takes nothing any more: it is then pointed at nothing, so that what is left in its
    buffer does not fail once more when the interpreter ends."""
    lost = False
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            lost = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return lost


def _say(message: str) -> None:
    try:
        click.echo(message, err=True)
    except OSError:
        # Standard error is on the same full disk: the exit code still tells.
        _output_is_lost()
