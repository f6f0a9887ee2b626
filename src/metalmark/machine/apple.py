"""What a Mac's own tools are asked, and how their answers are read: its chip, its GPU and its state.

An answer that can't be read is None or an Absent with the reason, never a guess.
"""

import json
import re
from functools import cache

from msgspec import Struct

from metalmark.machine.tools import run_tool, to_count, to_name
from metalmark.model.run import Absent, Gpu

_LEVELS = 4
"""How many kinds of cores are asked for: no chip has more than three so far."""
_LEVEL_KEYS = [f"hw.perflevel{level}.{field}" for level in range(_LEVELS) for field in ("physicalcpu", "name")]

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
    *_LEVEL_KEYS[:4],
    "iogpu.wired_limit_mb",
    *_LEVEL_KEYS[4:],
)

# By their full paths: a package manager's own sysctl would be found first, and /usr/sbin may not be searched.
SYSCTL = ("/usr/sbin/sysctl", *SYSCTL_KEYS)
"""Exits 1 where one key is unknown, and prints the others: ask with `partial`."""
DISPLAYS = ("/usr/sbin/system_profiler", "SPDisplaysDataType", "-json")
COMMANDS: dict[str, tuple[str, ...]] = {
    "sysctl": SYSCTL,
    "system_profiler": DISPLAYS,
    "memory_pressure -Q": ("/usr/bin/memory_pressure", "-Q"),
    "pmset -g batt": ("/usr/bin/pmset", "-g", "batt"),
    "pmset -g therm": ("/usr/bin/pmset", "-g", "therm"),
    "pmset -g": ("/usr/bin/pmset", "-g"),
    "vm_stat": ("/usr/bin/vm_stat",),
}
"""Every command that answers and ends, under the name by which the doctor speaks of it."""

_TOOL_S = 5.0
"""`system_profiler` takes a second when it is first asked, and has been seen to hang for ever."""
_UNREADABLE = Absent("its answer can't be read: there is no list of GPUs in it")
_KEY = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+")
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){0,2}")

_SOURCE = re.compile(r"drawing from '([^'\n]+)'")
# " -InternalBattery-0 (id=1)	72%; discharging; ...": a line of its own for each battery, a UPS's among them.
_CHARGE = re.compile(r"^ {0,8}-([^\n]{0,200}?)[ \t]{1,8}(\d{1,3})%", re.MULTILINE)
# Macs with a high power mode too have `powermode`: 0 automatic, 1 low, 2 high.
_LOW = re.compile(r"^[ \t]*(?:lowpowermode|powermode)[ \t]+(\d)\b", re.MULTILINE)
_LIMIT = re.compile(r"\bCPU_Speed_Limit[ \t]*=[ \t]*(\d{1,3})\b", re.IGNORECASE)
# Not at the start of its line: there stands the date.
_WARNING = re.compile(r"\b(?:thermal|performance) (?:warning )?level[ \t]*[:=][ \t]*(\d{1,6})", re.IGNORECASE)
_NO_WARNING = re.compile(r"No (?:thermal|performance) warning level", re.IGNORECASE)
_LIMITS = re.compile(r"\bCPU_\w+[ \t]*=[ \t]*\d", re.IGNORECASE)
_FREE = re.compile(r"free percentage:[ \t]*(\d{1,3})(?:\.\d{1,9})?[ \t]*%")


class PowerSource(Struct, frozen=True, kw_only=True):
    on_battery: bool
    """Not on mains: on the machine's own battery, or on a UPS's."""
    percent: int | None = None
    """Charge of the machine's own battery; of the UPS's where that is the one that feeds it."""
    from_ups: bool = False
    """Whether the battery of a UPS feeds this machine."""


class Heat(Struct, frozen=True, kw_only=True):
    speed_limit_percent: int | None = None
    """Below 100: the system holds the processors back."""
    warning_level: int | None = None
    """0: the system says that there is no warning."""


@cache
def read_sysctl() -> dict[str, str]:
    """Return what this Mac is by sysctl; nothing where it does not answer. Cached: what changes, such as the swap
    in use, is not to be read from here."""
    text = run_tool(SYSCTL, _TOOL_S, partial=True)
    return {} if isinstance(text, Absent) else parse_sysctl(text)


