"""The blocks themselves: how widely they scatter, whether they drift, and how they compare to the first step."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.drift import drift
from metalmark.stats.summary import median_interval
from metalmark.stats.window import Window

WIDE = 0.05
PLAIN_RATIO = 1.1


def unsteady(run: Completed, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    interval = median_interval(_times(run))
    if interval is None or interval.half_share <= WIDE:
        return None
    return Flag(name="unsteady", evidence=f"the median step is known to ±{interval.half_share * 100:.0f}% only")


def drifting(run: Completed, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    """Faster counts as well: then the warm-up was too short."""
    found = drift(_times(run))
    if found is None or not found.significant:
        return None
    slower = found.slope_share > 0
    ratio = found.ratio_last_tenth_to_first if slower else 1 / found.ratio_last_tenth_to_first
    word = "slower" if slower else "faster"
    line = f"a robust line through its blocks changes by {found.slope_share * 100:+.0f}% over the run"
    if ratio < PLAIN_RATIO:
        return Flag(name="drifting", evidence=line)
    return Flag(name="drifting", evidence=f"the last tenth is {ratio:.1f}x {word} than the first; {line}")


def first_step_dominates(run: Completed, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    measured = run.measurement
    measured_s = sum(block.elapsed_s for block in measured.blocks)
    if measured.first_step_s <= measured_s:
        return None
    steps = sum(block.steps for block in measured.blocks)
    evidence = (
        f"the first step took {measured.first_step_s:.3g} s, all {steps} measured "
        f"steps together {measured_s:.3g} s: a short job would feel the first step, not this figure"
    )
    return Flag(name="first_step_dominates", evidence=evidence)


def _times(run: Completed) -> list[float]:
    return [block.elapsed_s / block.steps for block in run.measurement.blocks]
