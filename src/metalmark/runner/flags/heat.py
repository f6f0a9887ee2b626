"""Clocks that were held down: by heat, by a power limit, or for a reason the hardware keeps to itself."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.summary import median
from metalmark.stats.window import Window

FALLEN = 0.85
"""A clock at this share of its own early level has fallen: boost clocks wander by some percent as it is."""
BUSY_PERCENT = 80.0
SCALED = 0.7
FEWEST_SAMPLES = 8


def throttled(run: Completed | None, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    """What the hardware says of itself first; then clocks, since throttling was seen with no pressure reported."""
    evidence = _said_by_gpu(window) or _said_by_system(window) or _clock_fell(window) or _scaled_down(window)
    return Flag(name="throttled", evidence=evidence) if evidence else None


def _said_by_gpu(window: Window) -> str | None:
    if window.gpu is None:
        return None
    said = window.values(f"{window.gpu}_throttle")
    held_down = sum(value > 0 for value in said)
    if not held_down:
        return None
    prefix = f"{window.gpu}_throttle_"
    reasons = [name.removeprefix(prefix) for name in window.names if name.startswith(prefix)]
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
    """The last quarter of the window against its first; an idle GPU lowers its clock too, which is no throttling."""
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
    """Each clock with the series that says whether there was work for it; of a CPU the fast cluster's."""
    if window.gpu is not None:
        return [(f"{window.gpu}_clock", f"{window.gpu}_utilisation")]
    cpus = [name for name in window.names if name == "cpu_clock" or (name.startswith("cpu_p") and "_clock" in name)]
    return [(name, "process_cpu") for name in cpus]


def _scaled_down(window: Window) -> str | None:
    """Apple's GPU: its use scaled by its clock over the highest, far below its use at full load."""
    if window.gpu is None:
        return None
    active, scaled = window.values(f"{window.gpu}_utilisation"), window.values(f"{window.gpu}_scaled")
    if not active or not scaled or median(active) < BUSY_PERCENT or median(scaled) >= SCALED * median(active):
        return None
    return f"the GPU was busy for {median(active):.0f}% of the time, but at clocks worth {median(scaled):.0f}%"
