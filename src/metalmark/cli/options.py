"""What several verbs share: options, the words that click does not know, and how runs are printed."""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from metalmark.cli.complete import (
    complete_attention_kernels,
    complete_compile_modes,
    complete_dtypes,
    complete_environments,
    complete_frameworks,
    complete_workloads,
)
from metalmark.errors import MetalmarkError, UsageError

__all__ = ["complete_frameworks", "complete_workloads"]

if TYPE_CHECKING:
    from rich.console import Console

    from metalmark.app.results import Runs

PUBLISHED = "published"
NOT_FIRST = (
    "Done. This is machine {node} of {nodes}, counted from 0; machine 0 has the run, and nothing is stored here."
)
WIDE_KEY = "metalmark.wide"
WIDE = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
SWITCHES = ("--compile", "--graph", "--channels-last", "--fused", "--recompute", "--conv-search", "--pin")
BARE = {**dict.fromkeys(SWITCHES, "on"), "--resume": "last"}
"""Options that may stand alone, and what they mean then; with a value they need the sign: --compile=off,on."""

F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range that `nan`, which is neither smaller nor larger than its ends, is not in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


SECONDS = FiniteRange(min=0, min_open=True, max=1e9)
COUNT = click.IntRange(1, 10**12)
SEED = click.IntRange(0, 2**32 - 1)
ROWS = click.IntRange(1, 2**63 - 1)


class LeftOut:
    """Says which runs can't be read, and remembers that there were some: a script hears of it by the exit code."""

    def __init__(self) -> None:
        self.exit_code = 0

    def __call__(self, error: MetalmarkError) -> None:
        click.echo(f"left out: {error.message} {error.hint}".rstrip(), err=True)
        self.exit_code = 1


class DocumentedCommand(click.Command):
    """A command whose `--help` ends with what `help.toml` says of it. The file is read only then."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        import tomllib

        texts = tomllib.loads(Path(__file__).with_name("help.toml").read_text(encoding="utf-8"))
        paragraphs = texts.get(ctx.command_path.removeprefix("metalmark "), self.epilog or "").split("\n\n")
        self.epilog = "\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs)
        super().format_epilog(ctx, formatter)


class DocumentedGroup(DocumentedCommand, click.Group):
    command_class = DocumentedCommand


class WorkloadCommand(DocumentedCommand):
    """A command that takes a workload's parameters as options it has never heard of."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{arg}={BARE[arg]}" if arg in BARE else arg for arg in args])


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order in which the help shows them."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


