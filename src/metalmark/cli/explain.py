"""`metalmark explain`: what does a step wait for, and what would make it faster?"""

from typing import TYPE_CHECKING, Any

import click

from metalmark.cli import complete
from metalmark.cli import options as shared
from metalmark.cli.train import echo_error
from metalmark.errors import UsageError

if TYPE_CHECKING:
    from metalmark.app.results import Runs

SCRIPT = "metalmark.script"
"""Where the context keeps the command that stands after `--`."""


class SubjectCommand(shared.WorkloadCommand):
    """A command whose words after `--` are a command of the user's own, which no option of ours may be read out of."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[SCRIPT] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)


@click.command(
    "explain", cls=SubjectCommand,
    context_settings={**shared.WIDE, "ignore_unknown_options": True, "allow_interspersed_args": True},
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="WORKLOAD|RUN|-- COMMAND", type=click.UNPROCESSED,
                shell_complete=complete.complete_subjects)  # fmt: skip
@click.option("-f", "--framework", default=None, shell_complete=shared.complete_frameworks,
              help="torch, tensorflow, jax, mlx (default: the first that is installed).")  # fmt: skip
@click.option("-d", "--device", default="any", show_default=True, shell_complete=complete.complete_devices,
              help="cpu, gpu (the framework's accelerator), any, mps, cuda, a list, or all.")  # fmt: skip
@click.option("-m", "--mode", default="training", show_default=True, shell_complete=complete.complete_modes,
              help="training, inference.")  # fmt: skip
@shared.settings_options
@click.option("--graph", default=None, metavar="[=off,on]", help="Run the whole step as one CUDA graph (PyTorch).")
@shared.loader_options
@click.option("--seconds", type=shared.SECONDS, default=0.6, show_default=True,
              help="How long each experiment is timed.")  # fmt: skip
@click.option("--verify", is_flag=True, help="Make each change that is proposed and measure what it gains.")
@click.option("--repeat", type=click.IntRange(2, 1000), default=3, show_default=True,
              help="With --verify: number of processes per change, in turn with the baseline.")  # fmt: skip
@click.option("--trace", default=None, metavar="FILE", help="Write a trace of some steps, which Perfetto opens.")
@click.option("--seed", type=shared.SEED, default=0, show_default=True, help="Random seed.")
@click.option("--timeout", type=shared.SECONDS, default=3600.0, show_default=True,
              help="Maximum seconds per explanation.")  # fmt: skip
@click.option("--stall", type=shared.SECONDS, default=600.0, show_default=True,
              help="Maximum seconds without progress before it counts as hung.")  # fmt: skip
@shared.json_option
@shared.wide_option
@shared.quiet_option
@shared.store_option
def command(words: tuple[str, ...], given: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> int:
    """Say what a step of WORKLOAD waits for, with the share of each cause, and which changes would make it faster.

    A stored RUN is explained from what it holds; a COMMAND of your own is run, watched and explained.
    """
    from metalmark.app.explain import explain, explain_script, unexplained

    script = click.get_current_context().meta.get(SCRIPT)
    if script is not None:
        if words or given:
            raise UsageError("What stands after -- is run as it is; nothing else may be named before it.",
                             hint="Write metalmark explain -- python train.py")  # fmt: skip
        code, watched, runs = explain_script(script, progress=not quiet, **options)
        if runs.ids:
            _print(runs, as_json=as_json, quiet=quiet)
        for note in watched.notes:
            shared.sayer(quiet)(f"metalmark: {note}")
        return code
    names, params = shared.split_words(words, given, verb="explain")
    runs = explain(",".join(names), params=dict[str, Any](params), progress=not quiet, raise_interrupt=False, **options)
    _print(runs, as_json=as_json, quiet=quiet)
    if not runs.complete:
        shared.sayer(quiet)("Stopped; what was explained is stored.")
        return 130
    return 1 if unexplained(runs) else 0


def _print(runs: "Runs", *, as_json: bool, quiet: bool) -> None:
    """Print explanations on stdout, and why others could not be made on stderr."""
    from metalmark.app.explain import unexplained

    failures = unexplained(runs)
    if as_json or len(failures) < len(runs):
        shared.print_runs(runs, "json" if as_json else None)
    if not as_json:
        shared.print_notes(runs.notes)
    for label, failure in failures.items() if runs.complete else ():
        echo_error(failure.message if len(runs) == 1 else f"{label}: {failure.message}", failure.hint)
    if runs.ids:
        shared.sayer(quiet)(f"Stored in {runs.store} as {', '.join(runs.ids)}.")
