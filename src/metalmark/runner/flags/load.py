"""Others on the machine: their work, and memory that had to go to the disk."""

from __future__ import annotations

from metalmark.model.measurement import Completed
from metalmark.model.run import Flag, Machine
from metalmark.stats.summary import median
from metalmark.stats.window import Window

BUSY_CORES = 0.25
BUSY_SHARE = 0.05
"""Of all cores. A desktop is never idle: its windows, its indexing and our own sensors take half a core of ten, which
a measurement does not feel while the other nine are free."""
SWAPPED_BYTES = 1 << 20


def busy_machine(run: Completed | None, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    """Work of others: what the whole machine used, less the worker's own processes."""
    whole, own = window.values("system_cpu"), window.values("process_cpu")
    if not whole or not own or not machine.logical_cores:
        return None
    others = (median(whole) * machine.logical_cores - median(own)) / 100
    if others < max(BUSY_CORES, BUSY_SHARE * machine.logical_cores):
        return None
    evidence = f"other processes used {others:.1f} of {machine.logical_cores} cores while it was measured"
    return Flag(name="busy_machine", evidence=evidence)


def swapping(run: Completed | None, window: Window, machine: Machine) -> Flag | None:  # noqa: ARG001
    """The system counts for all processes: whose pages they were it does not tell."""
    moved_in, moved_out = window.counted("system_swap_in") or 0.0, window.counted("system_swap_out") or 0.0
    if moved_in + moved_out < SWAPPED_BYTES:
        return None
    evidence = f"the machine swapped {_mib(moved_in)} in and {_mib(moved_out)} out while it was measured"
    return Flag(name="swapping", evidence=evidence)


def _mib(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"
