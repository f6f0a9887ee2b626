"""What a Mac's tools say of its state, as parts of a Scene. What can't be read is a reason, never a guess."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from metalmark.doctor.scene import Swap
from metalmark.machine import apple
from metalmark.machine.tools import run_tool, to_count
from metalmark.model.run import Absent

Run = Callable[..., str | Absent]

TOOL_S = 5.0
_SIZE = r"(\d{1,12}(?:[.,]\d{1,4})?)([KMGT]?)"
_SWAP = re.compile(rf"total *= *{_SIZE} +used *= *{_SIZE}")


class MacTool(Struct, frozen=True, kw_only=True):
    name: str
    argv: tuple[str, ...]
    partial: bool = False


def ask(tool: MacTool, run: Run = run_tool, timeout_s: float = TOOL_S) -> dict[str, Any] | Absent:
    """Return the parts of a Scene that this tool knows, or why it told nothing."""
    text = run(tool.argv, timeout_s, partial=tool.partial)
    return text if isinstance(text, Absent) else PARSERS[tool.name](text)


def read_sysctl(text: str) -> dict[str, Any] | Absent:
    values = {key: value for key, value in apple.parse_sysctl(text).items() if key in apple.SYSCTL_KEYS}
    if not values:
        return _unreadable("none of the keys it was asked for")
    found: dict[str, Any] = {"sysctl": values, "memory_bytes": to_count(values.get("hw.memsize"))}
    found["macos"] = apple.macos_version(values)
    if "vm.swapusage" in values:
        found["swap"] = parse_swap(values["vm.swapusage"])
    return found


def parse_swap(text: str) -> Swap | None:
    """ "total = 4096.00M  used = 2694.19M  free = ..."."""
    match = _SWAP.search(text)
    if match is None:
        return None
    return Swap(total_bytes=_bytes(match[1], match[2]), used_bytes=_bytes(match[3], match[4]))


def read_field(field: str, parse: Callable[[str], object], lacking: str, text: str) -> dict[str, Any] | Absent:
    value = parse(text)
    return _unreadable(lacking) if value is None else {field: value}


read_pressure = partial(read_field, "memory_free_percent", apple.parse_free_memory, "no free percentage")
read_battery = partial(read_field, "power", apple.parse_power, "no source of power")
read_heat = partial(read_field, "heat", apple.parse_heat, "neither a level nor a note that there is none")


def read_settings(text: str) -> dict[str, Any] | Absent:
    low_power = apple.parse_low_power(text)
    if low_power is not None:
        return {"low_power": low_power}
    return {} if "power settings" in text or "Currently in use" in text else _unreadable("no power settings")


PARSERS: dict[str, Callable[[str], dict[str, Any] | Absent]] = {
    "sysctl": read_sysctl,
    "memory_pressure -Q": read_pressure,
    "pmset -g batt": read_battery,
    "pmset -g therm": read_heat,
    "pmset -g": read_settings,
}

TOOLS = tuple(MacTool(name=name, argv=apple.COMMANDS[name], partial=name == "sysctl") for name in PARSERS)
"""What is asked here; `system_profiler` is asked for the machine's identity, and `vm_stat` says something only over
time."""


def _bytes(number: str, unit: str) -> int:
    scale = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[unit]
    return round(float(number.replace(",", ".")) * scale)


def _unreadable(lacking: str) -> Absent:
    return Absent(f"its answer can't be read: there is {lacking} in it")
