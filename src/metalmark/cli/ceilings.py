"""What `ceiling` does once its words are parsed: plan, leave out what is known, run, print."""

from __future__ import annotations

import click

from metalmark.cli.benching import choose_frameworks, exit_code, keeper
from metalmark.cli.progress import make_display
from metalmark.model.plan import Dtype
from metalmark.model.sweep import Sweep, new_id, now_utc
from metalmark.report.ceiling_table import ceiling_table
from metalmark.report.exports import json_text
from metalmark.report.terminal import print_table
from metalmark.results.cells import cells_of
from metalmark.runner.ceiling import ceiling_plans, measured_before
from metalmark.runner.devices import choose_devices
from metalmark.runner.sweeping import run_sweep
from metalmark.runner.values import choose, split_list
from metalmark.store.place import store_path
from metalmark.store.sqlite import Store
from metalmark.workloads.ceiling import COPY, MATMUL


def measure(
    framework: str,
    device: str,
    dtype: str,
    threads: int | None,
    *,
    again: bool,
    as_json: bool,
    quiet: bool,
    store: str | None,
) -> int:
    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    dtypes = [Dtype(word) for word in choose(dtype, [d.value for d in Dtype], what="--dtype", plural="Types")]
    frameworks, _, notes = choose_frameworks(framework)
    choice = choose_devices(frameworks, split_list(device, what="--device"))
    plans = ceiling_plans(choice.devices, dtypes, threads)
    whole = True
    with Store(store_path(store)) as opened:
        held = {} if again else measured_before(plans, opened.of_workloads([MATMUL, COPY]))
        if held:
            say(f"{len(held)} of {len(plans)} were measured before; --again measures them anew.")
        records = list(held.values())
        missing = tuple(plan for number, plan in enumerate(plans) if number not in held)
        if missing:
            sweep = Sweep(id=new_id(), created_at=now_utc(), plans=missing)
            opened.add_sweep(sweep)
            with make_display(sweep, [], quiet=quiet) as display:
                whole = run_sweep(sweep, previous=[], keep=keeper(opened, records), listeners=[display])
    cells = [cells_of([record])[0] for record in sorted(records, key=lambda record: plans.index(record.plan))]
    if as_json:
        click.echo(json_text(records), nl=False)
    else:
        print_table(ceiling_table(cells))
        for note in (*notes, *choice.notes):
            click.echo(f"• {note}")
    if not whole:
        say("Stopped by Ctrl-C; what ended is stored and is not measured again: metalmark ceiling")
        return 130
    return exit_code(cells)
