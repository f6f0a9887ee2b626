"""Measured: the runs of one cell as `compare` sees them. What was asked, how it ran, what was around it, its figures.

A cell of a bench is its processes; a cell of trainings is the trainings of one plan, whatever their seeds; a cell of
watched runs is one loop of the runs that have one name and the same parameters; a cell of parity checks is the newest
check of one plan against one reference; a cell of explanations is those of one plan, or of one subject without a plan;
a cell of tunings is those of one baseline with one goal, each by the best settings that it found.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, starmap
from typing import TypeVar

from msgspec import Struct

from metalmark.errors import counted
from metalmark.model.codec import AnyRun
from metalmark.model.explanation import ExperimentKind, Explained, ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun, ParityVerdict
from metalmark.model.plan import Plan, word
from metalmark.model.run import Absent, Failed, FailureKind, RunKind
from metalmark.model.training import Ending, TrainingRun
from metalmark.model.tuning import Rung, Tuned, TuningRun
from metalmark.model.watch import Stretch, WatchedRun
from metalmark.results import derived
from metalmark.results.cells import Cell, cells_of, worst_verdict
from metalmark.results.command import bench_command, monitor_words, target_words, train_command
from metalmark.results.derived import Cost, Memory, PartEnergy, flags_of, memory_used, training_state
from metalmark.results.published import METRICS, STEPS, PublishedFigure, published
from metalmark.stats.window import is_cpu
from metalmark.training.derived import overall_samples_s

Keys = dict[str, str]
CellKeys = tuple[Keys, Keys, Keys]
"""What was asked, how it ran, what was around it."""
_Run = TypeVar("_Run")

OURS = "METALMARK_"
"""Variables that tell our own worker which of the repeats it is: no two processes have the same."""
DAMAGED = "damaged: a process has no block, or one that lasted no time"
ENDED = {Ending.EPOCHS, Ending.TARGET, Ending.PATIENCE}
MOST_GROUPS = 20
BATCH_SIZES = {"batch_size", "batch-size", "batch"}
SEEDS = {"seed", "random_seed"}
NOT_PUBLISHED = Absent(reason="not published")
UNCOUNTED_MEMORY = Absent(reason="nothing counted it")
NO_SPEED = Absent(reason="a parity check measures no speed")
NOT_EXPLAINED = Absent(reason="an explanation does not measure it")
NOT_METERED = Absent(reason="nothing metered it while it was tuned")


class Measured(Struct, frozen=True, kw_only=True):
    kind: RunKind = RunKind.BENCH
    what: Keys
    """The question: workload, parameters, mode, data. Two cells that differ here are two questions."""
    how: Keys
    """Framework, device and settings: what a comparison is usually of."""
    around: Keys = {}
    """Machine and versions."""
    speakable: frozenset[str] = frozenset({"dtype"})
    """Keys of the question that may still be compared by someone who says that it is meant: --by dtype."""
    processes: tuple[tuple[float, ...], ...]
    """Seconds per sample, of each block of each process; one value per training; of a watched loop, seconds per step
    of each part of each run."""
    samples_per_step: int
    memory: Memory | Absent
    energy: dict[str, tuple[float, ...]] | Absent
    """Joules per sample (of a watched loop, per step) of each process, by whose energy and who says so."""
    flags: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    """What a reader of its figures must know: that a build is not the fast one, for example."""
    failure: str = ""
    published: str = ""
    """Where it was published and what is wrong with it; empty for what was measured with Metalmark."""
    parameters: int | None = None
    """Number of trained parameters."""
    runs: tuple[AnyRun, ...] = ()
    command: str = ""
    """What to type to measure it again."""
    trainings: tuple[TrainingRun, ...] = ()
    """Those that came to their end."""
    parity: ParityVerdict | None = None
    """What the parity check of its plan found; None: none was asked for."""
    check: ParityRun | None = None
    """The parity check, where that is what is compared."""
    input_waits: tuple[float, ...] = ()
    """Of a watched loop: the share of each run's time that it waited for batches."""
    explained: tuple[Explained, ...] = ()
    """Explanations that came to their end, the newest last."""
    tuned: tuple[Tuned, ...] = ()
    """Tunings that came to a result, the newest last."""

    def value(self, key: str) -> str | None:
        for keys in (self.what, self.how, self.around):
            if key in keys:
                return keys[key]
        return None

    @property
    def memory_bytes(self) -> int | Absent:
        return self.memory if isinstance(self.memory, Absent) else self.memory.bytes

    @property
    def name(self) -> str:
        """What it is and where it ran, for messages."""
        if self.kind is RunKind.WATCH:
            return f"{self.how['name']}, loop {self.what['loop']}"
        if "explained" in self.what:
            return self.what["explained"]
        mode = self.what.get("mode", "")
        return f"{self.what['workload']} {mode} on {self.how.get('framework', '?')} {self.how.get('device', '?')}"


