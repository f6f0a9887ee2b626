"""Say what a step waits for, and what would make it faster: by experiments on a workload, or from what a stored run
tells."""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from metalmark.app import choices
from metalmark.app.bench import bench_runs, measure_sweep
from metalmark.app.choices import Choice
from metalmark.app.results import Runs
from metalmark.app.runs import say_left_out
from metalmark.app.watch import watch
from metalmark.display import make_display
from metalmark.errors import UsageError, counted, did_you_mean
from metalmark.explain.examine import Examination, examine
from metalmark.explain.from_bench import explain_bench
from metalmark.explain.from_watch import explain_watched
from metalmark.explain.job import ExplainOptions
from metalmark.explain.judge import explain_lines
from metalmark.explain.verify import Verification, plan_verification, with_gains
from metalmark.machine.identity import identify
from metalmark.model.codec import AnyRun
from metalmark.model.explanation import Explained, ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, Mode, Plan, Sweep
from metalmark.model.run import Failed, FailureKind, Flag, Run, RunKind, Telemetry, new_id, now_utc
from metalmark.model.watch import WatchedRun
from metalmark.results.cells import cells_of
from metalmark.results.command import explain_command
from metalmark.results.derived import flags_of
from metalmark.runner.describe import describe
from metalmark.runner.events import Ended, Started, tell_all
from metalmark.runner.expand import SweepAxes, combine, expand
from metalmark.runner.flags import flags_around
from metalmark.runner.probing import absences, choose_devices
from metalmark.runner.values import localise_params, split_list
from metalmark.stats.window import Window
from metalmark.store.address import Address, store_address
from metalmark.store.selection import load, select
from metalmark.store.store import Store
from metalmark.track.launch import say_nothing, say_on_stderr
from metalmark.workloads.catalog import is_file, names, shown_names
from metalmark.workloads.ceiling import COPY, MATMUL

LEAST_REPEATS = 2
"""Of one process per side nothing shows how processes differ."""
OWN_SCRIPT = "A script of your own: metalmark explain -- python train.py"
HARMLESS = {
    "what",
    "seconds",
    "repeat",
    "seed",
    "timeout",
    "stall",
    "telemetry",
    "store",
    "progress",
    "raise_interrupt",
}
"""Options that change nothing of what is explained."""


