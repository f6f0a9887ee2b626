"""What a Mac's own tools print of its state, read: power, low-power mode, heat, free memory. None: unreadable."""

from __future__ import annotations

import re

from msgspec import Struct

_SOURCE = re.compile(r"drawing from '([^'\n]+)'")
_CHARGE = re.compile(r"\b(\d{1,3})%")
# Macs with a high power mode too have `powermode`: 0 automatic, 1 low, 2 high.
_LOW = re.compile(r"^\s*(?:lowpowermode|powermode)\s+(\d)\b", re.MULTILINE)
_LIMIT = re.compile(r"\bCPU_Speed_Limit\s*=\s*(\d{1,3})\b", re.IGNORECASE)
_WARNING = re.compile(
    r"^\s*(?:thermal|performance)\s+(?:warning\s+)?level\s*[:=]\s*(\d{1,6})", re.IGNORECASE | re.MULTILINE
)
_NO_WARNING = re.compile(r"No (?:thermal|performance) warning level", re.IGNORECASE)
_LIMITS = re.compile(r"\bCPU_\w+\s*=\s*\d", re.IGNORECASE)
_FREE = re.compile(r"free percentage:\s*(\d{1,3})(?:\.\d+)?\s*%")
_PERCENT = 100


class Power(Struct, frozen=True, kw_only=True):
    on_battery: bool
    percent: int | None = None


class Heat(Struct, frozen=True, kw_only=True):
    speed_limit_percent: int | None = None
    """Below 100: the system holds the processors back."""
    warning_level: int | None = None
    """0: it says that there is none."""


def parse_power(text: str) -> Power | None:
    """`pmset -g batt`: a Mac without a battery draws from AC Power and names no percentage."""
    source, charge = _SOURCE.search(text), _CHARGE.search(text)
    if source is None:
        return None
    return Power(on_battery=source[1] == "Battery Power", percent=_percent(charge))


def parse_low_power(text: str) -> bool | None:
    """`pmset -g`; Macs that have no low-power mode do not list it."""
    found = _LOW.findall(text)
    return "1" in found if found else None


def parse_heat(text: str) -> Heat | None:
    """`pmset -g therm`: only "Note: No ..." lines when all is well."""
    levels = [int(level) for level in _WARNING.findall(text)]
    none_recorded = _NO_WARNING.search(text) is not None
    if not levels and not none_recorded and not _LIMITS.search(text):
        return None
    level = max(levels) if levels else 0 if none_recorded else None
    return Heat(speed_limit_percent=_percent(_LIMIT.search(text)), warning_level=level)


def parse_free_memory(text: str) -> int | None:
    """`memory_pressure -Q`, in percent."""
    return _percent(_FREE.search(text))


def _percent(match: re.Match[str] | None) -> int | None:
    return int(match[1]) if match and int(match[1]) <= _PERCENT else None