def measured_of(runs: Iterable[AnyRun]) -> list[Measured]:
    """The cells of these runs. Runs of the same plan, machine and versions are one cell, whichever sweep each came
    from: more of them are a larger sample."""
    every = list(runs)
    bench = cells_of(run for run in every if isinstance(run, BenchRun))
    trained = [run for run in every if isinstance(run, TrainingRun)]
    checks = [run for run in every if isinstance(run, ParityRun)]
    explanations = [run for run in every if isinstance(run, ExplanationRun)]
    tunings = [run for run in every if isinstance(run, TuningRun)]
    loops = [(run, loop) for run in every if isinstance(run, WatchedRun) for loop in run.stretches]
    return [
        *starmap(_of_bench, _grouped(bench, lambda one: (_asked(one.plan), _how(one.plan), _around(one.records[0])))),
        *starmap(_of_trainings, _grouped(trained, _training_keys)),
        *starmap(_of_loops, _grouped(loops, _loop_keys)),
        *starmap(_of_checks, _grouped(checks, _check_keys)),
        *starmap(_of_explanations, _grouped(explanations, _explanation_keys)),
        *starmap(_of_tunings, _grouped(tunings, _tuning_keys)),
    ]


def training_question(run: TrainingRun) -> Keys:
    """What must agree for two trainings to be compared, as far as it is known before they train."""
    goal = run.goal
    return {
        **_asked(run.plan),
        "epochs": str(goal.epochs),
        "target accuracy": "none" if goal.target_accuracy is None else f"{goal.target_accuracy:g}",
        "patience": word(goal.patience) or "none",
        **({"target": target_words(goal.target)} if goal.target is not None else {}),
        **({"monitor": monitor_words(goal.monitor)} if goal.monitor is not None else {}),
        "samples": word(goal.limit_samples) or "all",
        "steps per epoch": word(goal.limit_steps) or "all",
    }


def samples_by_seed(runs: Iterable[TrainingRun]) -> dict[int, set[str]]:
    """Digests of the samples that trainings trained on: made-up samples and many splits depend on the seed."""
    found: dict[int, set[str]] = {}
    for run in runs:
        if run.setting is not None:
            found.setdefault(run.plan.seed, set()).add(run.setting.data_digest[:12])
    return found


def published_side() -> list[Measured]:
    """The published figures that time training steps alone, as a side: a time of a whole run or an epoch counts more
    than steps. Each is one number without repeats, so that no verdict can come of it."""
    return [_of_published(figure) for figure in published() if figure.metric in METRICS]


def _grouped(items: Iterable[_Run], keys_of: Callable[[_Run], CellKeys]) -> Iterable[tuple[CellKeys, list[_Run]]]:
    """Group what has the same keys."""
    groups: dict[tuple[tuple[tuple[str, str], ...], ...], tuple[CellKeys, list[_Run]]] = {}
    for item in items:
        cell_keys = keys_of(item)
        same = tuple(tuple(sorted(keys.items())) for keys in cell_keys)
        groups.setdefault(same, (cell_keys, []))[1].append(item)
    return groups.values()


# Bench


def _of_bench(keys: CellKeys, cells: Sequence[Cell]) -> Measured:
    every = [record for cell in cells for record in cell.records]
    # What Ctrl-C stopped says nothing about the cell, where anything came to its end.
    ended = [record for record in every if record.header.ending != FailureKind.INTERRUPTED.value]
    cell = Cell(plan=cells[0].plan, records=tuple(ended or every))
    failure, runs, memory = cell.failure, cell.completed, cell.memory
    samples = runs[0].samples_per_step if runs else 1
    # The clock gives no such block; a file that someone edited may.
    damaged = DAMAGED if any(not times or min(times) <= 0 for times in cell.step_times) else ""
    figures = [] if damaged else [found for record in cell.records if (found := derived.derive(record)) is not None]
    return Measured(
        what={**keys[0], **({"data read": runs[0].data, "samples per step": str(samples)} if runs else {})},
        how=keys[1],
        around=_around(cell.records[0]),
        processes=() if damaged else tuple(tuple(time / samples for time in times) for times in cell.step_times),
        samples_per_step=samples,
        # What a process held that completed nothing is not what the workload takes.
        memory=UNCOUNTED_MEMORY if isinstance(memory, Absent) or not runs else memory,
        energy=Absent(reason=damaged) if damaged else _by_meter([(found.energy, 0) for found in figures]),
        flags=cell.flags,
        notes=tuple(dict.fromkeys(f"{cell.plan.framework}: {note}" for run in runs for note in run.notes)),
        failure=f"{failure.kind.value}: {failure.message}" if failure else damaged,
        parameters=runs[0].trainable_parameters if runs else None,
        runs=cell.records,
        command=bench_command(cell.plan),
        parity=cell.parity,
    )


