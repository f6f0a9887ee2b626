"""Find the settings that train fastest and still train the same network, and say what each of them gained."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from metalmark.app import choices
from metalmark.app.bench import bench_runs
from metalmark.app.choices import Choice
from metalmark.app.gate import is_settled
from metalmark.app.place import Place, open_place, refuse_other_place, without_cells
from metalmark.app.results import Runs
from metalmark.app.runs import say_left_out
from metalmark.app.settings_file import write_settings
from metalmark.app.tune_gate import TuningKeeper
from metalmark.app.tuner import Tuner
from metalmark.display import make_display
from metalmark.display.status import LiveStatusFile
from metalmark.errors import UsageError, did_you_mean
from metalmark.explain.instructions import device_type
from metalmark.model.codec import AnyRun, encode
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun
from metalmark.model.plan import Budget, Feed, Mode, Plan, Settings, Sweep
from metalmark.model.run import Failed, new_id, now_utc
from metalmark.model.settings_file import SettingsFile
from metalmark.model.tuning import RungStatus, Tuned, TuningGoal, TuningRequest, TuningRun
from metalmark.results.command import settings_command
from metalmark.runner.describe import describe
from metalmark.runner.events import Ended, Listener, tell_all
from metalmark.runner.expand import SweepAxes, combine, expand
from metalmark.runner.values import localise_params
from metalmark.store.address import Address, store_address
from metalmark.store.store import Store
from metalmark.track.launch import Say, say_nothing, say_on_stderr
from metalmark.track.tracking import Tracking
from metalmark.tune.snippet import snippet
from metalmark.tune.space import axes as known_axes

_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def tune(
    workload: str | None = None,
    *,
    framework: Choice | None = None,
    device: Choice = "any",
    goal: str = "throughput",
    time: str | float = "10m",
    mode: Choice = "training",
    threads: int | None = None,
    data: Choice | None = None,
    target_column: str = "",
    data_from: Choice | None = None,
    workers: Choice = 1,
    prefetch: Choice = 2,
    pin: Choice = False,
    start_method: Choice = "",
    keep: Choice = "",
    steps_planned: int | None = None,
    memory_limit: str | None = None,
    gate: bool = True,
    repeat: int = 3,
    seconds: float = 3.0,
    seed: int = 0,
    stall: float = 600.0,
    output: str | os.PathLike[str] | None = None,
    resume: str | None = None,
    on: str | None = None,
    nodes: str | None = None,
    track: str | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    raise_interrupt: bool = True,
    params: dict[str, Choice] | None = None,
    **more_params: Choice,
) -> Runs:
    """Search for the settings with which a workload trains fastest, and prove that it still trains the same network.

    `mm.tune("bert", size="mini", device="gpu", time="10m")`. The baseline is float32 and eager. Settings are tried in
    fresh processes, the one that usually gains most first; the best are measured `repeat` times in turn with the
    baseline; what wins must pass a parity check, and its losses must stay with the baseline's. Every trial is a stored
    run, and so is the result: `run.outcome.ladder` has a rung for each setting that helped.

    `goal` is "throughput", "latency" (the batch size stays), "energy" or "memory". `keep` names what stays as it is,
    such as "batch_size,dtype". `steps_planned` spreads the time of the first step, which compiles, over so many steps.
    `output` is a file for the best settings, which `bench` and `train` take as `settings`. `resume` goes on with a
    search that was stopped ("last", or its id). Several frameworks are tuned one after the other. `on` is the address
    of a Ray cluster, and `nodes` says which of its nodes tune, as for `mm.bench`: each search is all on one node.
    """
    say = say_on_stderr if progress else say_nothing
    path, tracking = store_address(store), Tracking(track, say=say)
    target = None if output is None else choices.parse_output(output, what="--output", example="best.json")
    time_s = parse_time(time)
    with ExitStack() as places:
        if resume is not None:
            sweep, request, known = _stopped_search(resume, path)
            refuse_other_place(sweep, on)
            place = places.enter_context(open_place(on, nodes, say=say))
            request = msgspec.structs.replace(request, time_s=time_s)
        else:
            if workload is None:
                raise UsageError("Which workload?", hint="For example: metalmark tune mnist-mlp")
            request = TuningRequest(
                goal=_goal(goal),
                time_s=time_s,
                steps_planned=None
                if steps_planned is None
                else choices.parse_count(steps_planned, what="--steps-planned"),
                repeats=choices.parse_count(repeat, what="--repeat", least=2, most=choices.MOST_REPEATS),
                seconds=choices.parse_seconds(seconds, what="--seconds"),
                fixed=_kept(keep),
                memory_limit_bytes=None if memory_limit is None else parse_bytes(memory_limit),
                gate=gate,
            )
            names = choices.names_in(workload)
            if len(names) != 1:
                raise UsageError(f"One workload at a time, not {len(names)}.", hint="metalmark tune mnist-mlp")
            choices.parse_count(seed, what="--seed", least=0, most=choices.MOST_SEED)
            budget = Budget(
                seconds=request.seconds, timeout_s=time_s, stall_s=choices.parse_seconds(stall, what="--stall")
            )
            loading = choices.loaders(workers=workers, prefetch=prefetch, pin=pin, start_method=start_method)
            if len(loading) != 1:
                raise UsageError("A baseline has one loader.", hint="Give one value each: --workers 1 --prefetch 2")
            count = None if threads is None else choices.parse_threads(threads)[0]
            info, source = describe(names[0])
            _refuse_settings({**(params or {}), **more_params})
            given, param_paths = localise_params([info], choices.texts({**(params or {}), **more_params}))
            combinations = combine([info], given, choices.option_flags(tune), verb="tune")
            if any(len(each) != 1 for each in combinations.values()):
                raise UsageError(
                    "A baseline has one value of each parameter.",
                    hint="To compare several: metalmark bench. The batch size is searched, unless --keep batch_size.",
                )
            sources, data_paths = choices.parse_data(data)
            modes = choices.members(Mode, mode, what="--mode", plural="Modes")
            paths = {**param_paths, **data_paths, **({info.name: source} if source else {})}
            place = places.enter_context(open_place(on, nodes, say=say))
            devices = place.devices_of_first(info, framework, device, paths=paths, say=say)
            made = SweepAxes(
                workloads=[info], params=combinations, modes=modes, devices=devices.devices,
                settings=[Settings(threads=count)], budget=budget, data=sources, target_column=target_column,
                feeds=choices.feeds(data_from), loaders=loading, seed=seed,
            )  # fmt: skip
            spread = place.spread_present(expand(made))
            sweep = Sweep(
                id=new_id(), created_at=now_utc(), plans=spread.plans, targets=spread.targets, paths=paths,
                left_out=(*devices.notes, *made.left_out, *spread.left_out),
            )  # fmt: skip
            known = []
        with Store(path) as opened, tracking:
            if resume is None:
                opened.add_sweep(sweep)
            with (
                make_display(sweep, quiet=not progress, checks=True, limit_s=time_s) as display,
                LiveStatusFile(path, sweep, tuning_limit_s=time_s) as status,
            ):
                tune_all = _tune_there if sweep.targets else _tune_here
                runs, complete = tune_all(
                    sweep, request, known, store=opened, listeners=[display, status, tracking.listener()], say=say,
                    place=place,
                )  # fmt: skip
    if target is not None:
        _write_best(runs, target, say)
    if raise_interrupt and not complete:
        stopped = KeyboardInterrupt()
        stopped.add_note(f"What was tried is stored; go on with mm.tune(resume={sweep.id!r}).")
        raise stopped
    return Runs(runs, store=path, sweep=sweep, complete=complete)


def _tune_here(
    sweep: Sweep,
    request: TuningRequest,
    known: Sequence[AnyRun],
    *,
    store: Store,
    listeners: Sequence[Listener],
    say: Say,
    place: Place,  # noqa: ARG001
) -> tuple[list[TuningRun], bool]:
    """Tune each baseline on this machine, one after another; return False when Ctrl-C ended it."""
    runs: list[TuningRun] = []
    # Several baselines share the time.
    share = msgspec.structs.replace(request, time_s=request.time_s / len(sweep.plans))
    for cell, plan in enumerate(sweep.plans):
        # What was checked before, by this or by another command, is known too.
        checks = [run for run in store.checks(plan.workload, plan.framework) if run not in known]
        tuner = make_tuner(
            plan, share, sweep=sweep, cell=cell, store=store, listeners=listeners, say=say, known=[*checks, *known]
        )
        runs.append(tuner.run())
        if tuner.stopped:
            return runs, False
    return runs, True


def _tune_there(
    sweep: Sweep,
    request: TuningRequest,
    known: Sequence[AnyRun],
    *,
    store: Store,
    listeners: Sequence[Listener],
    say: Say,  # noqa: ARG001
    place: Place,
) -> tuple[list[TuningRun], bool]:
    """Tune each baseline on a node of a cluster, where all of its trials run; return False when Ctrl-C ended it."""
    from metalmark.cluster.messages import NodeJob, TuneJob

    tell = tell_all(listeners)
    tunings = {run.cell: run for run in known if isinstance(run, TuningRun)}
    nodes: dict[int, str] = {}
    told = {run.id for run in known}

    def keep(run: AnyRun, node: str) -> None:
        store.put(run)  # a trial comes again with the verdict of its check, a tuning whenever it is further on
        if isinstance(run, TuningRun):
            tunings[run.cell], nodes[run.cell] = run, node
        elif run.id not in told:
            told.add(run.id)
            tell(Ended(run=run, node=node))

    def job(cell: int) -> NodeJob:
        before = [tunings[cell]] if cell in tunings else []
        trials = [
            run
            for run in known
            if isinstance(run, BenchRun | ParityRun) and before and run.machine == before[0].machine
        ]
        # Where two nodes are of one kind, nothing tells whose trials these were.
        alike = sum(run.machine == before[0].machine for run in tunings.values()) if before else 0
        return TuneJob(
            sweep=without_cells(sweep), plan=sweep.plans[cell], cell=cell, request=request,
            known=tuple(msgspec.Raw(encode(run)) for run in (*before, *(trials if alike == 1 else ()))),
        )  # fmt: skip

    done = [cell for cell, run in tunings.items() if isinstance(run.outcome, Failed) or run.outcome.complete]
    complete = place.run_jobs(sweep, job=job, keep=keep, listeners=listeners, verb="tune", done=done)
    for cell, node in nodes.items():
        tell(Ended(run=tunings[cell], node=node))
    return [tunings[cell] for cell in sorted(tunings)], complete


def make_tuner(
    plan: Plan,
    request: TuningRequest,
    *,
    sweep: Sweep,
    cell: int,
    store: TuningKeeper,
    listeners: Sequence[Listener],
    say: Say,
    known: Sequence[AnyRun],
) -> Tuner:
    """Return the tuner of one baseline. `known`: what the search has measured before it was stopped."""
    before = next((run for run in known if isinstance(run, TuningRun) and run.cell == cell), None)
    return Tuner(
        plan, request, sweep=sweep, cell=cell, store=store, listeners=listeners, say=say, known=bench_runs(known),
        before=before, checks=[run for run in known if isinstance(run, ParityRun) and is_settled(run)],
    )  # fmt: skip


def snippet_of(run: TuningRun) -> str:
    """Return what to write in a training loop of one's own for the best settings; empty where nothing helps."""
    outcome = run.outcome
    if not isinstance(outcome, Tuned) or outcome.best.status is RungStatus.BASELINE:
        return ""
    # With what the baseline had: who writes the step anew loses nothing of it.
    had = {name: getattr(run.plan.settings, name) for name in run.plan.settings.changed()}
    change = outcome.best.change
    change = msgspec.structs.replace(change, settings={**had, **change.settings})
    return snippet(run.plan, change, placed_on=outcome.placed_on)


