"""`metalmark parity`: does this device, dtype or compiler train the same network as the reference does?"""

from typing import TYPE_CHECKING, Any

import click

from metalmark.cli import complete
from metalmark.cli import options as shared
from metalmark.cli.train import echo_error

if TYPE_CHECKING:
    from metalmark.app.results import Runs

AGREES, DIFFERS = "agrees", "differs"


@click.command(
    "parity", cls=shared.WorkloadCommand,
    context_settings={**shared.WIDE, "ignore_unknown_options": True, "allow_interspersed_args": True},
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="WORKLOAD", type=click.UNPROCESSED, shell_complete=shared.complete_workloads)
@click.option("-f", "--framework", default=None, shell_complete=shared.complete_frameworks,
              help="torch, tensorflow, jax, mlx (default: the first that is installed).")  # fmt: skip
@click.option("-d", "--device", default="any", show_default=True, shell_complete=complete.complete_devices,
              help="Device to check: gpu, cpu, mps, cuda; any is the framework's own choice.")  # fmt: skip
@click.option("--reference", default="cpu", show_default=True, metavar="DEVICE|FRAMEWORK[:DEVICE]",
              help="What to compare with, in float32 and eager.")  # fmt: skip
@click.option("-m", "--mode", default="training", show_default=True, shell_complete=complete.complete_modes,
              help="training, or inference (outputs only).")  # fmt: skip
@shared.settings_options
@click.option("--graph", default=None, metavar="[=off,on]", help="Run the whole step as one CUDA graph (PyTorch).")
@click.option("--steps", type=shared.COUNT, default=5, show_default=True,
              help="Training steps after which parameters are compared, besides after the first.")  # fmt: skip
@click.option("--draws", type=shared.COUNT, default=3, show_default=True,
              help="How often the reference is moved by a rounding error, to measure the noise.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=0), default=5000, show_default=True,
              help="How often the same step is repeated at most, in 5 s; 0: not at all.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=0), default=3, show_default=True,
              help="Number of short trainings per side; 0: none.")  # fmt: skip
@click.option("--seed", type=shared.SEED, default=0, show_default=True, help="Random seed.")
@click.option("--diagnose/--no-diagnose", default=True, show_default=True,
              help="After a difference: find the batch size and the settings that switch it on.")  # fmt: skip
@click.option("--repro", default=None, metavar="FILE.py",
              help="After a difference: write a script that shows it with the framework alone.")  # fmt: skip
@click.option("--timeout", type=shared.SECONDS, default=3600.0, show_default=True, help="Maximum seconds per side.")
@click.option("--stall", type=shared.SECONDS, default=600.0, show_default=True,
              help="Maximum seconds without progress before a side counts as hung.")  # fmt: skip
@shared.cluster_options
@shared.json_option
@shared.wide_option
@shared.quiet_option
@shared.store_option
def command(words: tuple[str, ...], given: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> int:
    """Check whether WORKLOAD, run as the options say, trains the same network as the reference does.

    Both sides have the same weights, data and order. Outputs of every layer, loss, gradients, updates and a short
    training are compared, each with the noise that the reference itself has.
    """
    from metalmark.app.parity import parity

    names, params = shared.split_words(words, given, verb="parity")
    runs = parity(",".join(names), params=dict[str, Any](params), progress=not quiet, raise_interrupt=False, **options)
    say = shared.sayer(quiet)
    if as_json or any(hasattr(run.outcome, "compared") for run in runs):  # type: ignore[union-attr]  # all are checks
        shared.print_runs(runs, "json" if as_json else None)
    if not as_json:
        shared.print_notes(runs.notes)
    if runs.complete:
        _say_why_not(runs)
    say(f"Stored in {runs.store} as {', '.join(runs.ids)}.")
    if not runs.complete:
        say("Stopped; what was compared is stored.")
        return 130
    return exit_code(runs)


def _say_why_not(runs: "Runs") -> None:
    """Say of each check that could not be made why: each reason once, with those it is the reason for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        failure = run.outcome  # type: ignore[union-attr]  # all are checks
        if hasattr(failure, "message"):
            reasons.setdefault((failure.message, failure.hint), []).append(run.plan.label)  # type: ignore[union-attr]
    for (message, hint), labels in reasons.items():
        echo_error(message if len(runs) == 1 else f"{', '.join(labels)}: {message}", hint)


def exit_code(runs: "Runs") -> int:
    """Return 1 if a check differs, else 2 if one could not be made, else 0."""
    verdicts: set[str] = {run.verdict.value for run in runs}  # type: ignore[union-attr]  # all are checks
    return 1 if DIFFERS in verdicts else 0 if verdicts == {AGREES} else 2