def explain(
    what: object,
    *,
    framework: Choice | None = None,
    device: Choice = "any",
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
    data_from: Choice | None = None,
    workers: Choice | None = None,
    prefetch: Choice | None = None,
    pin: Choice | None = None,
    start_method: Choice | None = None,
    seconds: float = 0.6,
    verify: bool = False,
    repeat: int = 3,
    trace: str | os.PathLike[str] | None = None,
    seed: int = 0,
    timeout: float = 3600.0,
    stall: float = 600.0,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    raise_interrupt: bool = True,
    params: dict[str, Choice] | None = None,
    **more_params: Choice,
) -> Runs:
    """Say what a step waits for, with the share of each cause, and rank the changes that would make it faster.

    `mm.explain("mnist-mlp", device="gpu", batch_size=32)` takes the step apart by experiments, in a process of its own:
    a resident batch instead of the loader, forward and backward alone, other batch sizes, threads and settings, each
    timed for `seconds`. `verify` makes each change that Metalmark can make and measures it in turn with the baseline,
    `repeat` times each. `trace` is a file for a trace that Perfetto opens. Lists make one explanation each.

    `what` may also be a stored run (an id, a name, "last"), Runs, a run, or what `mm.run` gave: then nothing is
    measured, and the explanation says what the run tells and which experiments would settle the rest. Explanations are
    stored as runs; `run.outcome` has the bottleneck, the shares and the proposals.
    """
    given = dict(locals())  # before any other name is bound: what was asked for
    path = store_address(store)
    if not (isinstance(what, str) and is_workload(what)):
        meant = _runs_meant(what, path)
        _refuse_settings(given, meant, "a stored run is explained from what it holds")
        return _explain_stored(meant, path)
    words = choices.names_in(what)
    if what.endswith(".py"):
        raise UsageError(
            f"{what} names a file, but not what in it.",
            hint=f"Write {what}:NAME for a workload or a model in it. To run it: metalmark explain -- python {what}",
        )
    if len(words) != 1:
        raise UsageError(f"One workload at a time, not {len(words)}.", hint="metalmark explain mnist-mlp")
    options = ExplainOptions(
        seconds=choices.parse_seconds(seconds, what="--seconds"),
        trace=""
        if trace is None
        else str(choices.parse_output(trace, what="--trace", example="step.json.gz").absolute()),
    )
    budget = Budget(
        timeout_s=choices.parse_seconds(timeout, what="--timeout"),
        stall_s=choices.parse_seconds(stall, what="--stall"),
    )
    choices.parse_count(repeat, what="--repeat", least=LEAST_REPEATS, most=choices.MOST_REPEATS)
    choices.parse_count(seed, what="--seed", least=0, most=choices.MOST_SEED)
    info, source = describe(words[0])
    texts, param_paths = localise_params([info], choices.texts({**(params or {}), **more_params}))
    combinations = combine([info], texts, choices.option_flags(explain), verb="explain")
    sources, data_paths = choices.parse_data(data)
    frameworks = choices.frameworks_for(info, framework)
    settings = choices.settings_product(
        dtype=dtype, compile=compile, compile_mode=compile_mode, graph=graph, channels_last=channels_last, fused=fused,
        attention_kernel=attention_kernel, accumulate=accumulate, recompute=recompute, conv_search=conv_search,
        environment=environment, threads=threads,
    )  # fmt: skip
    devices = choose_devices(frameworks, split_list(choices.listed(device), what="--device"))
    axes = SweepAxes(
        workloads=[info], params=combinations, devices=devices.devices, settings=settings, budget=budget, data=sources,
        modes=choices.members(Mode, mode, what="--mode", plural="Modes"), target_column=target_column, seed=seed,
        feeds=choices.feeds(data_from),
        loaders=choices.loaders(workers=workers, prefetch=prefetch, pin=pin, start_method=start_method),
    )  # fmt: skip
    plans = expand(axes)
    if options.trace and len(plans) > 1:
        raise UsageError(
            f"--trace is a file for one trace, and these are {len(plans)} explanations.",
            hint="Explain one device, framework and setting at a time with --trace.",
        )
    absent = next((why for why in absences(plans) if why is not None), None)
    if absent is not None:
        raise UsageError(absent.message, hint=absent.hint or "Use --device cpu.")
    sweep = Sweep(
        id=new_id(), created_at=now_utc(), plans=plans,
        paths={**param_paths, **data_paths, **({info.name: source} if source else {})},
        left_out=(*devices.notes, *axes.left_out),
    )  # fmt: skip
    runs, complete = _explain_plans(sweep, options, path, progress=progress)
    if verify and complete:
        planned = plan_verification(runs, sweep=sweep.id, seconds=options.seconds, repeats=repeat, paths=sweep.paths)
        if planned is not None:
            runs, complete = _verified(runs, planned, path, progress=progress)
        elif progress:
            say_on_stderr("Nothing to verify: no change is proposed that Metalmark can make.")
    if raise_interrupt and not complete:
        stopped = KeyboardInterrupt()
        stopped.add_note("What was explained is stored.")
        raise stopped
    return Runs(runs, store=path, complete=complete, sweep=sweep)


def is_workload(text: str) -> bool:
    """Whether a word means a workload: a name of the catalogue, or a file. Any other word is a stored run's."""
    known = names()
    return is_file(text) or text.endswith(".py") or all(word in known for word in text.split(","))


