"""What could spoil a number, looked for in what was recorded: each flag with its evidence."""

from __future__ import annotations

from metalmark.record import Completed, Failed, Flag, Machine, Telemetry
from metalmark.stats import median, median_interval

BUSY_CORES = 0.25
WIDE = 0.05


def flags_of(outcome: Completed | Failed, telemetry: Telemetry, machine: Machine) -> tuple[Flag, ...]:
    if isinstance(outcome, Failed):
        return ()
    found = (_busy_machine(outcome, telemetry, machine), _unsteady(outcome))
    return tuple(flag for flag in found if flag is not None)


def _busy_machine(run: Completed, telemetry: Telemetry, machine: Machine) -> Flag | None:
    """Work of others: what the whole machine used, less the worker's own processes."""
    whole, own = _measured(run, telemetry, "system_cpu"), _measured(run, telemetry, "process_cpu")
    if not whole or not own or not machine.logical_cores:
        return None
    others = (median(whole) * machine.logical_cores - median(own)) / 100
    if others < BUSY_CORES:
        return None
    evidence = f"other processes used {others:.1f} of {machine.logical_cores} cores while it was measured"
    return Flag(name="busy_machine", evidence=evidence)


def _unsteady(run: Completed) -> Flag | None:
    times = [block.elapsed_s / block.steps for block in run.measurement.blocks]
    interval = median_interval(times)
    if interval is None or interval.half_share <= WIDE:
        return None
    return Flag(name="unsteady", evidence=f"the median step is known to ±{interval.half_share * 100:.0f}% only")


def _measured(run: Completed, telemetry: Telemetry, name: str) -> list[float]:
    """A series' values inside the measured window alone."""
    begin, end = run.phases.measure_s, run.phases.end_s
    return [
        value
        for series in telemetry.series
        if series.name == name
        for at, value in zip(series.at_s, series.values, strict=True)
        if begin <= at <= end
    ]
