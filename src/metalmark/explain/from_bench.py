"""What a stored cell of a sweep can tell of its steps, with the cells measured beside it, and what would tell the rest.

A cell whose plan differs from the explained one in one thing is an experiment that was made already: another batch
size, a captured step, fewer threads, a resident batch. What such cells tell is judged as a worker's experiments are.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metalmark.explain.job import Ceiling, Counted, Done, Line, Opened, Profiled, Tried
from metalmark.explain.judge import explain_lines
from metalmark.model.explanation import Bottleneck, Experiment, ExperimentKind, Explained
from metalmark.model.measurement import BenchRun, Block, Completed
from metalmark.model.plan import Feed, Loader, Mode, Plan, PlanChange, Scalar
from metalmark.model.run import Absent, Failed
from metalmark.results.ceilings import ceilings_of, key_of
from metalmark.results.command import explain_command
from metalmark.results.derived import flags_of
from metalmark.stats.summary import mean_interval, median, median_interval
from metalmark.stats.window import is_cpu

NO_WORK = Absent(reason="a bench does not count the work of its operations")
NO_PROFILE = Absent(reason="a bench is not profiled")
KINDS = {
    "compile": ExperimentKind.COMPILED,
    "graph": ExperimentKind.CAPTURED,
    "fused": ExperimentKind.FUSED,
    "threads": ExperimentKind.THREADS,
    "dtype": ExperimentKind.DTYPE,
    "channels_last": ExperimentKind.LAYOUT,
}
"""The experiment that a cell with another value of a setting is."""
BATCH_SIZE = "batch_size"


class StepTime(Struct, frozen=True):
    seconds: float
    error_s: float
    samples: tuple[float, ...]
    waited_s: float | None


def explain_bench(run: BenchRun, others: Sequence[BenchRun] = ()) -> Explained:
    """Return what a stored run tells, with the other runs of its sweep or store as experiments."""
    outcome = run.outcome
    if isinstance(outcome, Failed):
        return _nothing(f"The run failed ({outcome.kind.value}): {outcome.message}")
    lines = tuple(_lines(run, outcome, others))
    explained = explain_lines(lines, run.plan, run.telemetry, flags_of(run), outcome.fallbacks)
    made = {line.experiment.kind for line in lines if isinstance(line, Tried)}
    return replace(
        explained,
        missing=tuple(_missing(run.plan, made, asynchronous=not is_cpu(outcome.placed_on))),
    )


def _lines(run: BenchRun, outcome: Completed, others: Sequence[BenchRun]) -> Iterator[Line]:
    yield Opened(
        placed_on=outcome.placed_on,
        device_name=outcome.device_name,
        asynchronous=not is_cpu(outcome.placed_on),
        samples_per_step=outcome.samples_per_step,
        flops_per_step=outcome.flops_per_sample and outcome.flops_per_sample * outcome.samples_per_step,
        parameters=outcome.parameters,
        trainable_parameters=outcome.trainable_parameters,
        threads=run.plan.settings.threads,
        usable_cores=run.machine.usable_cores,
        first_step_s=outcome.measurement.first_step_s,
        sync_s=outcome.measurement.sync_s,
        notes=outcome.notes,
    )
    kind = ExperimentKind.AS_ASKED if run.plan.feed is Feed.PIPELINE else ExperimentKind.RESIDENT
    yield Tried(experiment=_experiment(kind, PlanChange(), _step_time(outcome.measurement.blocks)))
    for experiment in _beside(run, others):
        yield Tried(experiment=experiment)
    yield Counted(work=NO_WORK)
    yield Profiled(profile=NO_PROFILE)
    ceiling = _ceiling(run, outcome, others)
    if ceiling is not None:
        yield ceiling
    yield Done()


def _beside(run: BenchRun, others: Sequence[BenchRun]) -> Iterator[Experiment]:
    """Each other cell of the same machine and version that differs in one thing, the newest of each first."""
    seen: set[str] = set()
    for other in sorted(others, key=lambda each: each.started_at, reverse=True):
        outcome = other.outcome
        if other.id == run.id or not isinstance(outcome, Completed) or not _same_place(run, other):
            continue
        found = _difference(run.plan, other.plan)
        if found is None or str(found) in seen:
            continue
        seen.add(str(found))
        yield _experiment(*found, _step_time(outcome.measurement.blocks))


def _same_place(run: BenchRun, other: BenchRun) -> bool:
    """Whether two runs are of one machine, version and device."""
    mine, theirs = run.outcome, other.outcome
    return (
        isinstance(mine, Completed)
        and isinstance(theirs, Completed)
        and mine.placed_on == theirs.placed_on
        and (run.machine.chip, run.machine.gpus) == (other.machine.chip, other.machine.gpus)
        and run.software.versions.get(run.plan.framework) == other.software.versions.get(other.plan.framework)
    )


def _difference(plan: Plan, other: Plan) -> tuple[ExperimentKind, PlanChange] | None:
    """The experiment that another plan is; None where it differs in several things, or in one that tells nothing."""
    alike = (
        "workload",
        "mode",
        "framework",
        "device",
        "data",
        "target_column",
        "workload_digest",
    )
    if any(getattr(plan, name) != getattr(other, name) for name in alike):
        return None
    params: dict[str, Scalar] = {name: value for name, value in other.params.items() if plan.params.get(name) != value}
    names = plan.settings.__struct_fields__
    settings = {
        name: getattr(other.settings, name)
        for name in names
        if getattr(plan.settings, name) != getattr(other.settings, name)
    }
    fed = plan.feed is not other.feed
    loaders = not fed and (plan.loader or Loader()) != (other.loader or Loader())
    if len(params) + len(settings) + fed + loaders != 1 or set(plan.params) != set(other.params):
        return None
    if params:
        resident = plan.feed is Feed.RESIDENT and BATCH_SIZE in params
        return (ExperimentKind.BATCH, PlanChange(params=params)) if resident else None
    if settings:
        name, value = next(iter(settings.items()))
        told = name in KINDS and plan.feed is Feed.RESIDENT and value not in (None, False)
        return (KINDS[name], PlanChange(settings=settings)) if told else None
    if fed:
        return (ExperimentKind.RESIDENT, PlanChange()) if other.feed is Feed.RESIDENT else None
    return _other_loader(plan.loader or Loader(), other.loader or Loader())


def _other_loader(mine: Loader, theirs: Loader) -> tuple[ExperimentKind, PlanChange]:
    names = mine.__struct_fields__
    changed = {name: getattr(theirs, name) for name in names if getattr(mine, name) != getattr(theirs, name)}
    return ExperimentKind.LOADER, PlanChange(loader=changed)


def _step_time(blocks: Sequence[Block]) -> StepTime:
    times = tuple(block.elapsed_s / block.steps for block in blocks)
    interval = median_interval(times) or mean_interval([max(each, 1e-12) for each in times], "blocks of one process")
    waits = [block.waited_s / block.steps for block in blocks if block.waited_s is not None]
    error_s = (interval.high - interval.low) / 2 if interval is not None else 0.0
    return StepTime(median(times), error_s, times, median(waits) if waits else None)


def _experiment(kind: ExperimentKind, change: PlanChange, time: StepTime) -> Experiment:
    return Experiment(
        kind=kind, change=change, seconds=time.seconds, error_s=time.error_s, samples=time.samples,
        waited_s=time.waited_s, note="stored",
    )  # fmt: skip


def _ceiling(run: BenchRun, outcome: Completed, others: Sequence[BenchRun]) -> Ceiling | None:
    found = ceilings_of(others)
    key = key_of(run, outcome)
    flops = found.flops_per_s.get(key)
    moved = next(
        (rate for each, rate in found.bytes_per_s.items() if _but_dtype(each) == _but_dtype(key)),
        None,
    )
    if flops is None and moved is None:
        return None
    return Ceiling(
        flops_per_s=flops,
        bytes_per_s=moved,
        absent="" if flops and moved else "one of them is not stored",
    )


def _but_dtype(key: Struct) -> Struct:
    """A copy moves bytes of any dtype."""
    return replace(key, dtype="")


def _missing(plan: Plan, made: set[ExperimentKind], *, asynchronous: bool) -> Iterator[str]:
    """The experiments that are not stored, each with what it would tell, and the command that makes them all."""
    wanted = {}
    if plan.feed is Feed.PIPELINE:
        wanted[ExperimentKind.RESIDENT] = "a resident batch instead of the loader: how long the step itself is"
    wanted[ExperimentKind.BATCH] = "half and twice the batch: what is fixed and what each sample costs"
    if plan.mode is Mode.TRAINING:
        wanted[ExperimentKind.BACKWARD] = "forward and backward without the update: the optimiser"
    if asynchronous:
        wanted[ExperimentKind.ENQUEUE] = "enqueueing against completing: whether the device waits for the host"
        wanted[ExperimentKind.SYNCS] = "calls inside the step that wait for the device"
    wanted[ExperimentKind.FORWARD] = "the work of each operation against the ceilings: arithmetic or memory"
    command = explain_command(plan)
    for kind, words in wanted.items():
        if kind not in made:
            yield f"{words[:1].upper()}{words[1:]}. Type: {command}"


def _nothing(reason: str) -> Explained:
    return Explained(
        bottleneck=Bottleneck.UNKNOWN, step_s=0.0, error_s=0.0, shares=(), profile=NO_PROFILE, roofline=NO_WORK,
        notes=(reason if reason.endswith(".") else f"{reason}.",),
    )  # fmt: skip
