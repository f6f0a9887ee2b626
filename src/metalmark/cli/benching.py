"""What `bench` does once its words are parsed: describe, expand, store, run, print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from metalmark.backends.catalog import find, installed, visible
from metalmark.cli.against import print_published
from metalmark.cli.bench import option_flags
from metalmark.cli.lists import feeds, loaders, parse_cooldown, parse_telemetry, settings_product
from metalmark.cli.live import BenchStatus
from metalmark.cli.progress import make_display
from metalmark.cli.tracking import Tracking
from metalmark.cli.watching import make_watch
from metalmark.data.catalog import ACCEPTED, REAL, SYNTHETIC
from metalmark.errors import NotInstalledError, StoreError
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, Mode
from metalmark.model.run import Failed, FailureKind
from metalmark.model.sweep import Sweep, new_id, now_utc
from metalmark.report.exports import comma_separated, json_text, markdown
from metalmark.report.table import sweep_table
from metalmark.report.terminal import print_table
from metalmark.results.cells import Cell, cells_of
from metalmark.runner.describe import describe
from metalmark.runner.devices import choose_devices
from metalmark.runner.expand import Wish, combine, expand, require
from metalmark.runner.local import localise, localise_params
from metalmark.runner.sweeping import run_sweep, was_interrupted
from metalmark.runner.values import choose, split_list
from metalmark.store.place import store_path
from metalmark.store.rescue import rescue
from metalmark.store.sqlite import Store

BROKEN = {FailureKind.CRASHED, FailureKind.TIMED_OUT, FailureKind.WRONG_RESULT}


class Bench:
    def __init__(
        self, *, store: str | None, quiet: bool, watch: bool = False, tracking: Tracking | None = None
    ) -> None:
        self._path = store_path(store)
        self._quiet, self._watch, self._tracking = quiet, watch, tracking

    def new(self, names: list[str], params: dict[str, str], options: dict[str, Any]) -> tuple[Sweep, list[str]]:
        """The sweep these words ask for, and what was left out of it."""
        modes = [Mode(m) for m in choose(options["mode"], [m.value for m in Mode], what="--mode", plural="Modes")]
        settings = settings_product(options)
        hz, cooldown = parse_telemetry(options["telemetry"]), parse_cooldown(options["cooldown"])
        described = [describe(name) for name in dict.fromkeys(names)]
        infos = [info for info, _ in described]
        params, paths = localise_params(infos, params)
        combinations = combine(infos, params, option_flags())
        data, data_paths = localise(options["data"], fixed=[REAL, SYNTHETIC, *ACCEPTED], what="--data")
        frameworks, every, notes = choose_frameworks(options["framework"])
        if every:
            frameworks = [name for name in frameworks if any(name in info.frameworks for info in infos)]
        else:
            require(infos, frameworks)
        words = split_list(options["device"], what="--device")
        if "all" in words:
            self._say(f"Looking for devices: {', '.join(frameworks)} ...")
        choice = choose_devices(frameworks, words)
        wish = Wish(
            workloads=infos,
            params=combinations,
            modes=modes,
            devices=choice.devices,
            settings=settings,
            data=split_list(data, what="--data"),
            feeds=feeds(options),
            loaders=loaders(options),
            budget=Budget(
                steps=options["steps"],
                seconds=options["seconds"],
                timeout_s=options["timeout"],
                stall_s=options["stall"],
            ),
            seed=options["seed"],
        )
        plans = expand(wish)
        sweep = Sweep(
            id=new_id(),
            created_at=now_utc(),
            plans=plans,
            repeats=options["repeat"],
            hz=hz,
            cooldown=cooldown,
            paths={**paths, **data_paths, **{info.name: source for info, source in described if source}},
            left_out=(*notes, *choice.notes, *wish.left_out),
        )
        with Store(self._path) as store:
            store.add_sweep(sweep)
        return sweep, list(sweep.left_out)

    def stored(self, word: str) -> Sweep:
        with Store(self._path, readonly=True) as store:
            return store.sweep(word)

    def run(
        self, sweep: Sweep, *, notes: list[str], form: str | None, against: str | None, strict: bool = False
    ) -> int:
        with Store(self._path) as store:
            records = store.of_sweep(sweep.id)
            if records:
                settled = sum(not was_interrupted(record) for record in records)
                self._say(f"Sweep {sweep.id}: {settled} of {len(sweep.plans) * sweep.repeats} runs are stored already.")

            watches = self._watch and not self._quiet
            shown = (
                make_watch(sweep, list(records)) if watches else make_display(sweep, list(records), quiet=self._quiet)
            )
            with shown as display, BenchStatus(self._path, sweep, len(records)) as status:
                whole = run_sweep(
                    sweep,
                    previous=list(records),
                    keep=self._keeper(store, records),
                    listeners=[display, status],
                )
        cells = cells_of(records)
        self._print(sweep, records, cells, notes, form)
        if against:
            print_published(cells, form)
        self._say(f"Stored in {self._path} as sweep {sweep.id}.")
        if not whole:
            self._say(f"Stopped by Ctrl-C; what ended is stored. Go on with: metalmark bench --resume={sweep.id}")
            return 130
        flagged = flagged_cells(cells) if strict else []
        for line in flagged:
            click.echo(f"--strict: {line}", err=True)
        return 1 if flagged else exit_code(cells)

    def _keeper(self, store: Store, records: list[BenchRun]) -> Callable[[BenchRun], None]:
        keep = keeper(store, records)
        return keep if self._tracking is None else self._tracking.keeping(keep)

    def _print(
        self, sweep: Sweep, records: list[BenchRun], cells: list[Cell], notes: list[str], form: str | None
    ) -> None:
        if form == "json":
            click.echo(json_text(records), nl=False)
        elif form == "csv":
            click.echo(comma_separated(cells), nl=False)
        elif form == "markdown":
            click.echo(markdown(sweep_table(cells, plans=sweep.plans)), nl=False)
        else:
            print_table(sweep_table(cells, plans=sweep.plans))
            for note in notes:
                click.echo(f"• {note}")
            return
        for note in notes:
            self._say(f"• {note}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)


def keeper(store: Store, records: list[BenchRun]) -> Callable[[BenchRun], None]:
    """What is done with a record the moment its cell ends: a store that fails costs the sweep, never the record."""

    def keep(record: BenchRun) -> None:
        records.append(record)
        try:
            store.add(record)
        except StoreError as error:
            raise StoreError(error.message, hint=f"{rescue(record, store.path)} {error.hint}") from error

    return keep


def choose_frameworks(text: str) -> tuple[list[str], bool, list[str]]:
    """Those named; for `all` those installed, that it was all, and what is not there."""
    words = split_list(text, what="--framework")
    if "all" not in words:
        return [find(name).name for name in words], False, []
    present = [framework.name for framework in installed()]
    if not present:
        raise NotInstalledError(
            "No framework is installed.",
            hint='Install one: pip install "metalmark[torch]" (or tensorflow, jax, mlx).',
        )
    absent = [f.name for f in visible() if f.name not in present]
    notes = [f'{name} not run: it is not installed. Install it: pip install "metalmark[{name}]"' for name in absent]
    return present, True, notes


def flagged_cells(cells: list[Cell]) -> list[str]:
    """A line for each cell that completed and whose number something could have spoiled."""
    flagged = [cell for cell in cells if not cell.failure and cell.flags]
    return [
        f"{plan.workload} {plan.mode.value} on {plan.framework} {plan.device}: {', '.join(cell.flags)}"
        for cell, plan in ((cell, cell.plan) for cell in flagged)
    ]


def exit_code(cells: list[Cell]) -> int:
    """Out of memory and unsupported are answers; what broke, or nothing at all, is not."""
    failures = [cell.failure for cell in cells]
    broke = any(isinstance(failure, Failed) and failure.kind in BROKEN for failure in failures)
    return 1 if broke or all(failures) else 0
