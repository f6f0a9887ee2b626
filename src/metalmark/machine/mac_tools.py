"""The commands that Metalmark gives to a Mac's own tools, each written here once.

By their full paths: a package manager's own sysctl would be found first, and /usr/sbin may not be searched.
"""

from __future__ import annotations

LEVELS = 4
"""How many kinds of cores are asked for: no chip has more than three so far."""


def _level_keys(*levels: int) -> tuple[str, ...]:
    return tuple(f"hw.perflevel{level}.{field}" for level in levels for field in ("physicalcpu", "name"))


# The surest first, because an older sysctl stops at the first key that it does not know.
SYSCTL_KEYS = (
    "machdep.cpu.brand_string",
    "hw.memsize",
    "hw.physicalcpu",
    "hw.logicalcpu",
    "vm.swapusage",
    "kern.osproductversion",
    # A whole branch: which leaves it has differs from chip to chip.
    "hw.optional",
    "kern.hv_vmm_present",
    "sysctl.proc_translated",
    "hw.nperflevels",
    *_level_keys(0, 1),
    "iogpu.wired_limit_mb",
    *_level_keys(*range(2, LEVELS)),
)

SYSCTL = ("/usr/sbin/sysctl", *SYSCTL_KEYS)
"""Exits 1 where one key is unknown, and prints the others: ask with `partial`."""
DISPLAYS = ("/usr/sbin/system_profiler", "SPDisplaysDataType", "-json")
MEMORY_PRESSURE = ("/usr/bin/memory_pressure", "-Q")
BATTERY = ("/usr/bin/pmset", "-g", "batt")
HEAT = ("/usr/bin/pmset", "-g", "therm")
POWER_SETTINGS = ("/usr/bin/pmset", "-g")
PAGING = ("/usr/bin/vm_stat",)

COMMANDS: dict[str, tuple[str, ...]] = {
    "sysctl": SYSCTL,
    "system_profiler": DISPLAYS,
    "memory_pressure -Q": MEMORY_PRESSURE,
    "pmset -g batt": BATTERY,
    "pmset -g therm": HEAT,
    "pmset -g": POWER_SETTINGS,
    "vm_stat": PAGING,
}
"""Every one that answers and ends, under the name by which the doctor speaks of it."""
