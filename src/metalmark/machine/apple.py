"""What a Mac says about itself: `sysctl` for the chip, `system_profiler` for the GPU."""

from __future__ import annotations

import json
import re
from functools import cache

from metalmark.machine.mac_tools import DISPLAYS, LEVELS, SYSCTL
from metalmark.machine.tools import run_tool
from metalmark.machine.words import to_count, to_name
from metalmark.model.run import Absent, Gpu

_UNREADABLE = Absent("its answer can't be read: there is no list of GPUs in it")
_KEY = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+")
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){0,2}")
_SYSCTL_S = 5.0
_DISPLAYS_S = 5.0
"""It takes a second when it is first asked, and has been seen to hang for ever."""


@cache
def read_sysctl() -> dict[str, str]:
    """Return what this Mac is by sysctl; nothing where it does not answer. Cached: what changes, such as the swap
    in use, is not to be read from here."""
    text = run_tool(SYSCTL, _SYSCTL_S, partial=True)
    return {} if isinstance(text, Absent) else parse_sysctl(text)


def read_displays() -> tuple[Gpu, ...] | Absent:
    text = run_tool(DISPLAYS, _DISPLAYS_S)
    return text if isinstance(text, Absent) else parse_displays(text)


def parse_sysctl(text: str) -> dict[str, str]:
    """Lines of "key: value"; messages about unknown keys are not among them."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and _KEY.fullmatch(key.strip()):
            values[key.strip()] = value.strip()
    return values


def parse_displays(json_text: str) -> tuple[Gpu, ...] | Absent:
    """The GPUs, by `sppci_model`: `_name` may be a key such as kHW_AppleM1Item. Displays, whose names and
    serial numbers are in there too, are left alone."""
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


def levels(values: dict[str, str]) -> tuple[tuple[int, str], ...]:
    """The kinds of cores, fastest first: how many, and the name the chip gives them ("Performance" and "Efficiency",
    on an M5 Max "Super" and "Performance")."""
    found: list[tuple[int, str]] = []
    for level in range(LEVELS):
        cores = to_count(values.get(f"hw.perflevel{level}.physicalcpu"))
        if cores:
            found.append((cores, to_name(values.get(f"hw.perflevel{level}.name")) or f"level {level}"))
    return tuple(found)


def clusters(values: dict[str, str]) -> tuple[str, ...]:
    """The same in words: ("8 Performance", "2 Efficiency")."""
    return tuple(f"{cores} {name}" for cores, name in levels(values))


def macos_version(values: dict[str, str]) -> str | None:
    """The version as the kernel has it. A Python that was built with an older SDK is told another one: macOS 26
    calls itself 16.0 to it (cpython#135675)."""
    version = values.get("kern.osproductversion", "")
    return version if _VERSION.fullmatch(version) else None
