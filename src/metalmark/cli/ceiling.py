"""`metalmark ceiling`: the most a device can do, measured here, so that a step's share of it can be told."""

from typing import Any

import click

from metalmark.cli.complete import complete_devices, complete_dtypes, complete_frameworks
from metalmark.cli.options import (
    WIDE,
    DocumentedCommand,
    json_option,
    print_data,
    print_notes,
    quiet_option,
    sayer,
    store_option,
    table_console,
    wide_option,
)


@click.command("ceiling", cls=DocumentedCommand, context_settings=WIDE)
@click.option("-f", "--framework", default="all", show_default=True, shell_complete=complete_frameworks,
              help="torch, tensorflow, jax, mlx.")  # fmt: skip
@click.option("-d", "--device", default="all", show_default=True, shell_complete=complete_devices,
              help="Devices, as for bench.")  # fmt: skip
@click.option("--dtype", default="float32,tf32,bfloat16,float16", show_default=True, shell_complete=complete_dtypes,
              help="Types to multiply in.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), help="Number of CPU threads.")
@click.option("--again", is_flag=True, help="Measure again what was measured before.")
@json_option
@wide_option
@quiet_option
@store_option
def command(as_json: bool, quiet: bool, **options: Any) -> int:
    """Measure the most arithmetic and the most bytes per second of each framework and device."""
    from metalmark.app.bench import ceiling
    from metalmark.cli.bench import exit_code
    from metalmark.report.text.exports import json_text
    from metalmark.report.text.tables import ceiling_table
    from metalmark.report.text.terminal import print_table

    runs = ceiling(progress=not quiet, raise_interrupt=False, **options)
    # Cells are in the order of their sweeps, and those that were measured before are of others.
    cells = sorted(runs.cells, key=lambda cell: runs.ids.index(cell.records[0].id))
    if as_json:
        print_data(json_text(runs))
    else:
        print_table(ceiling_table(cells), table_console())
        print_notes(runs.notes)
    if not runs.complete:
        sayer(quiet)("Stopped; what ended is stored and is not measured again: metalmark ceiling")
        return 130
    return exit_code(cells)