def settings_of(run: TuningRun) -> SettingsFile | None:
    """Return the best settings as the file that `bench` and `train` take; None where nothing helps."""
    outcome = run.outcome
    if not isinstance(outcome, Tuned) or outcome.best.status is not RungStatus.BEST:
        return None
    best = outcome.best.change.applied(run.plan)
    return SettingsFile(
        workload=best.workload, workload_digest=best.workload_digest, framework=best.framework, mode=best.mode,
        device=device_type(outcome.placed_on), settings=best.settings,
        feed=best.feed, loader=best.loader if best.feed is Feed.PIPELINE else None, params=outcome.best.change.params,
        run=run.id, gain=outcome.best.gain,
    )  # fmt: skip


def untuned(runs: Sequence[AnyRun]) -> dict[str, Failed]:
    """Return what could not be tuned, and why."""
    return {
        run.plan.label: run.outcome for run in runs if isinstance(run, TuningRun) and isinstance(run.outcome, Failed)
    }


def parse_time(value: str | float) -> float:
    """Take a number of seconds, or a text such as 90s, 10m or 1h30m."""
    if isinstance(value, str):
        found = _TIME.fullmatch(value.strip().lower())
        parts = [float(part or 0) for part in found.groups()] if found and value.strip() else []
        value = sum(part * size for part, size in zip(parts, (3600, 60, 1), strict=True)) if parts else float("nan")
    if not 0 < value <= choices.MOST_S:
        raise UsageError(
            "--time is how long the search may take.", hint="For example --time 90s, --time 10m or --time 1h."
        )
    return float(value)


