"""What the machine runs on: its battery, or a mode that saves power."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.window import Window


def on_battery(run: Completed | None, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    if not any(window.held("on_battery")):
        return None
    charge = window.held("battery_charge")
    full = f", {charge[-1]:.0f}% full" if charge else ""
    return Flag(name="on_battery", evidence=f"the machine ran on its battery{full}: plug it in")


def low_power_mode(run: Completed | None, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    if not any(window.held("low_power_mode")):
        return None
    evidence = "the system was set to save power, which holds the clocks down: switch low-power mode off"
    return Flag(name="low_power_mode", evidence=evidence)
