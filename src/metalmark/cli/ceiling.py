"""`metalmark ceiling`: the most a device can do, measured here, so that a step's share of it can be told."""

from __future__ import annotations

import click

from metalmark.cli.options import store_option

EPILOG = """\b
The same worker, clock and proof as `bench` has: a chain of square matrix products in each dtype, and one
large array copied. What was measured before on this machine with the same versions is shown again;
`metalmark runs show` then gives each record's share of it.

\b
Examples:
  metalmark ceiling --framework torch --device cpu
  metalmark ceiling --dtype float32,bfloat16
  metalmark ceiling --again
"""


@click.command("ceiling", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.option("-f", "--framework", default="all", show_default=True, help="torch, tensorflow, jax, mlx.")
@click.option("-d", "--device", default="all", show_default=True, help="As for bench.")
@click.option("--dtype", default="float32,tf32,bfloat16,float16", show_default=True, help="Of the products.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--again", is_flag=True, help="Measure anew what was measured before.")
@click.option("--json", "as_json", is_flag=True, help="Records with every block, on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@store_option
def command(
    framework: str, device: str, dtype: str, threads: int | None, again: bool, as_json: bool, quiet: bool,
    store: str | None,
) -> int:  # fmt: skip
    """Measure the most arithmetic and the most bytes a second of each framework and device."""
    from metalmark.cli.ceilings import measure

    return measure(framework, device, dtype, threads, again=again, as_json=as_json, quiet=quiet, store=store)