def _by_meter(used: Sequence[tuple[PartEnergy | Absent, int]]) -> dict[str, tuple[float, ...]] | Absent:
    """Joules by whose energy and who says so: over a number of samples or steps, or as a Cost has it per sample.
    Absent where one of the runs has none."""
    found: dict[str, list[float]] = {}
    for energy, count in used:
        if isinstance(energy, Absent):
            return energy
        joules = energy.joules_per_sample if isinstance(energy, Cost) else energy.joules / count if count else 0.0
        found.setdefault(f"{energy.part}, {energy.source}", []).append(joules)
    return {name: tuple(values) for name, values in found.items()} or Absent(reason="it did not complete")


def _asked(plan: Plan) -> Keys:
    return {
        "workload": plan.workload,
        "workload file": plan.workload_digest,
        "mode": plan.mode.value,
        "dtype": plan.settings.dtype.value,
        "data": plan.data,
        "data from": plan.feed.value,
        **{name: word(value) for name, value in plan.params.items()},
    }


def _how(plan: Plan) -> Keys:
    settings = {name: word(getattr(plan.settings, name)) for name in plan.settings.__struct_fields__ if name != "dtype"}
    loader = plan.loader
    ahead = {name: word(getattr(loader, name)) for name in loader.__struct_fields__} if loader else {}
    world = {"processes": plan.world.label} if plan.world else {}
    return {"framework": plan.framework, "device": str(plan.device), **settings, **ahead, **world}


def _around(run: AnyRun) -> Keys:
    machine, software = run.header.machine, run.header.software
    if machine is None or software is None:
        return {}
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus)
    cores = f", {counted(machine.usable_cores, 'core')}" if machine.usable_cores else ""
    return {
        "machine": f"{machine.chip}{cores}, {machine.memory_bytes / 2**30:.0f} GiB{gpus}",
        "os": machine.os,
        "python": software.python,
        "metalmark": software.metalmark,
        **software.versions,
        **{name: value for name, value in software.environment.items() if not name.startswith(OURS)},
    }


# Trainings


def _training_keys(run: TrainingRun) -> CellKeys:
    return training_question(run), {**_how(run.plan), "workers": word(run.goal.workers)}, _around(run)


def _of_trainings(keys: CellKeys, every: Sequence[TrainingRun]) -> Measured:
    plan, goal = every[0].plan, every[0].goal
    failed = [run for run in every if run.failure is not None and run.failure.kind is not FailureKind.INTERRUPTED]
    ended = [run for run in every if run.ending in ENDED and run.epochs]
    left_out = [run for run in every if run not in ended and run not in failed]
    failure = ""
    if failed and failed[-1].failure is not None:
        failure = f"{failed[-1].failure.kind.value}: {failed[-1].failure.message}"
    elif not ended:
        failure = training_state(every[-1])
    paces = [overall_samples_s(run.epochs) for run in ended]
    setups = [run.setting for run in ended if run.setting is not None]
    memories = [derived.training_memory(run) for run in ended]
    peaks = [memory for memory in memories if not isinstance(memory, Absent)]
    notes = [f"{plan.framework}: {note}" for setup in setups for note in setup.notes]
    if left_out and ended:
        states = ", ".join(dict.fromkeys(training_state(run) for run in left_out))
        notes.append(f"{len(left_out)} of {len(every)} trainings of {plan.framework} {plan.device} left out: {states}.")
    read = ""
    if setups:
        counts = [setups[0].train_samples, setups[0].validation_samples]
        words = " + ".join("unknown" if count is None else f"{count:,}" for count in counts)
        read = f"{setups[0].data}, {words} samples"
    return Measured(
        kind=RunKind.TRAINING,
        what={**keys[0], **({"data read": read} if read else {})},
        how=keys[1],
        around=keys[2],
        speakable=frozenset({"dtype", "workload file", *plan.params}),
        processes=tuple((1 / pace,) for pace in paces if not isinstance(pace, Absent)),
        samples_per_step=int(plan.params.get("batch_size", 1)),
        memory=Memory(bytes=max(peak.bytes for peak in peaks), of=peaks[0].of) if peaks else UNCOUNTED_MEMORY,
        energy=_by_meter([(derived.training_energy(run), sum(epoch.samples for epoch in run.epochs)) for run in ended]),
        flags={flag.name: flag.evidence for run in ended for flag in flags_of(run)},
        notes=tuple(dict.fromkeys(notes)),
        failure=failure,
        parameters=setups[0].trainable_parameters if setups else None,
        runs=tuple(every),
        command=train_command(plan, goal),
        trainings=tuple(ended),
        parity=worst_verdict(ended),
    )


