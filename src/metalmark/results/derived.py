"""What a record says of its measured window beyond the step: derived when shown, never stored.

A figure that is not there is Absent with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent, Machine, Telemetry
from metalmark.runner.flags.growing import memory_growth
from metalmark.stats.drift import drift
from metalmark.stats.summary import median
from metalmark.stats.window import Window
from metalmark.telemetry.energy import Energy, energy_of, parts_of

OFF = Absent(reason="telemetry was switched off")
UNUSED = Absent(reason="it used no energy")
"""A Mac's neural engine, most of the time."""


class Utilisation(Struct, frozen=True, kw_only=True):
    """The mean over the window."""

    percent: float
    of: str
    source: str


class Cost(Struct, frozen=True, kw_only=True):
    """What one part of the machine used in the window, the work of others on it counted in."""

    part: str
    joules: float
    average_w: float
    peak_w: float | Absent
    idle_w: float | Absent
    """Before the sweep began."""
    joules_per_step: float
    joules_per_sample: float
    samples_per_joule: float | Absent
    source: str
    method: str
    modelled: bool


class MemoryGrowth(Struct, frozen=True, kw_only=True):
    of: str
    bytes_per_1000_steps: float


class Derived(Struct, frozen=True, kw_only=True):
    utilisation: Utilisation | Absent
    energy: Cost | Absent
    """Of the device that it ran on."""
    others: tuple[Cost, ...]
    """Of the other parts that anything counts; some contain each other, so they do not add up."""
    growth: tuple[MemoryGrowth, ...] | Absent
    swapped_in_bytes: float | Absent
    swapped_out_bytes: float | Absent
    flops_per_s: float | Absent
    """Achieved, by an analytic count of the model's work."""
    last_tenth_to_first: float | Absent
    """Step time at the run's end over that at its beginning."""


def derive(record: BenchRun) -> Derived | None:
    """None of a run that failed."""
    run = record.outcome
    if not isinstance(run, Completed):
        return None
    window = Window(run, record.telemetry, record.software.environment)
    times = [block.elapsed_s / block.steps for block in run.measurement.blocks]
    found = drift(times)
    few = Absent(reason=f"too few blocks: {len(times)}")
    return Derived(
        utilisation=_utilisation(window, record.machine),
        energy=_device_cost(run, window, record.telemetry),
        others=_others(run, window, record.telemetry),
        growth=_growth(run, window),
        swapped_in_bytes=_swapped(window, "system_swap_in"),
        swapped_out_bytes=_swapped(window, "system_swap_out"),
        flops_per_s=_flops(run, times),
        last_tenth_to_first=found.ratio_last_tenth_to_first if found else few,
    )


def _device(window: Window) -> str:
    return window.gpu or "cpu"


def _utilisation(window: Window, machine: Machine) -> Utilisation | Absent:
    if window.off:
        return OFF
    if window.gpu is not None:
        name = f"{window.gpu}_utilisation"
        values, series = window.values(name), window.series(name)
        if not values or series is None:
            return _why_not(window, name)
        return Utilisation(percent=_mean(values), of=window.gpu, source=series.source)
    values, series = window.values("process_cpu"), window.series("process_cpu")
    if not values or series is None:
        return _why_not(window, "process_cpu")
    cores = machine.usable_cores or machine.logical_cores
    if not cores:
        return Absent(reason="how many cores there were is not recorded")
    return Utilisation(percent=_mean(values) / cores, of=f"{cores} cores", source=series.source)


def _cost(part: str, run: Completed, window: Window, telemetry: Telemetry) -> Cost | Absent:
    if window.off:
        return OFF
    used = energy_of(part, telemetry.series, window.begin_s, window.end_s)
    if not isinstance(used, Energy):
        return used
    steps = sum(block.steps for block in run.measurement.blocks)
    watts = window.values(f"{part}_power")
    return Cost(
        part=part,
        joules=used.joules,
        average_w=used.joules / (window.end_s - window.begin_s),
        peak_w=max(watts) if watts else Absent(reason=f"nothing here gives the power of {part}"),
        idle_w=telemetry.idle_w.get(part, Absent(reason="it was not measured before the run")),
        joules_per_step=used.joules / steps,
        joules_per_sample=used.joules / steps / run.samples_per_step,
        samples_per_joule=steps * run.samples_per_step / used.joules if used.joules else UNUSED,
        source=used.source,
        method=used.method,
        modelled=used.modelled,
    )


def _device_cost(run: Completed, window: Window, telemetry: Telemetry) -> Cost | Absent:
    """The cost of the device that did the work: a counter that stood still there did not count."""
    cost = _cost(_device(window), run, window, telemetry)
    if isinstance(cost, Cost) and not cost.joules:
        return Absent(reason=f"the counter of {cost.part} ({cost.source}) stood still")
    return cost


def _others(run: Completed, window: Window, telemetry: Telemetry) -> tuple[Cost, ...]:
    parts = [part for part in parts_of(telemetry.series) if part != _device(window)]
    costs = (_cost(part, run, window, telemetry) for part in parts)
    return tuple(cost for cost in costs if isinstance(cost, Cost))


def _growth(run: Completed, window: Window) -> tuple[MemoryGrowth, ...] | Absent:
    found = memory_growth(run, window)
    if not found:
        return Absent(reason="fewer than eight readings of any memory lie in the window")
    return tuple(
        MemoryGrowth(of=what, bytes_per_1000_steps=growth.bytes_per_step * 1000) for what, growth in found.items()
    )


def _swapped(window: Window, name: str) -> float | Absent:
    if window.off:
        return OFF
    counted = window.counted(name)
    return _why_not(window, name) if counted is None else counted


def _flops(run: Completed, times: Sequence[float]) -> float | Absent:
    if not run.flops_per_sample:
        return Absent(reason="this workload has no count of its work")
    return run.flops_per_sample * run.samples_per_step / median(times)


def _why_not(window: Window, name: str) -> Absent:
    if name in window.absent:
        return Absent(reason=window.absent[name])
    if window.series(name) is not None:
        return Absent(reason=f"too few readings of {name} in the measured window")
    return Absent(reason=f"nothing here gives {name}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