def parse_bytes(text: str) -> int:
    """Take a number of bytes, or a text such as 16G or 512MiB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"--memory-limit is a size, not {text!r}.", hint="For example --memory-limit 16G.")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def _refuse_settings(params: Mapping[str, Choice]) -> None:
    """Refuse settings where parameters of a workload stand: to find them is the search's own work."""
    for name in params:
        if name in Settings.__struct_fields__:
            raise UsageError(
                f"--{name.replace('_', '-')} is what tune searches; its baseline is float32 and eager.",
                hint=f"To leave it as it is: --keep {name}. To measure one value: metalmark bench.",
            )


def _goal(word: str) -> TuningGoal:
    words = choices.members(TuningGoal, word, what="--for", plural="Goals")
    if len(words) != 1:
        raise UsageError("One goal at a time.", hint="For example --for latency")
    return words[0]


def _kept(keep: Choice) -> tuple[str, ...]:
    text = choices.listed(keep)
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    known = known_axes()
    for name in names:
        if name not in known:
            raise UsageError(
                f"--keep: there is nothing called {name!r} to keep{did_you_mean(name, known)}",
                hint=f"It takes: {', '.join(known)}.",
            )
    return tuple(names)


def _stopped_search(query: str, path: Address) -> tuple[Sweep, TuningRequest, list[AnyRun]]:
    """Return a stored search with all that it has measured."""
    with Store(path, readonly=True) as store:
        sweep = store.sweep(query)
        runs = store.load(store.rows_of_sweep(sweep.id), on_error=say_left_out)
    tunings = [run for run in runs if isinstance(run, TuningRun)]
    if not tunings:
        raise UsageError(
            f"Sweep {sweep.id} is not a tuning.", hint=f"Go on with it: metalmark bench --resume={sweep.id}"
        )
    return sweep, tunings[0].request, runs


def _write_best(runs: Sequence[TuningRun], path: Path, say: Callable[[str], None]) -> None:
    """Write the settings of the fastest of several frameworks."""
    files = [(run, made) for run in runs if (made := settings_of(run)) is not None]
    if not files:
        say(f"Nothing was written to {path}: no settings were proved to be better than the baseline.")
        return

    def value(run: TuningRun) -> float:
        assert isinstance(run.outcome, Tuned)
        return run.outcome.best.value or float("inf")

    run, best = min(files, key=lambda each: value(each[0]))
    write_settings(path, best)
    # What the file changes of the parameters is not typed again.
    kept = {name: value for name, value in run.plan.params.items() if name not in best.params}
    say(
        f"The best settings are in {path}: "
        f"{settings_command(msgspec.structs.replace(run.plan, params=kept), str(path))}"
    )
