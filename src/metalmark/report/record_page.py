"""How and where records were measured: what `runs show` prints under the table."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent, Failed
from metalmark.report.derived_lines import derived_lines
from metalmark.report.units import figures, seconds, share, size
from metalmark.results.ceilings import NO_CEILINGS, Ceilings
from metalmark.scrub import printable
from metalmark.stats.summary import median, spread

MOST = 12
"""More records than this are a sweep to look at in the table, not one by one."""


def record_page(records: Sequence[BenchRun], ceilings: Ceilings = NO_CEILINGS) -> str:
    lines: list[str] = []
    machines = dict.fromkeys(_machine(record) for record in records)
    lines += [f"machine: {machine}" for machine in machines]
    versions = sorted({f"{name} {value}" for record in records for name, value in record.software.versions.items()})
    pythons = sorted({record.software.python for record in records})
    lines.append(f"software: {', '.join([*versions, *(f'Python {python}' for python in pythons)])}")
    steering = sorted({f"{k}={v}" for record in records for k, v in record.software.environment.items()})
    if steering:
        lines.append(f"environment: {', '.join(steering)}")
    if len(records) <= MOST:
        for record in records:
            lines += ["", *_record(record, ceilings)]
    return printable("\n".join(lines))


def _machine(record: BenchRun) -> str:
    machine = record.machine
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus)
    return f"{machine.chip}, {machine.usable_cores} cores usable, {size(machine.memory_bytes)}{gpus}, {machine.os}"


def _record(record: BenchRun, ceilings: Ceilings) -> list[str]:
    plan = record.plan
    lines = [
        f"record {record.id}: {plan.workload} {plan.mode.value} on {plan.framework} {plan.device}, "
        f"process {record.repeat + 1}, {record.started_at[:19].replace('T', ' ')} UTC"
    ]
    if isinstance(record.outcome, Failed):
        return lines + _failed(record.outcome)
    return lines + _completed(record.outcome) + derived_lines(record, ceilings) + _telemetry(record)


def _completed(run: Completed) -> list[str]:
    measured = run.measurement
    steps = [block.elapsed_s / block.steps for block in measured.blocks]
    warm = "until steady" if measured.steady else "never steady"
    lines = [
        f"  ran on {run.placed_on} ({run.device_name}), {run.parameters:,} parameters, "
        f"{run.trainable_parameters:,} of them trainable; data: {run.data}",
        f"  step {seconds(median(steps))} in {len(steps)} blocks of {measured.blocks[0].steps}, "
        f"range {share(spread(steps))}; first step {seconds(measured.first_step_s)}; "
        f"warm-up {len(measured.warmup)} blocks, {warm}",
        f"  proof: {run.proof.statement}; {run.proof.moved} arrays changed",
    ]
    counters = {"live": run.memory.live_bytes, "driver": run.memory.driver_bytes, "peak": run.memory.peak_bytes}
    known = [f"{name} {size(value)}" for name, value in counters.items() if isinstance(value, int)]
    absent = dict.fromkeys(value.reason for value in counters.values() if isinstance(value, Absent))
    lines.append(f"  device memory: {', '.join(known) if known else ''}{'; '.join(absent)}")
    return lines


def _failed(failure: Failed) -> list[str]:
    lines = [f"  {failure.kind.value}: {failure.message}"]
    if failure.hint:
        lines.append(f"  {failure.hint}")
    return lines + [f"    | {line}" for line in failure.detail.splitlines()[-15:]]


def _telemetry(record: BenchRun) -> list[str]:
    run = record.outcome
    assert isinstance(run, Completed)
    begin, end = run.phases.measure_s, run.phases.end_s
    parts = []
    for series in record.telemetry.series:
        inside = [value for at, value in zip(series.at_s, series.values, strict=True) if begin <= at <= end]
        if inside:
            shown = size(median(inside)) if series.unit == "bytes" else f"{figures(median(inside))} {series.unit}"
            parts.append(f"{series.name} {shown}")
    lines = [f"  while measured (median): {', '.join(parts)}"] if parts else []
    lines += [f"  flag {flag.name}: {flag.evidence}" for flag in record.flags]
    return lines + [f"  no {name}: {reason}" for name, reason in record.telemetry.absent.items()]
