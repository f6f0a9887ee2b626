"""`metalmark train`: parse, train in processes of their own, print the curve."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from metalmark.cli import options as shared
from metalmark.cli.bench import BROKEN
from metalmark.cli.complete import complete_devices
from metalmark.errors import UsageError

if TYPE_CHECKING:
    from metalmark.app.results import Runs
    from metalmark.model.training import TrainingRun

UNSUPPORTED = "unsupported"


@click.command("train", cls=shared.WorkloadCommand, context_settings={**shared.WIDE, "ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="WORKLOAD", shell_complete=shared.complete_workloads)
@click.option("-f", "--framework", default=None, shell_complete=shared.complete_frameworks,
              help="torch, tensorflow, jax, mlx, a list, or all (default: the first installed).")  # fmt: skip
@click.option("-d", "--device", default=None, shell_complete=complete_devices,
              help="cpu, gpu (the framework's accelerator), any, mps, cuda, cuda:1, a list, or all (default: "
                   "any).")  # fmt: skip
@shared.settings_file_option
@click.option("-e", "--epochs", type=shared.COUNT, default=None, help="Maximum number of epochs (default: 5).")
@click.option("--target", default=None, metavar="NAME=VALUE",
              help="Stop after the epoch that reaches it: accuracy=86%, val_loss=0.3, any metric; 'f1>=0.9' says the "
                   "direction.")  # fmt: skip
@click.option("--target-accuracy", type=float, default=None, metavar="SHARE|PERCENT",
              help="The same as --target accuracy=...: 0.86 or 86.")  # fmt: skip
@click.option("--monitor", default=None, metavar="NAME[:min|max]",
              help="What makes an epoch the best (default: accuracy where there is one, else val_loss).")  # fmt: skip
@click.option("--patience", type=shared.COUNT, default=None,
              help="Stop after this many epochs without a better one by --monitor.")  # fmt: skip
@click.option("--limit-samples", type=shared.COUNT, default=None, metavar="N",
              help="Train on N samples at most, always the same ones, and validate on N.")  # fmt: skip
@click.option("--limit-steps", type=shared.COUNT, default=None, metavar="N", help="End each epoch after N steps.")
@click.option("--checkpoint-every", default=None, metavar="MINUTES|Nsteps",
              help="Write checkpoints within an epoch too: 10 (minutes) or 500steps.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Number of trainings per framework and device, with the seeds SEED, SEED + 1, ...")  # fmt: skip
@click.option("--seed", type=shared.SEED, default=0, show_default=True,
              help="Random seed of the first weights, the order of samples, augmentation and dropout.")  # fmt: skip
@shared.settings_options
@shared.world_options
@click.option("--parity", is_flag=True,
              help="Check first whether it trains the same network as the CPU in float32; mark the run.")  # fmt: skip
@click.option("--workers", type=click.IntRange(0, 64), default=None,
              help="Number of threads that make batches ahead (default: by the size of a batch).")  # fmt: skip
@click.option("-o", "--out", default=None, metavar="DIR",
              help="Folder for the record and the checkpoints (default: one in your data folder).")  # fmt: skip
@click.option("--resume", default=None, metavar="[=DIR]",
              help="Continue an interrupted training (of --out, or the last one).")  # fmt: skip
@click.option("--stall", type=shared.SECONDS, default=600.0, show_default=True,
              help="Maximum seconds without progress before a training counts as hung.")  # fmt: skip
@shared.run_options
@click.option("--json", "as_json", is_flag=True, help="Print the run with every step's loss as JSON.")
@shared.wide_option
@shared.quiet_option
@shared.store_option
def command(words: tuple[str, ...], given: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> int:
    """Train WORKLOAD, validating after each epoch, with checkpoints it can be resumed from.

    It runs in a fresh process; on the CPU the same seed gives the same weights, bit for bit.
    """
    from metalmark.app.train import not_possible, train

    names: list[str] = []
    params: dict[str, Any] = {}
    if options["resume"] is None:
        names, params = shared.split_words(words, given, verb="train")
    elif words:
        raise UsageError("--resume goes on with a stored training and takes no workload.",
                         hint="Write `metalmark train --resume=DIR`; --epochs may be raised.")  # fmt: skip
    if len(names) > 1:
        raise UsageError(f"One workload at a time, not {len(names)}.", hint=f"metalmark train {names[0]}")
    if options["out"] == "-":
        raise UsageError("--out is a folder, and - is standard output.", hint="Name a folder: --out FOLDER")
    runs = train(",".join(names), params=params, progress=not quiet, raise_interrupt=False, **options)
    if options["node_rank"]:
        shared.sayer(quiet)(shared.NOT_FIRST.format(node=options["node_rank"], nodes=options["nnodes"]))
        return 0
    trainings: list[TrainingRun] = list(runs)  # type: ignore[arg-type]
    if not_possible(trainings):
        _say_why_not(trainings)
        return 2
    _print(runs, trainings, as_json=as_json, quiet=quiet)
    if not runs.complete:
        click.echo(f"resume with: metalmark train --resume={shlex.quote(str(runs.folder))}", err=True)
        return 130
    if len(trainings) == 1:
        failure = trainings[0].failure
        return 0 if failure is None else 2 if failure.kind.value == UNSUPPORTED else 1
    broken = any(run.failure is not None and run.failure.kind.value in BROKEN for run in trainings)
    return 1 if broken or not any(run.epochs for run in trainings) else 0


def _print(runs: "Runs", trainings: "list[TrainingRun]", *, as_json: bool, quiet: bool) -> None:
    import msgspec

    from metalmark.results.derived import flags_of

    say = shared.sayer(quiet)
    alone = trainings[0] if len(trainings) == 1 else None
    if as_json:
        click.echo(msgspec.json.encode(alone or trainings))
    elif alone is None or alone.epochs:
        shared.print_runs(runs, None)
    for flag in flags_of(alone) if alone is not None else ():
        say(f"{flag.name}: {flag.evidence}.")
    if not runs.complete:
        say("Stopped; what ended is kept.")
    elif alone is not None and alone.failure is not None:
        echo_error(alone.failure.message, alone.failure.hint)
    if alone is None or alone.epochs or alone.failure is None or not runs.complete:
        say(f"Written to {runs.folder}.")


def _say_why_not(trainings: "list[TrainingRun]") -> None:
    """None of them can be trained here: each reason once, with those it is the reason for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for run in trainings:
        if run.failure is not None:
            who = f"{run.plan.framework} {run.plan.device}"
            reasons.setdefault((run.failure.message, run.failure.hint), []).append(who)
    for (message, hint), members in reasons.items():
        echo_error(f"{', '.join(dict.fromkeys(members))}: {message}" if len(trainings) > 1 else message, hint)


def echo_error(message: str, hint: str) -> None:
    click.echo(f"metalmark: {message}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)
