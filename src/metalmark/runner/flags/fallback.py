"""Operations that left the accelerator for the CPU."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.window import Window

MOST_NAMES = 5


def cpu_fallback(run: Completed, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    if not run.fallbacks:
        return None
    more = len(run.fallbacks) - MOST_NAMES
    named = ", ".join(run.fallbacks[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return Flag(name="cpu_fallback", evidence=f"ran on the CPU for want of a kernel on {run.placed_on}: {named}")