# Watched loops


def _loop_keys(run_and_loop: tuple[WatchedRun, str]) -> CellKeys:
    run, loop = run_and_loop
    sizes = {name: str(value) for name, value in run.params.items() if name in BATCH_SIZES}
    others = {name: str(value) for name, value in run.params.items() if name not in BATCH_SIZES | SEEDS}
    return {"loop": loop, **sizes}, {"name": run.name, **others}, _around(run)


def _of_loops(keys: CellKeys, every: Sequence[tuple[WatchedRun, str]]) -> Measured:
    loop, runs = every[0][1], [one for one, _ in every]
    times = [_step_times(one.stretches[loop]) for one in runs]
    failure = "" if all(each and min(each) > 0 for each in times) else "damaged: a run has no step, or none that lasted"
    held = [value for one in runs for series in one.telemetry.series if series.name == "process_memory"
            for value in series.values]  # fmt: skip
    waits = [one.input_wait_share(loop) for one in runs]
    endings = dict.fromkeys(f"{one.name} ({one.id}): {one.ended.value}." for one in runs if one.error)
    return Measured(
        kind=RunKind.WATCH,
        what=keys[0],
        how=keys[1],
        around=keys[2],
        speakable=frozenset(),
        processes=() if failure else tuple(map(tuple, times)),
        samples_per_step=1,
        memory=memory_used("cpu", None, held),
        energy=_by_meter([_loop_energy(one) for one in runs]),
        flags={flag.name: flag.evidence for one in runs for flag in flags_of(one)},
        notes=(*endings, *dict.fromkeys(note for one in runs for note in one.notes)),
        failure=failure,
        runs=tuple(runs),
        input_waits=tuple(wait for wait in waits if wait is not None),
    )


