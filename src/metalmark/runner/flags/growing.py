"""Memory that grows from step to step: by the device's own counter, and by what the process holds."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.drift import LEAST_COUNTED_BYTES, LEAST_FOOTPRINT_BYTES, LEAST_FOOTPRINT_SHARE, Growth, growth
from metalmark.stats.summary import median
from metalmark.stats.window import Window

COUNTER = "the device's live memory"
FOOTPRINT = "the process's memory"


def leaking(run: Completed, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    """Both are looked at: some of what Metal's allocator loses is in neither of its counters."""
    for what, found in memory_growth(run, window).items():
        if found.leaking:
            evidence = (
                f"{what} grew by {found.total_bytes / 2**20:,.0f} MiB while it was measured, "
                f"{found.bytes_per_step * 1000 / 2**20:,.3g} MiB in 1,000 steps"
            )
            return Flag(name="leaking", evidence=evidence)
    return None


def memory_growth(run: Completed, window: Window) -> dict[str, Growth]:
    """By what was looked at; only what was counted is there."""
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
