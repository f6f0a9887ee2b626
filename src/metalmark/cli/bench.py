"""`metalmark bench`: parses the lists, runs the sweep, prints the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from metalmark.cli.options import against_option, store_option
from metalmark.cli.tracking import track_option
from metalmark.errors import UsageError

SWITCHES = ("--compile", "--graph", "--channels-last", "--fused")
BARE = {**dict.fromkeys((*SWITCHES, "--pin"), "on"), "--resume": "last"}
"""Options that may stand alone, and what they mean then; with a value they need the sign: --compile=off,on."""

EPILOG = """\b
Lists and ranges make the sweep, on any option: --batch-size 16,64  --batch-size 8-64*2  --compile=off,on
Any parameter of a workload is an option (metalmark list workloads), or -p name=1,2.

\b
Examples:
  metalmark bench mnist-mlp
  metalmark bench mnist-mlp,conv256 --framework torch,mlx --device all --repeat 3
  metalmark bench conv256 --framework torch --device gpu --dtype float32,bfloat16 --compile=off,on
  metalmark bench examples/my_net.py:my_net --batch-size 16-256*2 --markdown
  metalmark bench --resume

\b
Exit code: 0 measured; 1 a cell crashed, timed out or computed wrongly, none completed, or,
with --strict, one is flagged; 2 bad input; 130 stopped by Ctrl-C.
"""


class BenchCommand(click.Command):
    """Takes a workload's parameters as flags it has never heard of."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{arg}={BARE[arg]}" if arg in BARE else arg for arg in args])


def complete_workloads(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.workloads.catalog import shown_names

    return [name for name in shown_names() if name.startswith(incomplete)]


def complete_frameworks(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.backends.catalog import visible

    return [name for name in (*(f.name for f in visible()), "all") if name.startswith(incomplete)]


@click.command(
    "bench",
    cls=BenchCommand,
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="WORKLOAD...", shell_complete=complete_workloads)
@click.option("-f", "--framework", default="all", show_default=True, shell_complete=complete_frameworks,
              help="torch, tensorflow, jax, mlx; all: those installed.")  # fmt: skip
@click.option("-d", "--device", default="all", show_default=True,
              help="cpu, gpu (the framework's accelerator), any, mps, cuda, cuda:1; all: those present.")  # fmt: skip
@click.option("-m", "--mode", default="training", show_default=True, help="training, inference.")
@click.option("--dtype", default="float32", show_default=True, help="float32, tf32, bfloat16, float16.")
@click.option("--compile", "compile_", default="off", metavar="[=off,on]",
              help="torch.compile; XLA for TensorFlow; mx.compile; JAX always compiles.")  # fmt: skip
@click.option("--graph", default="off", metavar="[=off,on]", help="The whole step as one CUDA graph (PyTorch).")
@click.option("--channels-last", default="off", metavar="[=off,on]", help="NHWC memory layout.")
@click.option("--fused", default="off", metavar="[=off,on]", help="Fused optimiser (PyTorch).")
@click.option("--threads", default=None, help="CPU threads.")
@click.option("--data", default="synthetic", show_default=True, metavar="synthetic|real|NAME|PATH",
              help="What batches are made of; real downloads the workload's data set, hash-checked.")  # fmt: skip
@click.option("--data-from", "feed", default=None, metavar="resident|pipeline",
              help="Batches on the device, or the framework's own loader (default: the workload's).")  # fmt: skip
@click.option("--workers", default="1", show_default=True, help="Of the loader: processes, calls or threads.")
@click.option("--prefetch", default="2", show_default=True, help="Batches the loader makes ahead.")
@click.option("--pin", default="off", metavar="[=off,on]", help="Pinned host memory in the loader (PyTorch).")
@click.option("--start-method", default="", metavar="fork|spawn|forkserver", help="Of the loader's processes.")
@click.option("-p", "--param", "given", multiple=True, metavar="NAME=VALUES", help="A parameter of the workload.")
@click.option("--steps", type=click.IntRange(min=1), help="Measure exactly so many steps.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
              help="Without --steps: at least so long, and 10 blocks.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Processes a cell, interleaved across cells.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of parameters and batches.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=3600.0, show_default=True,
              help="Seconds a cell may take in all.")  # fmt: skip
@click.option("--stall", type=click.FloatRange(min=0, min_open=True), default=300.0, show_default=True,
              help="Seconds a cell may stay silent before it counts as hung.")  # fmt: skip
@click.option("--telemetry", default="5", show_default=True, metavar="off|HZ", help="Samples a second.")
@click.option("--cooldown", default=None, metavar="SECONDS|auto",
              help="Between cells, wait until it is as cool as at first, so long at most.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit code 1 when a measured cell is flagged.")
@click.option("--watch", is_flag=True, help="Throughput, clocks, watts, heat and memory as they go, on stderr.")
@click.option("--resume", default=None, metavar="[=SWEEP]", help="Go on with an interrupted sweep (the last one).")
@track_option
@click.option("--json", "form", flag_value="json", help="Records with every block, on stdout.")
@click.option("--csv", "form", flag_value="csv", help="A line a cell, on stdout.")
@click.option("--markdown", "form", flag_value="markdown", help="A table to paste, on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@against_option
@store_option
def command(words: tuple[str, ...], store: str | None, resume: str | None, form: str | None, quiet: bool,
            **options: Any) -> int:  # fmt: skip
    """Measure WORKLOADs on every framework and device asked for.

    Each cell runs in a fresh process: first step apart, warm-up until steady, then blocks of steps between
    synchronisations of the device, with proof that the work was done. Every cell is stored when it ends.
    """
    from metalmark.cli.benching import Bench

    bench = Bench(store=store, quiet=quiet, watch=options["watch"], tracking=options["track"])
    if resume is not None:
        if words:
            raise UsageError("--resume goes on with a stored sweep and takes no workloads.",
                             hint="Write `metalmark bench --resume`, or --resume=SWEEP.")  # fmt: skip
        return bench.run(
            bench.stored(resume), notes=[], form=form, against=options["against"], strict=options["strict"]
        )
    names, params = split_words(words, options["given"])
    sweep, notes = bench.new(names, params, options)
    return bench.run(sweep, notes=notes, form=form, against=options["against"], strict=options["strict"])


def split_words(words: Sequence[str], given: Sequence[str], *, verb: str = "bench") -> tuple[list[str], dict[str, str]]:
    """What click did not know: workloads, and `--name value` or `--name=value` of theirs."""
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
        if not sign:
            value = next(rest, "")
        _take(params, flag[2:], value, shown=flag)
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


def option_flags() -> list[str]:
    return [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
