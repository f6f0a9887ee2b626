"""Flags: what could spoil a figure, with evidence from the telemetry and the blocks of the measured window."""

from __future__ import annotations

from collections.abc import Mapping

from metalmark.model.measurement import Completed
from metalmark.model.run import Failed, Flag, Machine, Telemetry
from metalmark.model.watch import WatchedRun
from metalmark.stats.drift import (
    LEAST_COUNTED_BYTES,
    LEAST_FOOTPRINT_BYTES,
    LEAST_FOOTPRINT_SHARE,
    Growth,
    drift,
    growth,
)
from metalmark.stats.summary import median, median_interval
from metalmark.stats.window import Window

FALLEN = 0.85
"""A clock at this share of its own early level has fallen: boost clocks vary by some percent as it is."""
BUSY_PERCENT = 80.0
SCALED = 0.7
FEWEST_SAMPLES = 8
BUSY_CORES = 0.25
BUSY_SHARE = 0.05
"""Share of all cores. A desktop is never idle: its windows, its indexing and our own sensors take half a core of ten,
which a measurement does not feel while the other nine are free."""
SWAPPED_BYTES = 1 << 20
LEAST_SLEEP_S = 2.0
"""No sleep is shorter, and reading the two clocks one after the other never takes this long."""
WIDE = 0.05
PLAIN_RATIO = 1.1
COUNTER = "the device's live memory"
FOOTPRINT = "the process's memory"
MOST_NAMES = 5


def flags_of(
    outcome: Completed | Failed, telemetry: Telemetry, machine: Machine, environment: Mapping[str, str] | None = None
) -> tuple[Flag, ...]:
    """Return the flags of a measured cell."""
    if isinstance(outcome, Failed):
        return ()
    window = Window.measured(outcome, telemetry, environment)
    return flags_around(window, machine) + _flags(
        unsteady=unsteady(outcome),
        drifting=drifting(outcome),
        leaking=leaking(outcome, window),
        cpu_fallback=cpu_fallback(outcome),
        first_step_dominates=first_step_dominates(outcome),
    )


def flags_around(window: Window, machine: Machine) -> tuple[Flag, ...]:
    """Return the flags of what the machine itself did in any window; they need no blocks of steps."""
    return _flags(
        throttled=throttled(window),
        on_battery=on_battery(window),
        low_power_mode=low_power_mode(window),
        swapping=swapping(window),
        busy_machine=busy_machine(window, machine),
        slept=slept(window),
    )


def flags_of_watched(run: WatchedRun) -> tuple[Flag, ...]:
    """Return the flags of a loop of the user's own. Where there are several GPUs, which one it used is not known."""
    placed_on = "gpu:0" if len(run.machine.gpus) == 1 else "cpu"
    return flags_around(Window([(0.0, run.elapsed_s)], placed_on, run.telemetry), run.machine)


def _flags(**evidence: str | None) -> tuple[Flag, ...]:
    return tuple(Flag(name=name, evidence=seen) for name, seen in evidence.items() if seen)


# What the machine did. Each function returns its evidence, or None.


def throttled(window: Window) -> str | None:
    """Ask the hardware first, and then compare clocks, since throttling was seen with no pressure reported."""
    return _said_by_gpu(window) or _said_by_system(window) or _clock_fell(window) or _scaled_down(window)


def _said_by_gpu(window: Window) -> str | None:
    if window.gpu is None:
        return None
    said = window.values(f"{window.gpu}_throttle")
    held_down = sum(value > 0 for value in said)
    if not held_down:
        return None
    prefix = f"{window.gpu}_throttle_"
    reasons = [name.removeprefix(prefix) for name in window.series if name.startswith(prefix)]
    given = [reason.replace("_", " ") for reason in reasons if any(window.values(prefix + reason))]
    why = f" ({', '.join(given)})" if given else ""
    return f"the GPU's clock was held down in {held_down} of {len(said)} samples{why}"


def _said_by_system(window: Window) -> str | None:
    limits = window.held("cpu_speed_limit")
    if limits and min(limits) < 100:
        return f"the system let the CPU run at {min(limits):.0f}% of its speed (CPU_Speed_Limit)"
    if any(window.held("thermal_pressure")):
        return "the system's thermal pressure was not nominal"
    if any(window.held("thermal_warning")):
        return "the system had recorded a thermal warning"
    return None


