"""What a Mac says about itself: `sysctl` for the chip, `system_profiler` for the GPU."""

from __future__ import annotations

import json
import re

from metalmark.machine.tools import run_tool
from metalmark.machine.words import to_count, to_name
from metalmark.record import Absent, Gpu

_KEY = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+")
_LEVELS = 4

# In this order, because an older sysctl stops at the first key that it does not know.
_KEYS = (
    "machdep.cpu.brand_string",
    "hw.memsize",
    "hw.physicalcpu",
    "hw.logicalcpu",
    # A whole branch: which leaves it has differs from chip to chip.
    "hw.optional",
    "kern.hv_vmm_present",
    "sysctl.proc_translated",
    "hw.nperflevels",
    *(f"hw.perflevel{level}.{field}" for level in range(_LEVELS) for field in ("physicalcpu", "name")),
)


def read_sysctl() -> dict[str, str]:
    # By their full paths: a package manager's own sysctl would be found first, and /usr/sbin may not be searched.
    text = run_tool(["/usr/sbin/sysctl", *_KEYS], 5.0, partial=True)
    return {} if isinstance(text, Absent) else parse_sysctl(text)


def read_displays() -> tuple[Gpu, ...]:
    text = run_tool(["/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"], 20.0)
    return () if isinstance(text, Absent) else parse_displays(text)


def parse_sysctl(text: str) -> dict[str, str]:
    """Lines of "key: value"; messages about unknown keys are not among them."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and _KEY.fullmatch(key.strip()):
            values[key.strip()] = value.strip()
    return values


def parse_displays(json_text: str) -> tuple[Gpu, ...]:
    """The GPUs, by `sppci_model`: `_name` may be a key such as kHW_AppleM1Item. Displays, whose names and
    serial numbers are in there too, are left alone."""
    try:
        document = json.loads(json_text)
    except (ValueError, RecursionError):
        return ()
    entries = document.get("SPDisplaysDataType") if isinstance(document, dict) else None
    gpus: list[Gpu] = []
    for entry in entries if isinstance(entries, list) else ():
        name = to_name(entry.get("sppci_model")) if isinstance(entry, dict) else None
        if name is not None:
            gpus.append(Gpu(name=name, cores=to_count(entry.get("sppci_cores"))))
    return tuple(gpus)


def clusters(values: dict[str, str]) -> tuple[str, ...]:
    """The kinds of cores, fastest first, under the names the chip gives them: ("8 Performance", "2 Efficiency")."""
    found: list[str] = []
    for level in range(_LEVELS):
        cores = to_count(values.get(f"hw.perflevel{level}.physicalcpu"))
        if cores:
            found.append(f"{cores} {to_name(values.get(f'hw.perflevel{level}.name')) or f'level {level}'}")
    return tuple(found)
