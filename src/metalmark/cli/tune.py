"""`metalmark tune`: find the fastest settings that still train the same network."""

from typing import Any

import click

from metalmark.cli import complete
from metalmark.cli import options as shared
from metalmark.cli.train import echo_error


@click.command(
    "tune", cls=shared.WorkloadCommand,
    context_settings={**shared.WIDE, "ignore_unknown_options": True, "allow_interspersed_args": True},
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="WORKLOAD", type=click.UNPROCESSED,
                shell_complete=shared.complete_workloads)  # fmt: skip
@click.option("-f", "--framework", default=None, shell_complete=shared.complete_frameworks,
              help="torch, tensorflow, jax, mlx, a list, or all: then the fastest of them is named "
              "(default: the first that is installed).")  # fmt: skip
@click.option("-d", "--device", default="any", show_default=True, shell_complete=complete.complete_devices,
              help="cpu, gpu (the framework's accelerator), any, mps, cuda.")  # fmt: skip
@click.option("--for", "goal", default="throughput", show_default=True,
              help="What to improve: throughput, latency (the batch size stays), energy or memory.")  # fmt: skip
@click.option("--time", "time", default="10m", show_default=True, metavar="DURATION",
              help="How long the search may take: 90s, 10m, 1h.")  # fmt: skip
@click.option("-m", "--mode", default="training", show_default=True, shell_complete=complete.complete_modes,
              help="training, inference.")  # fmt: skip
@click.option("--keep", default="", metavar="NAMES",
              help="What stays as it is: dtype, compile, batch_size, threads, workers and others.")  # fmt: skip
@click.option("--steps-planned", type=shared.COUNT, default=None,
              help="Spread the time of the first step, which compiles, over so many steps.")  # fmt: skip
@click.option("--memory-limit", default=None, metavar="SIZE",
              help="Most memory that settings may need (default: 85% of the device's for a larger batch).")  # fmt: skip
@click.option("--gate/--no-gate", default=True,
              help="Check that the best settings train the same network (on by default).")  # fmt: skip
@click.option("--repeat", type=click.IntRange(2, 1000), default=3, show_default=True,
              help="Number of processes per finalist, in turn with the baseline; where that many can't tell whether "
                   "it gains, up to three times as many.")  # fmt: skip
@click.option("--seconds", type=shared.SECONDS, default=3.0, show_default=True,
              help="How long each process of a finalist is measured; those of the search a third of it.")  # fmt: skip
@click.option("-o", "--output", default=None, metavar="FILE",
              help="Write the best settings there, for `metalmark bench --settings FILE` and `train`.")  # fmt: skip
@click.option("--snippet/--no-snippet", "shows_snippet", default=True,
              help="Print what to write in a training loop of your own (on by default).")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=None, help="Number of CPU threads of the baseline.")
@click.option("--data", default=None, metavar="synthetic|own|real|NAME|PATH",
              help="Samples to use (default: the workload's own, else synthetic).")  # fmt: skip
@click.option("--target-column", default="", metavar="NAME", help="Column of a table that is to be told.")
@click.option("-p", "--param", "given", multiple=True, metavar="NAME=VALUE", help="Parameter of the workload.")
@shared.loader_options
@click.option("--seed", type=shared.SEED, default=0, show_default=True, help="Random seed.")
@click.option("--stall", type=shared.SECONDS, default=600.0, show_default=True,
              help="Maximum seconds without progress before a trial counts as hung.")  # fmt: skip
@click.option(
    "--resume", default=None, metavar="[=ID]", help="Go on with a search that was stopped (default: the last)."
)
@shared.cluster_options
@click.option("--track", default=None, metavar="mlflow[=URI],wandb[=MODE]", help="Show the runs there too.")
@shared.json_option
@shared.wide_option
@shared.quiet_option
@shared.store_option
def command(
    words: tuple[str, ...], given: tuple[str, ...], as_json: bool, quiet: bool, shows_snippet: bool, **options: Any
) -> int:
    """Find the settings with which WORKLOAD trains fastest, and prove that it still trains the same network.

    The result is a ladder: the baseline (float32, eager), and a rung for each setting that helped, with what it gained.
    """
    from metalmark.app.tune import snippet_of, tune, untuned

    workload, params = None, dict[str, str]()
    if words or given or options["resume"] is None:
        names, params = shared.split_words(words, given, verb="tune")
        workload = ",".join(names)
    runs = tune(workload, params=dict[str, Any](params), progress=not quiet, raise_interrupt=False, **options)
    failures = untuned(list(runs))
    say = shared.sayer(quiet)
    if as_json or len(failures) < len(runs):
        shared.print_runs(runs, "json" if as_json else None)
    if not as_json:
        shared.print_notes(runs.notes)
        for run in runs if shows_snippet else ():
            text = snippet_of(run)  # type: ignore[arg-type]  # every run of it is a tuning
            if text:
                click.echo(f"\nIn a loop of your own ({run.header.label}):\n\n{text}")
    for label, failure in failures.items():
        echo_error(failure.message if len(runs) == 1 else f"{label}: {failure.message}", failure.hint)
    say(f"Stored in {runs.store} as {', '.join(runs.ids)}.")
    if not runs.complete:
        sweep = runs.sweep.id if runs.sweep is not None else "last"
        more = shared.on_cluster(options)
        say(f"Stopped; what was tried is stored. Go on with: metalmark tune --resume={sweep}{more}")
        return 130
    return 1 if failures else 0