store_option = click.option(
    "--store",
    metavar="FILE|URL",
    help="File or postgresql:// address that runs are kept in (default: METALMARK_STORE, or a file in your data "
    "folder).",
)
against_option = click.option(
    "--against",
    type=click.Choice([PUBLISHED]),
    help="Show the figures that others published for the same workload beside yours, with their faults.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _param, value: ctx.meta.update({WIDE_KEY: value}),
    help="Show every column, however narrow the window.",
)
form_options = options(
    click.option("--json", "form", flag_value="json", help="Print every run with its raw values as JSON."),
    click.option("--csv", "form", flag_value="csv", help="Print one line per cell as CSV."),
    click.option("--markdown", "form", flag_value="markdown", help="Print a table to paste."),
    wide_option,
)
settings_options = options(
    click.option(
        "--dtype",
        default=None,
        shell_complete=complete_dtypes,
        help="float32, tf32, bfloat16, float16 (default: float32).",
    ),
    click.option(
        "--compile",
        default=None,
        metavar="[=off,on]",
        help="torch.compile; XLA for TensorFlow; mx.compile; JAX always compiles.",
    ),
    click.option(
        "--compile-mode",
        default=None,
        metavar="MODE",
        shell_complete=complete_compile_modes,
        help="With --compile: reduce-overhead, max-autotune, max-autotune-no-cudagraphs, combo-kernels (PyTorch).",
    ),
    click.option("--channels-last", default=None, metavar="[=off,on]", help="NHWC memory layout."),
    click.option("--fused", default=None, metavar="[=off,on]", help="Fused optimiser (PyTorch)."),
    click.option(
        "--attention-kernel",
        default=None,
        metavar="KERNEL",
        shell_complete=complete_attention_kernels,
        help="Compute attention with math, flash, efficient or cudnn only (PyTorch).",
    ),
    click.option(
        "--accumulate",
        default=None,
        metavar="N",
        help="Run a batch in N equal parts and update once, which takes less memory (PyTorch).",
    ),
    click.option(
        "--recompute",
        default=None,
        metavar="[=off,on]",
        help="Compute activations of repeated blocks again instead of keeping them, which takes less memory (PyTorch).",
    ),
    click.option(
        "--conv-search",
        default=None,
        metavar="[=off,on]",
        help="Let cuDNN time its algorithms for each convolution in the first step (PyTorch on CUDA).",
    ),
    click.option(
        "--environment",
        multiple=True,
        callback=lambda _ctx, _param, words: " ".join(words) if words else None,
        metavar="NAME=VALUE",
        shell_complete=complete_environments,
        help="Environment variable, of those that are known, to set before the framework is imported.",
    ),
    click.option("--threads", default=None, metavar="N", help="Number of CPU threads."),
    click.option(
        "--data",
        default=None,
        metavar="synthetic|own|real|NAME|PATH",
        help="Samples to use (default: the workload's own, else synthetic); real downloads its data set and checks "
        "the hash; PATH is a folder of images, CSV, NPZ, Parquet or a text file.",
    ),
    click.option(
        "--target-column",
        default="",
        metavar="NAME",
        help="Column of a table, or array of an NPZ, that is to be told from the others (default: the last).",
    ),
    click.option("-p", "--param", "given", multiple=True, metavar="NAME=VALUES", help="Parameter of the workload."),
)
world_options = options(
    click.option(
        "--nproc",
        default=None,
        metavar="N",
        help="Number of processes that train together, each on its part of the batch; CPU cores are divided among them "
        "(--threads is per process).",
    ),
    click.option(
        "--scaling",
        default=None,
        metavar="strong|weak",
        help="With --nproc: --batch-size is split over the processes, or each process has it (default: strong).",
    ),
    click.option("--nnodes", type=click.IntRange(1, 1000), default=None, help="Number of machines, with --rdzv."),
    click.option("--rdzv", default=None, metavar="HOST:PORT", help="Address of the first machine, where all meet."),
    click.option(
        "--node-rank", type=click.IntRange(0, 999), default=None, metavar="N", help="Which machine this is, from 0 on."
    ),
    click.option(
        "--rdzv-timeout",
        type=SECONDS,
        default=None,
        metavar="SECONDS",
        help="Maximum seconds to wait for the other machines (default: 120).",
    ),
)
loader_options = options(
    click.option(
        "--data-from",
        default=None,
        metavar="resident|pipeline",
        help="Keep batches on the device, or use the framework's own loader.",
    ),
    click.option(
        "--workers",
        default=None,
        metavar="N",
        help="Number of the loader's processes, parallel calls or threads (default: 1).",
    ),
    click.option(
        "--prefetch",
        default=None,
        metavar="N",
        help="Number of batches that the loader makes ahead (default: 2).",
    ),
    click.option("--pin", default=None, metavar="[=off,on]", help="Pinned host memory in the loader (PyTorch)."),
    click.option(
        "--start-method",
        default=None,
        metavar="fork|spawn|forkserver",
        help="How the loader's processes are started.",
    ),
)
settings_file_option = click.option(
    "--settings",
    default=None,
    metavar="FILE",
    help="Settings that metalmark tune found, with their framework and device, instead of the options for them.",
)
cluster_options = options(
    click.option(
        "--on",
        default=None,
        metavar="ray://HOST:PORT|local-ray",
        help="Run on the nodes of a Ray cluster: ray://HOST:10001 from outside, HOST:6379 on one of its machines.",
    ),
    click.option(
        "--nodes",
        default=None,
        metavar="kinds|all|any",
        help="With --on: run each cell on one node of each kind of machine, on every node, or on any (default: kinds).",
    ),
)
run_options = options(
    click.option("--telemetry", default="5", show_default=True, metavar="off|HZ", help="Sensor readings per second."),
    click.option(
        "--track",
        default=None,
        metavar="mlflow[=URI],wandb[=MODE]",
        help="Show the run there too; what can't be sent now waits (metalmark track).",
    ),
)


