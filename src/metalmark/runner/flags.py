"""Flags: what could spoil a figure, with evidence from the telemetry and the blocks of the measured window."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from metalmark.errors import counted
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import POWER_CAPPED, UNPROVED, Failed, Flag, Machine, Telemetry
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

OF_THE_MACHINE = ("throttled", "on_battery", "low_power_mode", "swapping", "busy_machine", "slept")
"""Flags of what the machine did beside a run, whatever it measured."""
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
POWER_CAP = "power_cap"
"""The driver's reason, as `telemetry/nvidia.py` spells it."""


def flags_of(
    outcome: Completed | Failed, telemetry: Telemetry, machine: Machine, environment: Mapping[str, str] | None = None
) -> tuple[Flag, ...]:
    """Return the flags of a measured cell."""
    if isinstance(outcome, Failed):
        return ()
    window = Window.measured(outcome, telemetry, environment)
    doubts = outcome.proof.doubts
    unproved = [Flag(name=UNPROVED, evidence="; ".join(doubts))] if doubts else []
    return (*unproved, *flags_around(window, machine), *_flags_of_blocks(outcome, window))


def flags_of_several(runs: Sequence[BenchRun]) -> tuple[Flag, ...]:
    """Return what the machine did beside any of several runs: what was seen first, and in how many of them."""
    every = [flag for run in runs for flag in run.flags if flag.name in OF_THE_MACHINE]
    found = {flag.name: flag for flag in reversed(every)}
    count = Counter(flag.name for flag in every)
    return tuple(
        Flag(name=name, evidence=f"{found[name].evidence} (in {count[name]} of {len(runs)} runs)")
        for name in OF_THE_MACHINE if name in found
    )  # fmt: skip


def flags_of_watched(run: WatchedRun) -> tuple[Flag, ...]:
    """Return the flags of a loop of the user's own. Where there are several GPUs, which one it used is not known."""
    placed_on = "gpu:0" if len(run.machine.gpus) == 1 else "cpu"
    return tuple(flags_around(Window([(0.0, run.elapsed_s)], placed_on, run.telemetry), run.machine))


def flags_around(window: Window, machine: Machine) -> Iterator[Flag]:
    """Give the flags of what the machine itself did in any window; they need no blocks of steps."""
    # Ask the hardware first, and then compare clocks, since throttling was seen with no pressure reported.
    capped = _power_capped(window)
    held_down = _said_by_gpu(window) or _said_by_system(window)
    if not capped:  # else the driver has said why the clock is lower
        held_down = held_down or _clock_fell(window) or _scaled_down(window)
    if held_down:
        yield Flag(name="throttled", evidence=held_down)
    if capped:
        yield Flag(name=POWER_CAPPED, evidence=capped)
    if any(window.held("on_battery")):
        charge = window.held("battery_charge")
        full = f", {charge[-1]:.0f}% full" if charge else ""
        yield Flag(name="on_battery", evidence=f"the machine ran on its battery{full}: plug it in")
    if any(window.held("low_power_mode")):
        evidence = "the system was set to save power, which holds the clocks down: switch low-power mode off"
        yield Flag(name="low_power_mode", evidence=evidence)
    # The system counts swapping for all processes together: it does not tell whose pages they were.
    moved_in, moved_out = window.counted("system_swap_in") or 0.0, window.counted("system_swap_out") or 0.0
    if moved_in + moved_out >= SWAPPED_BYTES:
        swapped_in, swapped_out = f"{moved_in / 2**20:,.0f} MiB", f"{moved_out / 2**20:,.0f} MiB"
        evidence = f"the machine swapped {swapped_in} in and {swapped_out} out while it was measured"
        yield Flag(name="swapping", evidence=evidence)
    # What the whole machine used, without what the worker's own processes did.
    whole, own, cores = window.values("system_cpu"), window.values("process_cpu"), machine.logical_cores
    if whole and own and cores:
        others = (median(whole) * cores - median(own)) / 100
        if others >= max(BUSY_CORES, BUSY_SHARE * cores):
            evidence = f"other processes used {others:.1f} of {counted(cores, 'core')} while it was measured"
            yield Flag(name="busy_machine", evidence=evidence)
    # After a sleep, clocks and heat start anew, and no time in the run shows it.
    if window.slept_s >= LEAST_SLEEP_S:
        slept = f"the machine slept for {window.slept_s:,.0f} s while it was measured"
        yield Flag(name="slept", evidence=f"{slept}: leave its lid open and its charger plugged in")