def explain_script(
    command: Sequence[str],
    *,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[int, WatchedRun, Runs]:
    """Run a command of the user's own, watch it, and explain what was seen. Return its own exit code, the watched run,
    and the explanation: none where no step was seen. `options` are those of `explain`, which have no meaning here."""
    if not command:
        raise UsageError("Which command?", hint="For example: metalmark explain -- python train.py")
    _refuse_settings(options, [], "a command is run as it is")
    code, watched = watch(command, store=store, progress=progress)
    return code, watched, _explain_stored([watched] if watched.stretches else [], store_address(store))


def unexplained(runs: Iterable[AnyRun]) -> dict[str, Failed]:
    """Return what could not be explained, and why."""
    explanations = [run for run in runs if isinstance(run, ExplanationRun)]
    return {run.subject: run.outcome for run in explanations if isinstance(run.outcome, Failed)}


def _explain_plans(
    sweep: Sweep, options: ExplainOptions, path: Address, *, progress: bool
) -> tuple[list[ExplanationRun], bool]:
    """Explain every plan of a sweep, and store each run when it ends; False when Ctrl-C ended it."""
    runs: list[ExplanationRun] = []
    with Store(path) as store, make_display(sweep, quiet=not progress, checks=True) as display:
        tell = tell_all([display])
        for cell, plan in enumerate(sweep.plans):
            started_at = now_utc()
            tell(Started(id=sweep.id, plan=plan, cell=cell))
            found = examine(plan, options, sweep.paths, [display])
            flags = _flags(found)
            run = ExplanationRun(
                id=new_id(), started_at=started_at, sweep=sweep.id, cell=cell, subject=plan.label, plan=plan,
                machine=identify(), software=found.software, outcome=_outcome(plan, found, flags),
                telemetry=found.telemetry, flags=flags,
            )  # fmt: skip
            runs.append(run)
            store.add(run)
            tell(Ended(run=run))
            if found.interrupted:
                return runs, False
    return runs, True


def _flags(found: Examination) -> tuple[Flag, ...]:
    """Return what the machine did meanwhile that could spoil the experiments, or is the answer itself."""
    if found.opened is None:
        return ()
    spans = [(0.0, found.elapsed_s)]
    window = Window(spans, found.opened.placed_on, found.telemetry, found.software.environment)
    return tuple(flags_around(window, identify()))


def _outcome(plan: Plan, found: Examination, flags: tuple[Flag, ...]) -> Explained | Failed:
    """Judge what the experiments showed: also of a worker that was stopped, as far as it came."""
    if found.failure is not None and not found.is_told:
        return found.failure
    explained = explain_lines(found.lines, plan, found.telemetry, flags, found.fallbacks)
    if not explained.step_s:
        return found.failure or Failed(kind=FailureKind.CRASHED, message="It ended before a step was timed.")
    ended = (
        "" if found.failure is None or found.interrupted else f"The experiments ended early: {found.failure.message}"
    )
    notes = (*explained.notes, *filter(None, [found.note, ended]))
    return msgspec.structs.replace(explained, notes=notes, elapsed_s=found.elapsed_s)


def _verified(
    runs: Sequence[ExplanationRun], planned: Verification, path: Address, *, progress: bool
) -> tuple[list[ExplanationRun], bool]:
    """Measure what was proposed, and store the explanations again with it; False when Ctrl-C ended it."""
    say = say_on_stderr if progress else say_nothing
    sweep = planned.sweep
    cells = counted(len(sweep.plans) - len({trial.baseline for trial in planned.trials}), "change")
    say(f"Verifying {cells} in turn with the baseline, {sweep.repeats} times each.")
    with Store(path) as store:
        store.add_sweep(sweep)
    measured, complete = measure_sweep(sweep, path, [], progress=progress, say=say)
    judged = with_gains(runs, planned, measured)
    with Store(path, spools=True) as store:
        for run in judged:
            store.put(run)
    return judged, complete


def _explain_stored(runs: Sequence[AnyRun], path: Address) -> Runs:
    """Explain runs that have ended, from what they hold, and store the explanations."""
    made = [run for run in runs if isinstance(run, ExplanationRun)]
    if made:  # the bench runs beside an explanation are those that verified it
        return Runs(made, store=path)
    for run in runs:
        if not isinstance(run, BenchRun | WatchedRun):
            raise _not_explainable(run)
    cells = cells_of(run for run in runs if isinstance(run, BenchRun))
    watched = [run for run in runs if isinstance(run, WatchedRun)]
    sweep = new_id() if len(cells) + len(watched) > 1 else ""
    explained: list[ExplanationRun] = []
    with Store(path) as store:
        for cell in cells:
            run = cell.records[-1]
            outcome = cell.failure or explain_bench(run, _runs_beside(run, store))
            explained.append(_explanation(run, outcome, sweep, len(explained)))
        for loop in watched:
            explained.append(_explanation(loop, explain_watched(loop), sweep, len(explained)))
        store.add_all(explained)
    return Runs(explained, store=path)


def _runs_beside(run: BenchRun, store: Store) -> list[BenchRun]:
    """Return what was measured beside a run: the other runs of its sweep, and the ceilings of this machine."""
    beside = store.load(store.rows_of_sweep(run.sweep), on_error=say_left_out)
    ceilings = store.of_workloads([MATMUL, COPY], frameworks=[run.plan.framework], on_error=say_left_out)
    return bench_runs([*beside, *ceilings])


def _explanation(run: BenchRun | WatchedRun, outcome: Explained | Failed, sweep: str, cell: int) -> ExplanationRun:
    return ExplanationRun(
        id=new_id(), started_at=now_utc(), sweep=sweep, cell=cell, subject=run.header.label,
        plan=run.plan if isinstance(run, BenchRun) else None, of=run.id, machine=run.machine, software=run.software,
        outcome=outcome, telemetry=Telemetry(hz=None, absent={"all": f"those of run {run.id}, which is explained"}),
        flags=tuple(flags_of(run)),
    )  # fmt: skip


def _runs_meant(what: object, path: Address) -> list[AnyRun]:
    """Return the runs that a query, a run, several runs or a recorder stands for."""
    if isinstance(what, str):
        with Store(path, readonly=True) as store:
            try:
                chosen = select(what, store)
            except UsageError as error:
                if error.message.startswith("There is no run, sweep or name"):
                    raise _unknown(what, path) from error
                raise
            return load([chosen], store, whole_cells=True, on_error=say_left_out)
    if isinstance(what, Run):
        return [what]  # type: ignore[list-item]  # every Run is one of its kinds
    if isinstance(what, Runs):
        return list(what)
    result = getattr(what, "result", None)
    if isinstance(result, WatchedRun):
        return [result]
    if hasattr(what, "result") and hasattr(what, "watch"):
        raise UsageError("This run has not ended.", hint="Explain it after its `with` block: mm.explain(run).")
    raise UsageError(
        f"A {type(what).__name__} can't be explained.",
        hint='Give a workload ("mnist-mlp"), a run, its id, or what mm.run() gave.',
    )


def _unknown(word: str, path: Address) -> UsageError:
    known = shown_names()
    return UsageError(
        f"There is no workload and no run {word!r} in {path}{did_you_mean(word, known)}",
        hint=f"Workloads: {', '.join(known)}, or your own file.py:name. `metalmark runs list` shows the runs. "
        f"{OWN_SCRIPT}",
    )


def _not_explainable(run: AnyRun) -> UsageError:
    kind = run.header.kind
    what = {
        RunKind.PARITY: "a parity check, which times no step",
        RunKind.TRAINING: "a training",
        RunKind.TUNE: "a tuning, whose trials are runs of their own",
    }.get(kind, kind.value)
    plan = getattr(run, "plan", None)
    hint = f"Explain a bench run, a watched run, or the step itself: {explain_command(plan)}" if plan else OWN_SCRIPT
    return UsageError(f"Run {run.id} is {what}.", hint=hint)


def _refuse_settings(given: Mapping[str, Any], runs: Sequence[AnyRun], why: str) -> None:
    """Refuse options that have no meaning for what can't be experimented on."""
    usual = {name: each.default for name, each in inspect.signature(explain).parameters.items()}
    params = {**(given.get("params") or {}), **given.get("more_params", {})}
    asked = [name for name in given if name not in {*HARMLESS, "params", "more_params"}]
    asked = [name for name in asked if _text(given[name]) != _text(usual[name])]
    if not asked and not params:
        return
    flag = f"--{[*asked, *params][0].replace('_', '-')}"
    plan = next((run.plan for run in runs if isinstance(run, BenchRun | ExplanationRun) and run.plan is not None), None)
    hint = f"Leave it out, or do the experiments: {explain_command(plan)}" if plan is not None else "Leave it out."
    what = "needs experiments" if flag in ("--verify", "--trace") else "is of experiments"
    more = f" {flag}" if plan is not None and flag == "--verify" else ""
    raise UsageError(f"{flag} {what}, and {why}.", hint=f"{hint}{more}")


def _text(value: Choice | None) -> str | None:
    return None if value is None or value == "" else choices.listed(value)
