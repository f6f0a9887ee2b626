"""A machine that fell asleep: its clocks and its heat start anew, and no time in the record shows it."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.window import Window

LEAST_S = 2.0
"""No sleep is shorter, and reading the two clocks one after the other is never so slow."""


def slept(run: Completed | None, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    if window.slept_s < LEAST_S:
        return None
    evidence = (
        f"the machine slept for {window.slept_s:,.0f} s while it was measured: "
        "leave its lid open and its charger plugged in"
    )
    return Flag(name="slept", evidence=evidence)