def _clock_fell(window: Window) -> str | None:
    """Compare the window's last quarter with its first. An idle GPU lowers its clock too, which is not throttling."""
    for clock, used in _clocks(window):
        speeds = window.values(clock)
        if len(speeds) < FEWEST_SAMPLES:
            continue
        quarter = len(speeds) // 4
        early, late = median(speeds[:quarter]), median(speeds[-quarter:])
        use = window.values(used)
        if late < FALLEN * early and use and median(use[-max(len(use) // 4, 1) :]) >= BUSY_PERCENT:
            return f"{clock} fell from {early:,.0f} to {late:,.0f} MHz while {used} stayed high"
    return None


def _clocks(window: Window) -> list[tuple[str, str]]:
    """Return each clock with the series that says whether there was work for it; of a CPU, its fast cluster's."""
    if window.gpu is not None:
        return [(f"{window.gpu}_clock", f"{window.gpu}_utilisation")]
    cpus = [name for name in window.series if name == "cpu_clock" or (name.startswith("cpu_p") and "_clock" in name)]
    return [(name, "process_cpu") for name in cpus]


def _scaled_down(window: Window) -> str | None:
    """Apple's GPU: its use scaled by its clock over the highest, far below its use at full load."""
    if window.gpu is None:
        return None
    active, scaled = window.values(f"{window.gpu}_utilisation"), window.values(f"{window.gpu}_scaled")
    if not active or not scaled or median(active) < BUSY_PERCENT or median(scaled) >= SCALED * median(active):
        return None
    return f"the GPU was busy for {median(active):.0f}% of the time, but at clocks worth {median(scaled):.0f}%"


def on_battery(window: Window) -> str | None:
    if not any(window.held("on_battery")):
        return None
    charge = window.held("battery_charge")
    full = f", {charge[-1]:.0f}% full" if charge else ""
    return f"the machine ran on its battery{full}: plug it in"


def low_power_mode(window: Window) -> str | None:
    if not any(window.held("low_power_mode")):
        return None
    return "the system was set to save power, which holds the clocks down: switch low-power mode off"


def swapping(window: Window) -> str | None:
    """The system counts swapping for all processes together: it does not tell whose pages they were."""
    moved_in, moved_out = window.counted("system_swap_in") or 0.0, window.counted("system_swap_out") or 0.0
    if moved_in + moved_out < SWAPPED_BYTES:
        return None
    swapped_in, swapped_out = f"{moved_in / 2**20:,.0f} MiB", f"{moved_out / 2**20:,.0f} MiB"
    return f"the machine swapped {swapped_in} in and {swapped_out} out while it was measured"


def busy_machine(window: Window, machine: Machine) -> str | None:
    """Compare what the whole machine used with what the worker's own processes did."""
    whole, own = window.values("system_cpu"), window.values("process_cpu")
    if not whole or not own or not machine.logical_cores:
        return None
    others = (median(whole) * machine.logical_cores - median(own)) / 100
    if others < max(BUSY_CORES, BUSY_SHARE * machine.logical_cores):
        return None
    return f"other processes used {others:.1f} of {machine.logical_cores} cores while it was measured"


def slept(window: Window) -> str | None:
    """After a sleep, clocks and heat start anew, and no time in the run shows it."""
    if window.slept_s < LEAST_SLEEP_S:
        return None
    return (
        f"the machine slept for {window.slept_s:,.0f} s while it was measured: "
        "leave its lid open and its charger plugged in"
    )


# What the blocks of steps show.


def unsteady(run: Completed) -> str | None:
    interval = median_interval(_step_times(run))
    if interval is None or interval.half_share <= WIDE:
        return None
    return f"the median step is known to ±{interval.half_share * 100:.0f}% only"


def drifting(run: Completed) -> str | None:
    """Getting faster counts as well: then the warm-up was too short."""
    found = drift(_step_times(run))
    if found is None or not found.significant:
        return None
    slower = found.slope_share > 0
    ratio = found.ratio_last_tenth_to_first if slower else 1 / found.ratio_last_tenth_to_first
    line = f"a robust line through its blocks changes by {found.slope_share * 100:+.0f}% over the run"
    if ratio < PLAIN_RATIO:
        return line
    return f"the last tenth is {ratio:.1f}x {'slower' if slower else 'faster'} than the first; {line}"


def leaking(run: Completed, window: Window) -> str | None:
    """Look at both counters: some of what Metal's allocator loses is in neither of its own."""
    for what, found in memory_growth(run, window).items():
        if found.leaking:
            return (
                f"{what} grew by {found.total_bytes / 2**20:,.0f} MiB while it was measured, "
                f"{found.bytes_per_step * 1000 / 2**20:,.3g} MiB in 1,000 steps"
            )
    return None


def memory_growth(run: Completed, window: Window) -> dict[str, Growth]:
    """Return how memory grew from step to step, by the device's counter and by what the process holds, where known."""
    found = {COUNTER: _counted(run), FOOTPRINT: _footprint(run, window)}
    return {what: seen for what, seen in found.items() if seen is not None}


def _counted(run: Completed) -> Growth | None:
    steps: list[float] = []
    held: list[float] = []
    done = 0
    for block in run.measurement.blocks:
        done += block.steps
        if block.live_bytes is not None:
            steps.append(done)
            held.append(block.live_bytes)
    return growth(steps, held, least_bytes=LEAST_COUNTED_BYTES)


def _footprint(run: Completed, window: Window) -> Growth | None:
    samples = window.inside("process_memory")
    if not samples:
        return None
    blocks = run.measurement.blocks
    step_s = sum(block.elapsed_s for block in blocks) / sum(block.steps for block in blocks)
    steps = [(at_s - window.begin_s) / step_s for at_s, _ in samples]
    held = [value for _, value in samples]
    least_bytes = max(LEAST_FOOTPRINT_BYTES, LEAST_FOOTPRINT_SHARE * median(held))
    return growth(steps, held, least_bytes=least_bytes)


def cpu_fallback(run: Completed) -> str | None:
    if not run.fallbacks:
        return None
    more = len(run.fallbacks) - MOST_NAMES
    named = ", ".join(run.fallbacks[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"ran on the CPU for want of a kernel on {run.placed_on}: {named}"


def first_step_dominates(run: Completed) -> str | None:
    measured = run.measurement
    measured_s = sum(block.elapsed_s for block in measured.blocks)
    if measured.first_step_s <= measured_s:
        return None
    steps = sum(block.steps for block in measured.blocks)
    return (
        f"the first step took {measured.first_step_s:.3g} s, all {steps} measured "
        f"steps together {measured_s:.3g} s: a short job would feel the first step, not this figure"
    )


def _step_times(run: Completed) -> list[float]:
    return [block.elapsed_s / block.steps for block in run.measurement.blocks]
