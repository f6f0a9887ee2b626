"""One record as a section of a page: what was asked, where it ran, what came of it, and what could spoil it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent, Failed, Series, Telemetry
from metalmark.report.derived_lines import derived_lines
from metalmark.report.html.facts import Fact, facts_block, machine_facts, plan_facts, software_facts
from metalmark.report.html.page import render
from metalmark.report.html.tables import Column, Kind, Value, table
from metalmark.report.units import figures as three_figures
from metalmark.report.units import seconds, share, size
from metalmark.results.ceilings import NO_CEILINGS, Ceilings
from metalmark.stats.summary import median, median_interval, samples_per_second

if TYPE_CHECKING:
    from markupsafe import Markup

SERIES = (
    Column(name="series"),
    Column(name="from"),
    Column(name="readings", kind=Kind.NUMBER),
    Column(name="least", kind=Kind.NUMBER),
    Column(name="median", kind=Kind.NUMBER),
    Column(name="most", kind=Kind.NUMBER),
)


def record_section(
    record: BenchRun,
    *,
    ceilings: Ceilings = NO_CEILINGS,
    figures: Sequence[Markup] = (),
    machine: bool = True,
    level: int = 2,
) -> Markup:
    """`figures`: drawn by charts/, as figure blocks. `machine`: False where the page says it already."""
    plan, run = record.plan, record.outcome
    done = run if isinstance(run, Completed) else None
    blocks = [facts_block(plan_facts(plan))]
    if done is not None:
        blocks.append(facts_block(completed_facts(done)))
    if machine:
        blocks.append(facts_block(machine_facts(record.machine)))
    blocks.append(facts_block(software_facts(record.software)))
    said = [line.strip() for line in derived_lines(record, ceilings)]
    return render(
        "record.html",
        anchor=f"run-{record.id}",
        level=level,
        heading=heading(record),
        id=record.id,
        when=f"sweep {record.sweep}, process {record.repeat + 1}, {record.started_at[:19].replace('T', ' ')} UTC",
        failure=run if isinstance(run, Failed) else None,
        flags=record.flags,
        blocks=blocks,
        notes=[*said, *(done.notes if done else ()), *_fallbacks(done)],
        figures=figures,
        telemetry=telemetry_table(record.telemetry, done),
    )


def heading(record: BenchRun) -> str:
    plan = record.plan
    batch = f", batch {plan.params['batch_size']}" if "batch_size" in plan.params else ""
    return f"{plan.workload} {plan.mode.value} on {plan.framework} {plan.device}{batch}"


def completed_facts(run: Completed) -> list[Fact]:
    measured = run.measurement
    steps = [block.elapsed_s / block.steps for block in measured.blocks]
    facts = [Fact("ran on", f"{run.placed_on} ({run.device_name})")]
    if steps:
        found = median_interval(steps)
        width = f" ±{share(found.half_share)}" if found else ", too few blocks for an interval"
        pace = three_figures(samples_per_second(run.samples_per_step, median(steps)))
        facts.append(Fact("step", f"{seconds(median(steps))}{width}; {pace} samples/s"))
    warm = "until steady" if measured.steady else "never steady"
    facts += [
        Fact("first step", seconds(measured.first_step_s)),
        Fact("measured", f"{sum(b.steps for b in measured.blocks):,} steps in {len(steps)} blocks; "
             f"warm-up {len(measured.warmup)} blocks, {warm}"),
        Fact("proof", f"{run.proof.statement}; {run.proof.moved} arrays changed"),
        Fact("network", f"{run.parameters:,} parameters, {run.trainable_parameters:,} trained"),
        Fact("batches", f"{run.samples_per_step:,} samples a step of {run.data}"),
        Fact("device memory", _memory(run)),
    ]  # fmt: skip
    return facts


def telemetry_table(telemetry: Telemetry, run: Completed | None = None) -> Markup:
    """Over the measured window where it is known, else over all that was sampled."""
    rows = [_series(one, run) for one in telemetry.series]
    absent = [f"no {name}: {reason}" for name, reason in telemetry.absent.items()]
    if not rows:
        why = "Telemetry was switched off." if telemetry.hz is None else "No sensor gave a reading."
        return render("notes.html", notes=[why, *absent])
    when = "in the measured window" if run is not None else "over the whole run"
    return table(SERIES, rows, caption=f"What the sensors read {when}", notes=absent)


def _series(series: Series, run: Completed | None) -> list[str | Value]:
    values = list(series.values)
    if run is not None:
        begin, end = run.phases.measure_s, run.phases.end_s
        values = [value for at, value in zip(series.at_s, series.values, strict=True) if begin <= at <= end]
    name = series.name.replace("_", " ")
    if not values:
        return [name, series.source, "0", "", "", ""]
    shown = (min(values), median(values), max(values))
    return [name, series.source, str(len(values)), *(Value(text=_value(v, series.unit), sort=float(v)) for v in shown)]


def _value(value: float, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{three_figures(value)} {unit}".rstrip()


def _memory(run: Completed) -> str:
    counters = {"live": run.memory.live_bytes, "driver": run.memory.driver_bytes, "peak": run.memory.peak_bytes}
    known = [f"{name} {size(value)}" for name, value in counters.items() if isinstance(value, int)]
    absent = dict.fromkeys(value.reason for value in counters.values() if isinstance(value, Absent))
    return "; ".join([*([", ".join(known)] if known else []), *absent])


def _fallbacks(run: Completed | None) -> list[str]:
    return [f"on the CPU for want of a kernel: {', '.join(run.fallbacks)}"] if run and run.fallbacks else []