def read_displays() -> tuple[Gpu, ...] | Absent:
    text = run_tool(DISPLAYS, _TOOL_S)
    return text if isinstance(text, Absent) else parse_displays(text)


def parse_sysctl(text: str) -> dict[str, str]:
    """Read lines of "key: value"; messages about unknown keys are left out."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and _KEY.fullmatch(key.strip()):
            values[key.strip()] = value.strip()
    return values


def parse_displays(json_text: str) -> tuple[Gpu, ...] | Absent:
    """Read the GPUs by `sppci_model`, since `_name` may be a key such as kHW_AppleM1Item. Displays, whose names and
    serial numbers are in there too, are left out."""
    try:
        document = json.loads(json_text)
    except (ValueError, RecursionError):
        return _UNREADABLE
    entries = document.get("SPDisplaysDataType") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return _UNREADABLE
    gpus: list[Gpu] = []
    for entry in entries:
        name = to_name(entry.get("sppci_model")) if isinstance(entry, dict) else None
        if name is not None:
            gpus.append(Gpu(name=name, cores=to_count(entry.get("sppci_cores"))))
    return tuple(gpus)


def clusters(values: dict[str, str]) -> tuple[str, ...]:
    """Return the kinds of cores, fastest first: how many, and the name the chip gives them ("8 Performance" and
    "2 Efficiency", on an M5 Max "6 Super" and "12 Performance")."""
    kinds: list[str] = []
    for level in range(_LEVELS):
        cores = to_count(values.get(f"hw.perflevel{level}.physicalcpu"))
        if cores:
            kinds.append(f"{cores} {to_name(values.get(f'hw.perflevel{level}.name')) or f'level {level}'}")
    return tuple(kinds)


def macos_version(values: dict[str, str]) -> str | None:
    """Return the version as the kernel has it. A Python that was built with an older SDK is told another one: macOS 26
    calls itself 16.0 to it (cpython#135675)."""
    version = values.get("kern.osproductversion", "")
    return version if _VERSION.fullmatch(version) else None


def is_virtual_mac(values: dict[str, str]) -> bool | None:
    return {"0": False, "1": True}.get(values.get("kern.hv_vmm_present", ""))


def parse_power(text: str) -> PowerSource | None:
    """Read `pmset -g batt`: a Mac without a battery draws from AC Power and names no percentage; a UPS, which may be
    listed before the battery, does."""
    source = _SOURCE.search(text)
    if source is None:
        return None
    from_ups = source[1] == "UPS Power"
    charges = [(name.startswith("InternalBattery"), _percent(digits)) for name, digits in _CHARGE.findall(text)]
    own = [percent for internal, percent in charges if internal]
    others = [percent for internal, percent in charges if from_ups and not internal]
    percent = next(iter(own + others), None)
    return PowerSource(on_battery=from_ups or source[1] == "Battery Power", percent=percent, from_ups=from_ups)


def parse_low_power(text: str) -> bool | None:
    """Read `pmset -g`; Macs that have no low-power mode do not list it."""
    modes = _LOW.findall(text)
    return "1" in modes if modes else None


def parse_heat(text: str) -> Heat | None:
    """Read `pmset -g therm`, which prints only "Note: No ..." lines when all is well."""
    warnings = [int(level) for level in _WARNING.findall(text)]
    none_recorded = _NO_WARNING.search(text) is not None
    if not warnings and not none_recorded and not _LIMITS.search(text):
        return None
    limit = _LIMIT.search(text)
    return Heat(
        speed_limit_percent=_percent(limit[1]) if limit else None,
        warning_level=max(warnings) if warnings else 0 if none_recorded else None,
    )


def parse_free_memory(text: str) -> int | None:
    """Read `memory_pressure -Q`, in percent."""
    free = _FREE.search(text)
    return _percent(free[1]) if free else None


def _percent(digits: str) -> int | None:
    return int(digits) if int(digits) <= 100 else None
