"""Check whether a device, a dtype or a compiler trains the same network as the reference does."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metalmark.app import choices
from metalmark.app.choices import Choice
from metalmark.app.place import HERE, Place, open_place, without_cells
from metalmark.app.results import Runs
from metalmark.backends.catalog import FRAMEWORKS, find
from metalmark.display import make_display
from metalmark.errors import UsageError
from metalmark.model.parity import Checked, ParityRun, ParityVerdict
from metalmark.model.plan import Budget, Device, Mode, Plan, Settings, Sweep
from metalmark.model.run import new_id, now_utc
from metalmark.parity.confirm import examine_twice
from metalmark.parity.diagnose import DiagnosisStopped
from metalmark.parity.diagnose import diagnose as find_cause
from metalmark.parity.examine import parity_run
from metalmark.parity.job import Options
from metalmark.runner.describe import describe
from metalmark.runner.events import Ended, Listener, Started, tell_all
from metalmark.runner.expand import SweepAxes, combine, expand, require
from metalmark.runner.values import localise_params, parse_device
from metalmark.store.address import Address, store_address
from metalmark.store.store import Store
from metalmark.track.launch import say_nothing, say_on_stderr

if TYPE_CHECKING:
    from metalmark.cluster.messages import NodeJob

MOST_STEPS, MOST_DRAWS, MOST_SEEDS = 1000, 100, 100
MOST_CHECK_REPEATS = 10**6


def parity(
    workload: str,
    *,
    framework: Choice | None = None,
    device: Choice = "any",
    reference: str = "cpu",
    mode: Choice = "training",
    dtype: Choice | None = None,
    compile: Choice | None = None,
    compile_mode: Choice | None = None,
    graph: Choice | None = None,
    channels_last: Choice | None = None,
    fused: Choice | None = None,
    attention_kernel: Choice | None = None,
    accumulate: Choice | None = None,
    recompute: Choice | None = None,
    conv_search: Choice | None = None,
    environment: Choice | None = None,
    threads: Choice | None = None,
    data: Choice | None = None,
    target_column: str = "",
    steps: int = 5,
    draws: int = 3,
    repeats: int = 5000,
    seeds: int = 3,
    seed: int = 0,
    diagnose: bool = True,
    repro: str | os.PathLike[str] | None = None,
    timeout: float = 3600.0,
    stall: float = 600.0,
    on: str | None = None,
    nodes: str | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    raise_interrupt: bool = True,
    params: dict[str, Choice] | None = None,
    **more_params: Choice,
) -> Runs:
    """Compare a network, trained in the way that is asked for, with the same network on a reference.

    `mm.parity("bert", size="tiny", device="gpu", dtype="bfloat16")`. Both sides have the same weights, data and order,
    and no dropout, each in a process of its own. Compared are the outputs of every layer, the loss, the gradient of
    every parameter, the optimiser's update, parameters and running statistics after 1 and after `steps` steps, the same
    step `repeats` times, and `seeds` short trainings. What may differ is measured: by how far the reference is from
    itself in float64, with a permuted batch, fewer threads, and `draws` times moved by a rounding error.

    `reference` is a device ("cpu") or a framework ("torch", "torch:cuda"). Lists make one check each. After a
    difference, `diagnose` finds from which batch size on it is there and which settings switch it off; `repro` is the
    file for a script that shows it with the framework alone. Each check is stored as a run; `run.verdict` says how it
    ended. `on` is the address of a Ray cluster whose nodes check, and `nodes` says which, as for `mm.bench`.
    """
    path = store_address(store)
    names = choices.names_in(workload)
    if len(names) != 1:
        raise UsageError(f"One workload at a time, not {len(names)}.", hint="metalmark parity mnist-mlp")
    options = Options(
        steps=choices.parse_count(steps, what="--steps", most=MOST_STEPS),
        draws=choices.parse_count(draws, what="--draws", most=MOST_DRAWS),
        repeats=choices.parse_count(repeats, what="--repeats", least=0, most=MOST_CHECK_REPEATS),
        seeds=choices.parse_count(seeds, what="--seeds", least=0, most=MOST_SEEDS),
    )
    budget = Budget(
        timeout_s=choices.parse_seconds(timeout, what="--timeout"),
        stall_s=choices.parse_seconds(stall, what="--stall"),
    )
    choices.parse_count(seed, what="--seed", least=0, most=choices.MOST_SEED)
    script = None if repro is None else choices.parse_output(repro, what="--repro", example="fault.py")
    info, source = describe(names[0])
    given, param_paths = localise_params([info], choices.texts({**(params or {}), **more_params}))
    combinations = combine([info], given, choices.option_flags(parity), verb="parity")
    sources, data_paths = choices.parse_data(data)
    if on is not None and script is not None:
        raise UsageError("--repro writes a script on the machine that checks.", hint="Leave out --repro or --on.")
    base_framework, base_device = parse_reference(reference)
    if base_framework:
        require([info], [base_framework])
    settings = choices.settings_product(
        dtype=dtype, compile=compile, compile_mode=compile_mode, graph=graph, channels_last=channels_last, fused=fused,
        attention_kernel=attention_kernel, accumulate=accumulate, recompute=recompute, conv_search=conv_search,
        environment=environment, threads=threads,
    )  # fmt: skip
    modes = choices.members(Mode, mode, what="--mode", plural="Modes")
    paths = {**param_paths, **data_paths, **({info.name: source} if source else {})}
    say = say_on_stderr if progress else say_nothing
    with open_place(on, nodes, say=say) as place:
        chosen = place.devices_of_first(info, framework, device, paths=paths, say=say)
        axes = SweepAxes(
            workloads=[info], params=combinations, modes=modes, devices=chosen.devices, settings=settings,
            budget=budget, data=sources, target_column=target_column, seed=seed,
        )  # fmt: skip
        # The reference may take minutes, and the worker of the other side would say only then that its device is
        # missing.
        spread = place.spread_present(expand(axes))
        sweep = Sweep(
            id=new_id(), created_at=now_utc(), plans=spread.plans, targets=spread.targets, hz=None, paths=paths,
            left_out=(*chosen.notes, *axes.left_out, *spread.left_out),
        )  # fmt: skip
        runs, complete = check_all(
            sweep, reference=(base_framework, base_device), options=options, path=path, diagnosed=diagnose,
            repro=script, progress=progress, place=place,
        )  # fmt: skip
    if raise_interrupt and not complete:
        stopped = KeyboardInterrupt()
        stopped.add_note("What was compared is stored.")
        raise stopped
    return Runs(runs, store=path, sweep=sweep, complete=complete)


def check_all(
    sweep: Sweep,
    *,
    reference: tuple[str, Device],
    options: Options,
    path: Address,
    diagnosed: bool,
    repro: Path | None,
    progress: bool,
    done: Collection[int] = (),
    place: Place = HERE,
) -> tuple[list[ParityRun], bool]:
    """Check every plan of a sweep but those that are done, and store each run when it ends; False when Ctrl-C ended it.
    Of several that differ, the first is diagnosed; on a cluster, the first on each machine."""
    runs: list[ParityRun] = []
    with Store(path) as store, make_display(sweep, quiet=not progress, checks=True) as display:
        tell = tell_all([display])

        def keep(run: ParityRun, node: str = "") -> None:
            runs.append(run)
            store.add(run)
            tell(Ended(run=run, node=node))

        def differs() -> bool:
            return any(run.verdict is ParityVerdict.DIFFERS for run in runs)

        def job(cell: int) -> "NodeJob":
            from metalmark.cluster.messages import ParityJob

            plan = sweep.plans[cell]
            return ParityJob(
                sweep=without_cells(sweep), plan=plan, reference=reference_plan(plan, *reference), cell=cell,
                options=options, diagnosed=diagnosed and not differs(),
            )  # fmt: skip

        if sweep.targets:
            complete = place.run_jobs(sweep, job=job, keep=keep, listeners=[display], verb="parity", done=done)
            runs.sort(key=lambda run: run.cell)
            return runs, complete
        for cell, plan in enumerate(sweep.plans):
            if cell in done:
                continue
            run, complete = check_plan(
                plan, reference_plan(plan, *reference), sweep=sweep, cell=cell, options=options,
                diagnosed=diagnosed and not differs(), repro=repro, listeners=[display],
            )  # fmt: skip
            keep(run)
            if not complete:
                return runs, False
    return runs, True


def check_plan(
    plan: Plan,
    reference: Plan,
    *,
    sweep: Sweep,
    cell: int,
    options: Options,
    diagnosed: bool,
    repro: Path | None,
    listeners: Sequence[Listener],
) -> tuple[ParityRun, bool]:
    """Check one plan on this machine; return the run, and False when Ctrl-C ended it. `diagnosed`: find out more about
    a difference."""
    started_at = now_utc()
    tell_all(listeners)(Started(id=sweep.id, plan=plan, cell=cell))
    examined = examine_twice(plan, reference, options=options, paths=sweep.paths, listeners=listeners)
    interrupted, outcome = examined.interrupted, examined.outcome
    if isinstance(outcome, Checked) and outcome.verdict is ParityVerdict.DIFFERS and not interrupted and diagnosed:
        outcome, interrupted = _diagnosed(plan, reference, outcome, options, sweep, listeners, repro)
    examined = msgspec.structs.replace(examined, outcome=outcome)
    run = parity_run(plan, reference, examined, sweep=sweep.id, cell=cell, started_at=started_at)
    return run, not interrupted


def reference_plan(plan: Plan, framework: str, device: Device) -> Plan:
    """Return what a plan is compared with: the same network, data and seed, in float32, eager, on another device or
    framework."""
    return msgspec.structs.replace(
        plan, framework=framework or plan.framework, device=device, settings=Settings(threads=plan.settings.threads)
    )


def parse_reference(text: str) -> tuple[str, Device]:
    """Read a device ("cpu"), a framework ("torch"), or both ("torch:cuda"). No framework: the plan's own."""
    head, sign, rest = text.partition(":")
    if head in FRAMEWORKS:
        return find(head).name, parse_device(rest if sign else "cpu")
    try:
        return "", parse_device(text)
    except UsageError as error:
        raise UsageError(
            f"--reference is a device, a framework or both, not {text!r}.",
            hint="For example --reference cpu, --reference torch, --reference torch:cuda.",
        ) from error


def _diagnosed(
    plan: Plan,
    reference: Plan,
    checked: Checked,
    options: Options,
    sweep: Sweep,
    listeners: Sequence[Listener],
    repro: Path | None,
) -> tuple[Checked, bool]:
    """Return the check with what was found out about its difference, and whether Ctrl-C ended that."""
    try:
        found = find_cause(
            plan, reference, checked, options=options, paths=sweep.paths, listeners=listeners, repro=repro
        )
    except DiagnosisStopped as stopped:
        return msgspec.structs.replace(checked, diagnosis=stopped.diagnosis), True
    return msgspec.structs.replace(checked, diagnosis=found), False
