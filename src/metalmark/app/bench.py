"""Measure how fast each framework and device runs a workload, and the most that each could do."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from metalmark.app import choices, worlds
from metalmark.app.choices import Choice
from metalmark.app.place import HERE, Place, open_place, refuse_other_place
from metalmark.app.results import Runs
from metalmark.app.runs import say_left_out
from metalmark.app.settings_file import device_for, settings_for
from metalmark.display import make_display
from metalmark.display.status import LiveStatusFile
from metalmark.errors import StoreError, UsageError, counted
from metalmark.machine.durable import write_whole
from metalmark.model.codec import AnyRun, encode_export
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityMark
from metalmark.model.plan import Budget, Dtype, Loader, Mode, Sweep
from metalmark.model.run import RunKind, new_id, now_utc
from metalmark.model.settings_file import SettingsFile
from metalmark.runner.ceiling import ceiling_plans, measured_before
from metalmark.runner.describe import describe
from metalmark.runner.events import Listener, Started
from metalmark.runner.expand import SweepAxes, combine, expand
from metalmark.runner.launch import run_node
from metalmark.runner.probing import choose_devices
from metalmark.runner.sweeping import run_sweep, was_interrupted
from metalmark.runner.values import localise_params, split_list
from metalmark.runner.world import Meeting
from metalmark.store.address import Address, local_folder, store_address
from metalmark.store.store import Store
from metalmark.track.launch import Say, say_nothing, say_on_stderr
from metalmark.track.tracking import Tracking
from metalmark.workloads.ceiling import COPY, MATMUL

EVERY = "all"


def bench(
    workloads: str | Iterable[str] = (),
    *,
    framework: Choice | None = None,
    device: Choice | None = None,
    mode: Choice | None = None,
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
    nproc: Choice | None = None,
    scaling: Choice | None = None,
    nnodes: int | None = None,
    rdzv: str | None = None,
    node_rank: int | None = None,
    rdzv_timeout: float | None = None,
    data: Choice | None = None,
    target_column: str = "",
    data_from: Choice | None = None,
    workers: Choice | None = None,
    prefetch: Choice | None = None,
    pin: Choice | None = None,
    start_method: Choice | None = None,
    steps: int | None = None,
    seconds: float = 3.0,
    repeat: int = 1,
    seed: int = 0,
    proof: str = "flag",
    timeout: float = 3600.0,
    stall: float = 300.0,
    telemetry: str | float | None = 5.0,
    cooldown: str | float | None = None,
    parity: bool = False,
    settings: str | os.PathLike[str] | None = None,
    resume: str | None = None,
    on: str | None = None,
    nodes: str | None = None,
    track: str | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    watch: bool = False,
    raise_interrupt: bool = True,
    params: dict[str, Choice] | None = None,
    **more_params: Choice,
) -> Runs:
    """Measure workloads on frameworks and devices, and return the runs, which are stored as they end.

    `mm.bench("mnist-mlp", framework=["torch", "mlx"], batch_size=[16, 64], repeat=5)`. Every option takes one value,
    several, or the text that the command line takes; parameters of a workload are keyword arguments too. Each cell
    runs in a fresh process, so a notebook or a script without a `__main__` guard may call this. `proof` says what
    becomes of a cell whose work could not be proved: "strict" (a wrong result), "flag" (shown with the flag
    `unproved`) or "off" (no steps are spent on a proof). `parity` checks first whether each cell trains the same
    network as the CPU does in float32 (see `mm.parity`), and marks its runs with the verdict. `settings` is a file that
    `mm.tune` made: it decides the framework, the device, the mode, every setting, the loader and what was changed of
    the parameters. Without it, frameworks and devices are all that are here, and the mode is training. `nproc` trains
    each cell with so many processes together ([1, 2] measures both, and how well it scales): they split the batch, or
    each has one (`scaling="weak"`). `nnodes`, `rdzv` ("host:port") and `node_rank` are for several machines: this
    function is called on each, and the first stores the run. `resume` goes on with a stored sweep ("last", or its id).
    `on` is the address of a Ray cluster whose nodes run the cells, and `nodes` says which: "kinds" (each cell on one
    node of each kind of machine), "all" (on every node) or "any".
    Ctrl-C keeps what has ended and is raised again, unless `raise_interrupt` is False; then `Runs.complete` says so.
    """
    say = say_on_stderr if progress else say_nothing
    path, tracking = store_address(store), Tracking(track, say=say)
    if on is not None and parity:
        raise UsageError(
            "--parity checks on this machine what would be measured on others.",
            hint="Check there first: metalmark parity --on ...",
        )
    meeting = worlds.parse_meeting(nnodes, rdzv, node_rank, rdzv_timeout)
    worlds.refuse_cluster(on, nproc=nproc, nnodes=nnodes)
    with ExitStack() as places:
        if resume is not None:
            if nproc is not None or scaling is not None or nnodes is not None:
                raise UsageError(
                    "--resume goes on with a stored sweep, whose processes stay as they are.", hint="Leave --nproc out."
                )
            if settings is not None:
                raise UsageError(
                    "--resume goes on with a stored sweep, whose settings stay as they are.",
                    hint="Leave --settings out.",
                )
            with Store(path, readonly=True) as opened:
                sweep = opened.sweep(resume)
                if any(row.kind == RunKind.TUNE for row in opened.rows_of_sweep(sweep.id)):
                    raise UsageError(
                        f"Sweep {sweep.id} is a tuning, whose trials are not known beforehand.",
                        hint=f"Go on with it: metalmark tune --resume={sweep.id}",
                    )
            refuse_other_place(sweep, on)
            if any(plan.world and plan.world.nnodes > 1 for plan in sweep.plans):
                raise UsageError(
                    "A sweep over several machines can't be resumed: it is one cell.", hint="Measure it again."
                )
            place = places.enter_context(open_place(on, nodes, say=say))
            if parity and not sweep.parity:
                raise UsageError(
                    "This sweep was begun without --parity, so the cells that it has already are unchecked.",
                    hint="Resume it without --parity, or begin a new sweep with it.",
                )
        else:
            described = [describe(name) for name in dict.fromkeys(choices.names_in(workloads))]
            infos = [info for info, _ in described]
            given, param_paths = localise_params(infos, choices.texts({**(params or {}), **more_params}))
            knobs = {
                "dtype": dtype, "compile": compile, "compile_mode": compile_mode, "graph": graph,
                "channels_last": channels_last, "fused": fused, "attention_kernel": attention_kernel,
                "accumulate": accumulate, "recompute": recompute, "conv_search": conv_search,
                "environment": environment, "threads": threads,
            }  # fmt: skip
            loading = {"workers": workers, "prefetch": prefetch, "pin": pin, "start_method": start_method}
            file: SettingsFile | None = None
            if settings is not None:
                decided = {**knobs, "data_from": data_from, **loading}
                file = settings_for(settings, infos, mode=mode, framework=framework, options=decided, params=given)
                framework, device, mode = file.framework, device_for(settings, file, device), file.mode.value
                given = {**given, **choices.texts({**file.params})}
            sources, data_paths = choices.parse_data(data)
            flags = choices.option_flags(bench, "--csv", "--markdown", "--wide", "--strict", "--against")
            combinations = combine(infos, given, flags, verb="bench")
            modes = choices.members(Mode, Mode.TRAINING if mode is None else mode, what="--mode", plural="Modes")
            if file is None:
                tried, fed = choices.settings_product(**knobs), choices.feeds(data_from)
                loaders = choices.loaders(**loading)
            else:
                tried, fed, loaders = [file.settings], [file.feed], [file.loader or Loader()]
            budget = Budget(
                steps=None if steps is None else choices.parse_count(steps, what="--steps"),
                seconds=choices.parse_seconds(seconds, what="--seconds"),
                timeout_s=choices.parse_seconds(timeout, what="--timeout"),
                stall_s=choices.parse_seconds(stall, what="--stall"),
            )
            choices.parse_count(repeat, what="--repeat", most=choices.MOST_REPEATS)
            choices.parse_count(seed, what="--seed", least=0, most=choices.MOST_SEED)
            proving = choices.parse_proof(proof)
            hz, pause = choices.parse_telemetry(telemetry), choices.parse_cooldown(cooldown)
            processes = worlds.parse_worlds(nproc, nnodes, scaling)
            worlds.refuse_options(processes, modes=modes, settings=tried, parity=parity, meeting=meeting)
            worlds.refuse_batches(processes, combinations)
            paths = {**param_paths, **data_paths, **{info.name: source for info, source in described if source}}
            # The last, since it starts a process per framework: every bad word has been answered by now.
            place = places.enter_context(open_place(on, nodes, say=say))
            chosen = place.devices(infos, framework or EVERY, device or EVERY, paths=paths, say=say)
            refused = worlds.refuse_devices(
                processes,
                chosen.devices,
                named=EVERY not in choices.listed(framework or EVERY) and EVERY not in choices.listed(device or EVERY),
            )
            axes = SweepAxes(
                worlds=processes,
                alone=refused,
                workloads=infos,
                params=combinations,
                modes=modes,
                devices=chosen.devices,
                settings=tried,
                budget=budget,
                data=sources,
                target_column=target_column,
                feeds=fed,
                loaders=loaders,
                seed=seed,
                proof=proving,
            )
            spread = place.spread(expand(axes))
            worlds.refuse_many_cells(meeting, spread.plans, repeat)
            if meeting is not None:
                worlds.await_meeting(meeting)
            sweep = Sweep(
                id=new_id(),
                created_at=now_utc(),
                plans=spread.plans,
                targets=spread.targets,
                repeats=repeat,
                hz=hz,
                cooldown=pause,
                paths=paths,
                left_out=(*chosen.notes, *axes.left_out, *spread.left_out, *worlds.left_out(refused)),
                parity=new_id() if parity else "",
            )
            if meeting is not None and meeting.node_rank:
                return _take_part(sweep, meeting, path, progress=progress)
            with Store(path) as opened:
                opened.add_sweep(sweep)
        with tracking:
            runs, complete = measure_sweep(
                sweep,
                path,
                [tracking.listener()],
                progress=progress,
                watch=watch,
                say=say,
                place=place,
                meeting=meeting,
            )
    if raise_interrupt and not complete:
        stopped = KeyboardInterrupt()
        stopped.add_note(f"What ended is stored; go on with mm.bench(resume={sweep.id!r}).")
        raise stopped
    return Runs(runs, store=path, sweep=sweep, complete=complete)


def ceiling(
    *,
    framework: Choice = "all",
    device: Choice = "all",
    dtype: Choice = "float32,tf32,bfloat16,float16",
    threads: int | None = None,
    again: bool = False,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    raise_interrupt: bool = True,
) -> Runs:
    """Measure the most arithmetic and the most bytes per second of each framework and device.

    What was measured before on this machine with the same versions is returned again, unless `again` is True.
    """
    say = say_on_stderr if progress else say_nothing
    dtypes = choices.members(Dtype, dtype, what="--dtype", plural="Types")
    if threads is not None:
        (threads,) = choices.parse_threads(threads)
    frameworks, _, notes = choices.choose_frameworks(framework)
    choice = choose_devices(frameworks, split_list(choices.listed(device), what="--device"))
    plans = ceiling_plans(choice.devices, dtypes, threads)
    path = store_address(store)
    with Store(path) as opened:
        known = bench_runs(opened.of_workloads([MATMUL, COPY], on_error=say_left_out))
        held = {} if again else measured_before(plans, known)
        if held:
            were = "was" if len(held) == 1 else "were"
            say(f"{len(held)} of {len(plans)} {were} measured before; --again measures anew.")
        runs = list(held.values())
        missing = tuple(plan for number, plan in enumerate(plans) if number not in held)
        complete = True
        sweep = Sweep(id=new_id(), created_at=now_utc(), plans=missing, left_out=(*notes, *choice.notes))
        if missing:
            opened.add_sweep(sweep)
            with make_display(sweep, quiet=not progress) as display:
                complete = run_sweep(sweep, previous=[], keep=_keeper(opened, runs), listeners=[display])
    if raise_interrupt and not complete:
        raise KeyboardInterrupt
    runs.sort(key=lambda run: plans.index(run.plan))
    return Runs(runs, store=path, sweep=sweep, complete=complete)


def bench_runs(runs: Iterable[AnyRun]) -> list[BenchRun]:
    return [run for run in runs if isinstance(run, BenchRun)]


def measure_sweep(
    sweep: Sweep,
    path: Address,
    trackers: list[Listener],
    *,
    progress: bool,
    watch: bool = False,
    say: Say,
    place: Place = HERE,
    meeting: Meeting | None = None,
) -> tuple[list[BenchRun], bool]:
    """Measure a sweep that is stored; return every run of it, those stored before included, and whether it came to its
    end."""
    marks: Sequence[ParityMark | None] = ()
    passed = True
    if sweep.parity:
        from metalmark.app.gate import pass_gate  # it imports NumPy, which a plain bench does without

        marks, passed = pass_gate(
            sweep.plans, checks=sweep.parity, paths=sweep.paths, store=path, progress=progress, say=say
        )
    with Store(path) as store:
        # One that can't be read is measured again.
        runs = bench_runs(store.load(store.rows_of_sweep(sweep.id), on_error=say_left_out))
        if runs:
            settled = sum(not was_interrupted(run) for run in runs)
            every = counted(len(sweep.plans) * sweep.repeats, "run")
            say(f"Sweep {sweep.id}: {settled} of {every} {'is' if settled == 1 else 'are'} stored already.")
        if not passed:
            return runs, False
        before = tuple(runs)
        with (
            make_display(sweep, previous=before, quiet=not progress, watch=watch) as display,
            LiveStatusFile(path, sweep, before) as status,
        ):
            try:
                # Machines that meet by themselves are no cluster's.
                run = place.run_sweep if meeting is None else partial(run_sweep, meeting=meeting)
                complete = run(
                    sweep, previous=before, keep=_keeper(store, runs), listeners=[display, status, *trackers],
                    marks=marks,
                )  # fmt: skip
            except KeyboardInterrupt:  # between two cells: nothing was lost
                complete = False
    return runs, complete


def _take_part(sweep: Sweep, meeting: Meeting, path: Address, *, progress: bool) -> Runs:
    """Run the processes of a machine that is not the first. Nothing is stored here."""
    with make_display(sweep, quiet=not progress) as display:
        display(Started(id=sweep.id, plan=sweep.plans[0]))
        failure = run_node(sweep.plans[0], meeting, paths=sweep.paths, listeners=[display])
    worlds.raise_failure(failure)
    return Runs([], store=path, sweep=sweep, complete=True)


def _keeper(store: Store, runs: list[BenchRun]) -> Callable[[BenchRun], None]:
    """What is done with a run the moment it ends: a store that fails costs the sweep, never the run."""

    def keep(run: BenchRun) -> None:
        runs.append(run)
        try:
            store.add(run)
        except StoreError as error:
            raise StoreError(error.message, hint=f"{_rescue(run, store.address)} {error.hint}") from error

    return keep


def _rescue(run: BenchRun, store: Address) -> str:
    """Write the run beside the store, or else where temporary files go; say where, and what to type."""
    data = encode_export([run])
    for folder in (local_folder(store), None):
        try:
            # Where no temporary folder can be written either, asking for one raises an OSError.
            path = (folder or Path(tempfile.gettempdir())) / f"metalmark-unsaved-{run.id}.json"
            write_whole(path, data)
        except OSError:
            continue
        return f"The cell just measured is in {path}: metalmark runs import {path}."
    return "The cell just measured could not be kept anywhere."