def _said_by_gpu(window: Window) -> str | None:
    """Heat, or a slow-down that was forced. A GPU at its power limit is another matter: a busy one is always there."""
    if window.gpu is None:
        return None
    said, prefix = window.values(f"{window.gpu}_throttle"), f"{window.gpu}_throttle_"
    reasons = [name.removeprefix(prefix) for name in window.series if name.startswith(prefix)]
    held_down = {word: sum(value > 0 for value in window.values(prefix + word)) for word in reasons}
    if not reasons:  # no reason was kept
        held_down[""] = sum(value > 0 for value in said)
    given = {word: count for word, count in held_down.items() if count and word != POWER_CAP}
    if not given:
        return None
    why = f" ({', '.join(word.replace('_', ' ') for word in given)})" if reasons else ""
    return f"the GPU's clock was held down in {max(given.values())} of {len(said)} samples{why}"


def _power_capped(window: Window) -> str | None:
    said = window.values(f"{window.gpu}_throttle_{POWER_CAP}") if window.gpu is not None else []
    capped = sum(value > 0 for value in said)
    if not capped:
        return None
    total = len(window.values(f"{window.gpu}_throttle"))
    return f"the GPU was at its power limit in {capped} of {total} samples, as a fully used GPU is"


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
    if window.gpu is not None:
        clocks = {f"{window.gpu}_clock": f"{window.gpu}_utilisation"}
    else:  # of a CPU, those of its fast cluster
        cpus = (
            name for name in window.series if name == "cpu_clock" or (name.startswith("cpu_p") and "_clock" in name)
        )
        clocks = dict.fromkeys(cpus, "process_cpu")
    for clock, used in clocks.items():
        speeds = window.values(clock)
        if len(speeds) < FEWEST_SAMPLES:
            continue
        quarter = len(speeds) // 4
        early, late = median(speeds[:quarter]), median(speeds[-quarter:])
        use = window.values(used)
        if late < FALLEN * early and use and median(use[-max(len(use) // 4, 1) :]) >= BUSY_PERCENT:
            return f"{clock} fell from {early:,.0f} to {late:,.0f} MHz while {used} stayed high"
    return None


def _scaled_down(window: Window) -> str | None:
    """Apple's GPU: its use scaled by its clock over the highest, far below its use at full load."""
    if window.gpu is None:
        return None
    active, scaled = window.values(f"{window.gpu}_utilisation"), window.values(f"{window.gpu}_scaled")
    if not active or not scaled or median(active) < BUSY_PERCENT or median(scaled) >= SCALED * median(active):
        return None
    return f"the GPU was busy for {median(active):.0f}% of the time, but at clocks worth {median(scaled):.0f}%"


def _flags_of_blocks(run: Completed, window: Window) -> Iterator[Flag]:
    blocks = run.measurement.blocks
    step_times = [block.elapsed_s / block.steps for block in blocks]
    interval = median_interval(step_times)
    if interval is not None and interval.half_share > WIDE:
        yield Flag(name="unsteady", evidence=f"the median step is known to ±{interval.half_share * 100:.1f}% only")
    # Getting faster counts as well: then the warm-up was too short.
    found = drift(step_times)
    if found is not None and found.significant:
        slower = found.slope_share > 0
        ratio = found.ratio_last_tenth_to_first if slower else 1 / found.ratio_last_tenth_to_first
        tenth = f"the last tenth is {ratio:.1f}x {'slower' if slower else 'faster'} than the first; "
        line = f"a robust line through its blocks changes by {found.slope_share * 100:+.0f}% over the run"
        yield Flag(name="drifting", evidence=line if ratio < PLAIN_RATIO else tenth + line)
    # Look at both counters: some of what Metal's allocator loses is in neither of its own.
    for what, held in memory_growth(run, window).items():
        if held.leaking:
            grown, rate = held.total_bytes / 2**20, held.bytes_per_step * 1000 / 2**20
            evidence = f"{what} grew by {grown:,.0f} MiB while it was measured, {rate:,.3g} MiB in 1,000 steps"
            yield Flag(name="leaking", evidence=evidence)
            break
    if run.fallbacks:
        more = len(run.fallbacks) - MOST_NAMES
        named = ", ".join(run.fallbacks[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        yield Flag(name="cpu_fallback", evidence=f"ran on the CPU for want of a kernel on {run.placed_on}: {named}")
    first_s, measured_s = run.measurement.first_step_s, sum(block.elapsed_s for block in blocks)
    if first_s > measured_s:
        steps = sum(block.steps for block in blocks)
        took = f"the first step took {first_s:.3g} s, all {steps} measured steps together {measured_s:.3g} s"
        evidence = f"{took}: a short job would feel the first step, not this figure"
        yield Flag(name="first_step_dominates", evidence=evidence)


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
