"""What is known of a run besides its table: facts as name and value, for a page and for `runs show`."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from metalmark.model.codec import AnyRun
from metalmark.model.explanation import Explained, ExplanationRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityRun
from metalmark.model.plan import Plan, word
from metalmark.model.run import Absent, DeviceMemory, Failed, Flag, Machine, Peak, Software
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun, WatchedScript
from metalmark.report.text.tables import spaced
from metalmark.report.text.tune_page import settings_words
from metalmark.report.text.units import (
    Known,
    count,
    duration,
    figures,
    joules,
    known,
    moment,
    reading,
    seconds,
    share,
    size,
)
from metalmark.report.text.watch_page import exit_words
from metalmark.report.text.world_page import epoch_rank_facts, rank_facts, world_words
from metalmark.results.ceilings import NO_CEILINGS, Ceilings, share_of_ceiling
from metalmark.results.derived import Cost, Derived, MemoryGrowth, derive, flags_of, parity_flags, rung_flags
from metalmark.scrub import printable
from metalmark.stats.summary import median, median_interval, spread

MOST_RUNS = 12
"""More runs than this are a sweep to look at in the table, not one by one."""
MOST_OUTPUT_LINES = 15
CORES = ("usable", "physical", "logical")


class Fact(NamedTuple):
    name: str
    value: str


def run_page(runs: Sequence[AnyRun], ceilings: Ceilings = NO_CEILINGS) -> str:
    """Return how and where runs were measured: what `runs show` prints under the table."""
    headers = [run.header for run in runs]
    machines = [header.machine for header in headers if header.machine is not None]
    lines = []
    for one in machines:
        gpus = "".join(f", {gpu.name}" for gpu in one.gpus)
        cores = "cores not known" if one.usable_cores is None else f"{count(one.usable_cores, 'core')} usable"
        lines.append(f"machine: {one.chip}, {cores}, {size(one.memory_bytes)}{gpus}, {one.os}")
    software = [header.software for header in headers if header.software is not None]
    versions = sorted({f"{name} {value}" for one in software for name, value in one.versions.items()})
    pythons = sorted({f"Python {one.python}" for one in software})
    steering = sorted({f"{name}={value}" for one in software for name, value in one.environment.items()})
    lines = [*dict.fromkeys(lines), f"software: {', '.join([*versions, *pythons])}"]
    lines += [f"environment: {', '.join(steering)}"] if steering else []
    # The trials of a tuning are many, and it is one.
    for run in runs if len(runs) <= MOST_RUNS else [run for run in runs if isinstance(run, TuningRun)]:
        lines += ["", *_run(run, ceilings)]
    return printable("\n".join(lines))


def when(run: AnyRun) -> str:
    """Where a run belongs and when it began."""
    belongs_to = run.header.sweep
    sweep = f"sweep {belongs_to}, " if belongs_to else ""
    repeat = f"repeat {run.repeat + 1}, " if sweep and isinstance(run, BenchRun | TrainingRun) else ""
    return f"{sweep}{repeat}{moment(run.started_at)} UTC"


def run_facts(run: AnyRun) -> list[Fact]:
    """What was asked for, where it ran and what came of it; not the machine and the software."""
    if isinstance(run, WatchedRun):
        shares = [(loop, run.input_wait_share(loop)) for loop in run.stretches]
        waits = [Fact(f"input wait, {loop}", share(part)) for loop, part in shares if part is not None]
        params = [Fact(name, str(value)) for name, value in run.params.items()]
        return [*params, *waits, *([] if run.script is None else _script_facts(run.script))]
    if isinstance(run, ParityRun):
        return [*plan_facts(run.plan), Fact("reference", run.reference.label), *_checked_facts(run)]
    if isinstance(run, ExplanationRun):
        return [*([] if run.plan is None else plan_facts(run.plan)), *_explained_facts(run)]
    if isinstance(run, TuningRun):
        return [*plan_facts(run.plan), *_tuned_facts(run)]
    parity = (
        [Fact("parity", f"{run.parity.verdict.value}, by check {run.parity.run}")] if run.parity is not None else []
    )
    if isinstance(run, BenchRun):
        done = _completed_facts(run.outcome) if isinstance(run.outcome, Completed) else []
        return [*plan_facts(run.plan), *done, *parity]
    facts, setting = [*plan_facts(run.plan), *parity, *(Fact(*fact) for fact in epoch_rank_facts(run))], run.setting
    if setting is not None:
        facts += [
            Fact("ran on", f"{setting.placed_on} ({setting.device_name})"),
            Fact("network", f"{setting.parameters:,} parameters, {setting.trainable_parameters:,} trained"),
        ]
    return facts + ([Fact("device memory", _memory(run.memory))] if run.memory is not None else [])


def _script_facts(script: WatchedScript) -> list[Fact]:
    """What is known of a script that was watched; what its steps are made of is in tables."""
    where = f"{script.device} ({script.device_name})" if script.device_name else script.device
    facts = [
        Fact("command", script.command),
        Fact("ended with", exit_words(script) if script.command else ""),
        Fact("frameworks", ", ".join(script.frameworks)),
        Fact("ran on", where),
        Fact("batch size", f"{script.batch_size:,}" if script.batch_size else ""),
        Fact("first step", seconds(script.first_step_s) if script.first_step_s is not None else ""),
    ]
    return [fact for fact in facts if fact.value]


def _checked_facts(run: ParityRun) -> list[Fact]:
    if not isinstance(run.outcome, Checked):
        return []
    found = run.outcome
    repeats = [Fact("repeated", f"the same step {found.repeats:,} times")] if found.repeats else []
    return [
        Fact("ran on", f"{found.placed_on} ({found.device_name}); the reference on {found.reference_placed_on}"),
        Fact("truth", found.truth),
        Fact("noise", ", ".join(found.noise)),
        *repeats,
        Fact("took", duration(found.seconds)),
    ]


def _explained_facts(run: ExplanationRun) -> list[Fact]:
    found = run.outcome
    of = [Fact("of", f"run {run.of}")] if run.of is not None else []
    if not isinstance(found, Explained):
        return of
    ran = f"{found.placed_on} ({found.device_name})" if found.device_name else found.placed_on
    return [
        *of,
        *([Fact("ran on", ran)] if ran else []),
        *([Fact("step", f"{seconds(found.step_s)} ± {seconds(found.error_s)}")] if found.step_s else []),
        *([Fact("took", duration(found.elapsed_s))] if found.elapsed_s else []),
    ]


def _tuned_facts(run: TuningRun) -> list[Fact]:
    asked, found = run.request, run.outcome
    facts = [
        Fact("goal", asked.goal.value),
        Fact("gate", "on" if asked.gate else "off: whether the best settings train the same network was not checked"),
        *([Fact("kept as they are", ", ".join(map(spaced, asked.fixed)))] if asked.fixed else []),
        *([Fact("memory limit", size(asked.memory_limit_bytes))] if asked.memory_limit_bytes is not None else []),
    ]
    if not isinstance(found, Tuned):
        return facts
    ran = f"{found.placed_on} ({found.device_name})" if found.device_name else found.placed_on
    return [
        *facts,
        *([Fact("ran on", ran)] if ran else []),
        Fact("best settings", settings_words(found.best.change) or "the baseline"),
        *([Fact("its runs", ", ".join(found.best.runs))] if found.best.runs else []),
        Fact("took", f"{duration(found.elapsed_s)} of {duration(asked.time_s)}, {count(found.trials, 'trial')}"),
    ]


def plan_facts(plan: Plan) -> list[Fact]:
    params = ", ".join(f"{spaced(name)} {word(value)}" for name, value in plan.params.items())
    changed = {name: value for name, value in plan.settings.changed().items() if name != "dtype"}
    settings = [plan.settings.dtype.value, *(f"{spaced(name)} {value}" for name, value in changed.items())]
    feed = plan.feed.value
    if plan.loader is not None:
        feed += f", {count(plan.loader.workers, 'worker')}, {count(plan.loader.prefetch, 'batch', 'batches')} ahead"
    world = [Fact("processes", world_words(plan.world))] if plan.world else []
    return [
        Fact("workload", f"{plan.workload}, {plan.mode.value}"),
        Fact("parameters", params or "none"),
        Fact("framework", f"{plan.framework} on {plan.device}"),
        *world,
        Fact("settings", ", ".join(settings)),
        Fact("data", f"{plan.data}; {feed}"),
        Fact("seed", str(plan.seed)),
    ]


def machine_facts(machine: Machine) -> list[Fact]:
    cores = [f"{getattr(machine, f'{kind}_cores')} {kind}" for kind in CORES if getattr(machine, f"{kind}_cores")]
    facts = [
        Fact("chip", f"{machine.chip}{f', {machine.variant}' if machine.variant else ''} ({machine.architecture})"),
        Fact("cores", ", ".join([*cores, *machine.clusters]) or "not known"),
        Fact("memory", size(machine.memory_bytes)),
        Fact("system", machine.os),
    ]
    for gpu in machine.gpus:
        parts = [gpu.name, *([size(gpu.memory_bytes)] if gpu.memory_bytes else [])]
        parts += [count(gpu.cores, "core")] if gpu.cores else []
        parts += [f"driver {gpu.driver}"] if gpu.driver else []
        facts += [Fact("GPU", ", ".join(parts)), *_peak(gpu.peak)]
    kinds = [("virtual machine", machine.virtual_machine), ("container", machine.container)]
    around = " and a ".join(name for name, found in kinds if found)
    more = [Fact("instructions", ", ".join(machine.features)), Fact("runs in a", around)]
    return [*facts, *(fact for fact in more if fact.value)]


def software_facts(software: Software) -> list[Fact]:
    versions = [f"{name} {version}" for name, version in software.versions.items()]
    facts = [Fact("software", ", ".join([*versions, f"Python {software.python}", f"Metalmark {software.metalmark}"]))]
    if software.environment:
        facts.append(Fact("environment", " ".join(f"{name}={value}" for name, value in software.environment.items())))
    return facts


def derived_lines(run: AnyRun, ceilings: Ceilings) -> list[str]:
    """The derived figures of a bench run: one line per question, and the reason where there is no answer."""
    derived = derive(run) if isinstance(run, BenchRun) else None
    if derived is None or not isinstance(run, BenchRun):
        return []
    swapped = {"in": derived.swapped_in_bytes, "out": derived.swapped_out_bytes}
    unknown = next((one.reason for one in swapped.values() if isinstance(one, Absent)), "")
    moved = ", ".join(f"{known(value, size)} {way}" for way, value in swapped.items())
    return [
        *_flops(run, derived, ceilings),
        _told("utilisation", derived.utilisation,
              lambda used: f"utilisation: {share(used.percent / 100)} of {used.of} ({used.source})"),
        _told("energy", derived.energy, _cost),
        *map(_cost, derived.others),
        _told("memory growth", derived.growth, _growth),
        f"swap traffic unknown: {unknown}" if unknown else f"swapped by the whole machine: {moved}",
    ]  # fmt: skip


def _told(what: str, value: Known | Absent, show: Callable[[Known], str]) -> str:
    return f"{what} unknown: {value.reason}" if isinstance(value, Absent) else show(value)


def _run(run: AnyRun, ceilings: Ceilings) -> Iterator[str]:
    header = run.header
    yield f"run {run.id}: {header.label}, {when(run)}"
    failure = failure_of(run)
    if failure is not None:
        yield f"  {failure.kind.value}: {failure.message}"
        yield from ([f"  {failure.hint}"] if failure.hint else [])
        yield from (f"    | {line}" for line in failure.detail.splitlines()[-MOST_OUTPUT_LINES:])
        return
    yield from (f"  {fact.name}: {fact.value}" for fact in run_facts(run))
    yield from (f"  {line}" for line in derived_lines(run, ceilings))
    if isinstance(run, BenchRun) and isinstance(run.outcome, Completed):
        values = [(one, window_values(one.at_s, one.values, run.outcome)) for one in run.telemetry.series]
        parts = [f"{one.name} {reading(median(read), one.unit)}" for one, read in values if read]
        yield from [f"  while measured (median): {', '.join(parts)}"] if parts else []
    yield from (f"  flag {flag.name}: {flag.evidence}" for flag in shown_flags(run))
    if isinstance(run, ParityRun) and isinstance(run.outcome, Checked) and run.outcome.diagnosis is not None:
        script = run.outcome.diagnosis.repro
        yield from (["  the script that shows it with the framework alone:"] if script else [])
        yield from (f"    | {line}" for line in script.splitlines())
    if header.telemetry is not None:
        yield from (f"  no {name}: {reason}" for name, reason in header.telemetry.absent.items())


def failure_of(run: AnyRun) -> Failed | None:
    """Why a run came to no result; None where it did, and of a watched run."""
    if isinstance(run, WatchedRun):
        return None
    ending = run.failure if isinstance(run, TrainingRun) else run.outcome
    return ending if isinstance(ending, Failed) else None


def shown_flags(run: AnyRun) -> tuple[Flag, ...]:
    """The flags that stand beside the facts of a run; those of trainings, watched runs and tunings stand below their
    tables, but for a parity check that failed."""
    if isinstance(run, BenchRun):
        return flags_of(run) if isinstance(run.outcome, Completed) else ()
    if isinstance(run, TrainingRun):
        return parity_flags(run)
    if isinstance(run, TuningRun):
        return flags_of(run) if isinstance(run.outcome, Failed) else rung_flags(run)
    return run.flags if isinstance(run, ParityRun | ExplanationRun) else ()


def window_values(at_s: Sequence[float], values: Sequence[float], run: Completed | None) -> list[float]:
    """The readings inside the measured window; all of them where no window is known."""
    if run is None:
        return list(values)
    begin, end = run.phases.measure_s, run.phases.end_s
    return [value for at, value in zip(at_s, values, strict=True) if begin <= at <= end]


def _completed_facts(run: Completed) -> list[Fact]:
    measured = run.measurement
    steps = [block.elapsed_s / block.steps for block in measured.blocks]
    facts = [Fact("ran on", f"{run.placed_on} ({run.device_name})")]
    if steps:
        interval = median_interval(steps)
        width = f" ±{share(interval.half_share)}" if interval else ", too few blocks for an interval"
        rate = figures(run.samples_per_step / median(steps))
        tokens = run.tokens_per_sample
        spoken = f", {figures(tokens * run.samples_per_step / median(steps))} tokens/s" if tokens else ""
        facts.append(Fact("step", f"{seconds(median(steps))}{width}; {rate} samples/s{spoken}"))
    warm = "until steady" if measured.steady else "never steady"
    done = f"{count(sum(block.steps for block in measured.blocks), 'step')} in {count(len(steps), 'block')}"
    done += f", range {share(spread(steps))}" if steps else ""
    facts += [Fact(*fact) for fact in rank_facts(run.world)] if run.world else []
    return [
        *facts,
        Fact("first step", seconds(measured.first_step_s)),
        Fact("measured", f"{done}; warm-up {count(len(measured.warmup), 'block')}, {warm}"),
        Fact("proof", f"{run.proof.statement}; {_arrays(run.proof.moved)}"),
        Fact("network", f"{run.parameters:,} parameters, {run.trainable_parameters:,} trained"),
        Fact("batches", f"{count(run.samples_per_step, 'sample')} per step, {run.data}{_tokens(run)}"),
        Fact("device memory", _memory(run.memory)),
    ]


def _tokens(run: Completed) -> str:
    return f", {count(run.tokens_per_sample, 'token')} per sample" if run.tokens_per_sample is not None else ""


def _arrays(moved: str) -> str:
    """How many arrays changed: "4 of 4 arrays changed"."""
    return f"{moved} {'array' if moved == '1 of 1' else 'arrays'} changed"


def _memory(memory: DeviceMemory) -> str:
    counters = {"live": memory.live_bytes, "driver": memory.driver_bytes, "peak": memory.peak_bytes}
    known = [f"{name} {size(value)}" for name, value in counters.items() if isinstance(value, int)]
    absent = dict.fromkeys(value.reason for value in counters.values() if isinstance(value, Absent))
    return "; ".join([*([", ".join(known)] if known else []), *absent])


def _peak(peak: Peak | Absent | None) -> list[Fact]:
    if not isinstance(peak, Peak):
        return [Fact("its peak", f"not known: {peak.reason}")] if isinstance(peak, Absent) else []
    parts = [f"{dtype} {figures(value / 1e12)} TFLOP/s" for dtype, value in peak.flops_per_s.items()]
    if peak.bandwidth_bytes_per_s:
        parts.append(f"memory {figures(peak.bandwidth_bytes_per_s / 1e9)} GB/s")
    return [Fact("its peak", f"{', '.join(parts)}: not measured, {peak.confidence} ({peak.source})")]


def _flops(run: BenchRun, derived: Derived, ceilings: Ceilings) -> list[str]:
    rate = derived.flops_per_s
    if isinstance(rate, Absent):
        return [f"FLOP/s unknown: {rate.reason}"]
    told = f"about {figures(rate / 1e9)} GFLOP/s, by an analytic count of the model's work"
    found = share_of_ceiling(run, rate, ceilings)
    if isinstance(found, Absent):
        return [told, f"share of the ceiling unknown: {found.reason}"]
    ceiling, part = found
    return [told, f"{share(part)} of the {figures(ceiling / 1e9)} GFLOP/s that a matrix product reached here"]


def _cost(cost: Cost) -> str:
    peak = known(cost.peak_w, lambda watts: f", {figures(watts)} W at most", "")
    idle = known(cost.idle_w, lambda watts: f", {figures(watts)} W idle before", "")
    if isinstance(cost.samples_per_joule, Absent):
        return f"energy of {cost.part}: none ({cost.source}; {cost.method})"
    # A source says itself whether it is measured or modelled, and of what.
    return (
        f"energy of {cost.part}: {figures(cost.average_w)} W on average{peak}{idle}; {joules(cost.joules_per_step)} "
        f"per step, {joules(cost.joules_per_sample)} per sample, {figures(cost.samples_per_joule)} samples per joule "
        f"({cost.source}; {cost.method})"
    )


def _growth(growth: Sequence[MemoryGrowth]) -> str:
    rates = [(one.bytes_per_1000_steps, one.of) for one in growth]
    parts = [f"{'-' if rate < 0 else ''}{size(abs(rate))} in {of}" for rate, of in rates]
    return f"memory growth in 1,000 steps: {', '.join(parts)}"