def _step_times(stretches: Sequence[Stretch]) -> list[float]:
    """Seconds per step of up to MOST_GROUPS parts of the loop. They are sums: the host runs ahead of the device and
    waits for it now and then, so that most single steps look faster than they are."""
    groups = min(len(stretches), MOST_GROUPS)
    edges = [len(stretches) * number // groups for number in range(groups + 1)] if groups else []
    parts = [stretches[begin:end] for begin, end in pairwise(edges)]
    return [sum(one.elapsed_s for one in part) / sum(one.steps for one in part) for part in parts]


def _loop_energy(run: WatchedRun) -> tuple[PartEnergy | Absent, int]:
    if len(run.stretches) > 1:
        return Absent(reason="a run of several loops is metered as a whole"), 0
    return derived.watched_energy(run), sum(one.steps for loop in run.stretches.values() for one in loop)


# Parity checks


def _check_keys(run: ParityRun) -> CellKeys:
    plan, base = run.plan, run.reference
    compared_with = f"{base.framework} {base.device}"
    return _asked(plan), {**_how(plan), "reference": compared_with}, _around(run)


def _of_checks(keys: CellKeys, every: Sequence[ParityRun]) -> Measured:
    newest = max(every, key=lambda run: run.started_at)
    outcome = newest.outcome
    return Measured(
        kind=RunKind.PARITY,
        what=keys[0],
        how=keys[1],
        around=keys[2],
        speakable=frozenset({"dtype", *newest.plan.params}),
        processes=(),
        samples_per_step=1,
        memory=NO_SPEED,
        energy=NO_SPEED,
        flags={flag.name: flag.evidence for flag in newest.flags},
        failure=f"{outcome.kind.value}: {outcome.message}" if isinstance(outcome, Failed) else "",
        runs=(newest,),
        check=newest,
    )


# Explanations


def _explanation_keys(run: ExplanationRun) -> CellKeys:
    if run.plan is None:
        return {"explained": run.subject}, {}, _around(run)
    return _asked(run.plan), _how(run.plan), _around(run)


def _of_explanations(keys: CellKeys, every: Sequence[ExplanationRun]) -> Measured:
    newest = sorted(every, key=lambda run: run.started_at)
    found = [run.outcome for run in newest if isinstance(run.outcome, Explained) and run.outcome.step_s > 0]
    lost = [run.outcome for run in newest if isinstance(run.outcome, Failed)]
    failure = "" if found else f"{lost[-1].kind.value}: {lost[-1].message}" if lost else "no step was timed"
    samples = (found[-1].samples_per_step or 1) if found else 1
    plan = newest[-1].plan
    return Measured(
        kind=RunKind.EXPLAIN,
        what=keys[0],
        how=keys[1],
        around=keys[2],
        speakable=frozenset({"dtype", *(plan.params if plan is not None else ())}),
        processes=tuple(tuple(time / samples for time in _asked_times(one)) for one in found),
        samples_per_step=samples,
        memory=NOT_EXPLAINED,
        energy=NOT_EXPLAINED,
        flags={flag.name: flag.evidence for run in newest for flag in run.flags},
        failure=failure,
        runs=tuple(newest),
        explained=tuple(found),
    )


def _asked_times(found: Explained) -> tuple[float, ...]:
    """Seconds per step of each block of the step as it was asked for; the median alone where no block is kept."""
    timed = {one.kind: one.samples for one in found.experiments if one.samples and min(one.samples) > 0}
    return timed.get(ExperimentKind.AS_ASKED) or timed.get(ExperimentKind.RESIDENT) or (found.step_s,)


# Tunings


def _tuning_keys(run: TuningRun) -> CellKeys:
    return {**_asked(run.plan), "goal": run.request.goal.value}, _how(run.plan), _around(run)


def _of_tunings(keys: CellKeys, every: Sequence[TuningRun]) -> Measured:
    """Return the best settings of each tuning, one value each: the trials behind it chose it, so they do not judge
    it."""
    runs = sorted(every, key=lambda run: run.started_at)
    found = [run.outcome for run in runs if isinstance(run.outcome, Tuned)]
    timed = [one for one in found if one.best.step_s]
    lost = [run.outcome for run in runs if isinstance(run.outcome, Failed)]
    failure = "" if timed else f"{lost[-1].kind.value}: {lost[-1].message}" if lost else "no step was timed"
    newest, plan = runs[-1], runs[-1].plan
    best = timed[-1].best if timed else None
    placed_on = timed[-1].placed_on if timed else str(plan.device)
    joules = [one.best.joules_per_sample for one in timed if one.best.joules_per_sample is not None]
    peak = best.peak_bytes if best is not None else None
    return Measured(
        kind=RunKind.TUNE,
        what=keys[0],
        how=keys[1],
        around=keys[2],
        speakable=frozenset({"dtype", *plan.params}),
        processes=tuple((_sample_s(one.best),) for one in timed),
        samples_per_step=(best.samples_per_step or 1) if best is not None else 1,
        memory=UNCOUNTED_MEMORY
        if peak is None
        else Memory(bytes=peak, of="process" if is_cpu(placed_on) else "device"),
        energy={placed_on: tuple(joules)} if joules and len(joules) == len(timed) else NOT_METERED,
        flags={flag.name: flag.evidence for flag in flags_of(newest)},
        failure=failure,
        runs=tuple(runs),
        command=bench_command(best.change.applied(plan)) if best is not None else "",
        parity=best.verdict if best is not None else None,
        tuned=tuple(timed),
    )


def _sample_s(rung: Rung) -> float:
    assert rung.step_s is not None
    return rung.step_s / (rung.samples_per_step or 1)


# Published figures


def _of_published(figure: PublishedFigure) -> Measured:
    batch = int(figure.params.get("batch_size", "1"))
    step_s = None if figure.value is None else figure.value / STEPS
    return Measured(
        what={"workload": figure.workload, "mode": figure.mode.value, "dtype": figure.dtype, **figure.params},
        how={"framework": figure.framework, "device": figure.device},
        processes=() if step_s is None else ((step_s / batch,),),
        samples_per_step=batch,
        memory=NOT_PUBLISHED,
        energy=NOT_PUBLISHED,
        failure="" if step_s is not None else "out of memory: as published",
        published=f"{figure.source}; {figure.note}",
    )
