"""`metalmark bench`: parse, measure, print the table."""

from typing import TYPE_CHECKING, Any

import click

from metalmark.cli import complete
from metalmark.cli import options as shared
from metalmark.errors import UsageError

if TYPE_CHECKING:
    from metalmark.app.results import Runs
    from metalmark.results.cells import Cell

BROKEN = {"crashed", "timed out", "wrong result"}


@click.command("bench", cls=shared.WorkloadCommand, context_settings={**shared.WIDE, "ignore_unknown_options": True})
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="WORKLOAD...", shell_complete=shared.complete_workloads
)
@click.option("-f", "--framework", default=None, shell_complete=shared.complete_frameworks,
              help="torch, tensorflow, jax, mlx, or all: those installed (default: all).")  # fmt: skip
@click.option("-d", "--device", default=None, shell_complete=complete.complete_devices,
              help="cpu, gpu (the framework's accelerator), any, mps, cuda, cuda:1, or all: those present "
                   "(default: all).")  # fmt: skip
@click.option("-m", "--mode", default=None, shell_complete=complete.complete_modes,
              help="training, inference (default: training).")  # fmt: skip
@shared.settings_file_option
@shared.settings_options
@click.option("--graph", default=None, metavar="[=off,on]", help="Run the whole step as one CUDA graph (PyTorch).")
@shared.world_options
@shared.loader_options
@click.option("--steps", type=shared.COUNT, help="Number of steps to measure, exactly.")
@click.option("--seconds", type=shared.SECONDS, default=3.0, show_default=True,
              help="Without --steps: minimum seconds to measure, and at least 10 blocks.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Number of processes per cell (interleaved).")  # fmt: skip
@click.option("--seed", type=shared.SEED, default=0, show_default=True, help="Random seed.")
@click.option("--proof", default="flag", show_default=True, metavar="strict|flag|off",
              help="Whether a cell whose work is unproved is a wrong result or flagged; off: no proof.")  # fmt: skip
@click.option("--timeout", type=shared.SECONDS, default=3600.0, show_default=True, help="Maximum seconds per cell.")
@click.option("--stall", type=shared.SECONDS, default=300.0, show_default=True,
              help="Maximum seconds without progress before a cell counts as hung.")  # fmt: skip
@click.option("--cooldown", default=None, metavar="SECONDS|auto",
              help="Maximum seconds to wait for the machine to cool down between cells.")  # fmt: skip
@click.option("--parity", is_flag=True,
              help="Check first whether each cell trains the same network as the CPU in float32; mark it.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 when a measured cell has a flag that could spoil it.")
@click.option("--watch", is_flag=True, help="Show throughput, clocks, power, temperature and memory as they change.")
@click.option("--resume", default=None, metavar="[=SWEEP]", shell_complete=complete.complete_sweeps,
              help="Continue an interrupted sweep (default: the last).")  # fmt: skip
@shared.cluster_options
@shared.run_options
@shared.form_options
@shared.quiet_option
@shared.against_option
@shared.store_option
def command(words: tuple[str, ...], given: tuple[str, ...], form: str | None, quiet: bool, strict: bool,
            against: str | None, **options: Any) -> int:  # fmt: skip
    """Measure WORKLOADs on every framework and device asked for.

    Each cell runs in a fresh process: first step apart, warm-up until steady, then blocks of steps between
    synchronisations of the device, with proof that the work was done. Every run is stored when it ends.
    """
    from metalmark.app.bench import bench

    if strict and options["proof"] == "off":
        raise UsageError("--strict fails a cell that is unproved, and --proof off leaves every cell so.",
                         hint="Leave one of the two out.")  # fmt: skip
    names: list[str] = []
    params: dict[str, Any] = {}
    if options["resume"] is None:
        names, params = shared.split_words(words, given, verb="bench")
    elif words:
        raise UsageError("--resume goes on with a stored sweep and takes no workloads.",
                         hint="Write `metalmark bench --resume`, or --resume=SWEEP.")  # fmt: skip
    runs = bench(names, params=params, progress=not quiet, raise_interrupt=False, **options)
    if options["node_rank"]:
        shared.sayer(quiet)(shared.NOT_FIRST.format(node=options["node_rank"], nodes=options["nnodes"]))
        return 0
    shared.print_runs(runs, form)
    notes = runs.notes if options["resume"] is None else ()
    if form is None:
        shared.print_notes(notes)
    else:
        for note in notes:
            shared.sayer(quiet)(f"• {note}")
    if against:
        shared.print_published(runs, form)
    return finish(runs, shared.sayer(quiet), strict=strict, more=shared.on_cluster(options))


def finish(runs: "Runs", say: Any, *, strict: bool, more: str = "") -> int:
    """Say where the runs are and return the exit code."""
    assert runs.sweep is not None
    say(f"Stored in {runs.store} as sweep {runs.sweep.id}.")
    if not runs.complete:
        say(f"Stopped; what ended is stored. Go on with: metalmark bench --resume={runs.sweep.id}{more}")
        return 130
    flagged = [cell for cell in runs.cells if cell.spoiling_flags and not cell.failure] if strict else []
    for cell in flagged:
        click.echo(f"--strict: {cell.plan.label}: {', '.join(cell.spoiling_flags)}", err=True)
    return 1 if flagged else exit_code(runs.cells)


def exit_code(cells: "list[Cell]") -> int:
    """Out of memory and unsupported are answers; what broke, or nothing at all, is not."""
    failures = [cell.failure for cell in cells]
    broke = any(failure is not None and failure.kind.value in BROKEN for failure in failures)
    return 1 if broke or all(failures) else 0