def on_cluster(options: dict[str, Any]) -> str:
    """Return what a command that goes on with this one needs too."""
    return f" --on {options['on']}" if options["on"] else ""


def split_words(words: Sequence[str], given: Sequence[str], *, verb: str) -> tuple[list[str], dict[str, str]]:
    """Split what click did not know: workloads, and `--name value` or `--name=value` of theirs."""
    names: list[str] = []
    params: dict[str, str] = {}
    rest = iter(words)
    for text in rest:
        if not text.startswith("-"):
            names += [name for name in text.split(",") if name]
            continue
        flag, sign, value = text.partition("=")
        if not flag.startswith("--"):
            raise UsageError(f"There is no option {flag}.", hint=f"See metalmark {verb} --help.")
        _take(params, flag[2:], value if sign else next(rest, ""), shown=flag)
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"-p takes NAME=VALUES, not {text!r}.", hint="For example -p batch_size=16,64")
        _take(params, name, value, shown=f"-p {name}")
    if not names:
        raise UsageError(
            "Which workload?", hint=f"For example: metalmark {verb} mnist-mlp. See metalmark list workloads."
        )
    return names, params


def _take(params: dict[str, str], name: str, value: str, *, shown: str) -> None:
    key = name.replace("-", "_")
    if not value or value.startswith("--"):
        raise UsageError(f"{shown} has no value.", hint=f"Write {shown} VALUE.")
    if key in params:
        raise UsageError(f"{shown} is given twice.", hint="Give one list: --batch-size 16,64")
    params[key] = value


def is_wide() -> bool:
    """Return whether --wide was given."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.meta.get(WIDE_KEY))


def table_columns() -> int:
    """How many characters a line of text may have."""
    from metalmark.report.text.width import WIDE, window_columns

    return WIDE if is_wide() else window_columns()


def table_console() -> "Console":
    """A console that is as wide as the window, or with --wide as wide as a table needs."""
    from metalmark.report.text.terminal import wide_console

    return wide_console(wide=is_wide())


def print_notes(notes: Sequence[str]) -> None:
    """Print sentences below a table."""
    from metalmark.report.text.terminal import print_note

    for note in notes:
        print_note(note, table_console())


def print_runs(runs: "Runs", form: str | None) -> None:
    """Print runs as their tables, or in the form that was asked for."""
    if form is None:
        from metalmark.report.text.terminal import print_table

        console = table_console()
        for table in runs.tables(columns=console.width):
            print_table(table, console)
        return
    from metalmark.report.text.exports import comma_separated, json_text, markdown

    if form == "json":
        print_data(json_text(runs))
    elif form == "csv":
        if any(run.header.kind != "bench" for run in runs):
            raise UsageError("--csv has one line per cell of a bench.", hint="metalmark report --format csv RUNS")
        print_data(comma_separated(runs.cells))
    else:
        click.echo("\n".join(markdown(table) for table in runs.tables()), nl=False)


def print_data(text: str) -> None:
    """Print what programs read: in UTF-8, whatever the terminal's encoding."""
    click.echo(text.encode(errors="backslashreplace"), nl=False)


def print_published(runs: "Runs", form: str | None) -> None:
    """Print published figures after the table. JSON and CSV are one document for a program, so nothing is added."""
    from metalmark.report.text.exports import markdown
    from metalmark.report.text.tables import published_tables
    from metalmark.report.text.terminal import print_table

    tables = published_tables(runs.cells)
    if not tables:
        click.echo("Nothing was published for these workloads.", err=True)
    for table in tables:
        if form == "markdown":
            click.echo("\n" + markdown(table), nl=False)
        elif form is None:
            click.echo()
            print_table(table, table_console())
        else:
            click.echo("--against adds nothing to JSON and CSV.", err=True)
            return
    sys.stdout.flush()


def sayer(quiet: bool) -> Callable[[str], None]:
    return lambda text: None if quiet else click.echo(text, err=True)
