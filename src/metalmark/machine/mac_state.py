"""What a Mac's own tools print of its state, read: power, low-power mode, heat, free memory. None: unreadable."""

from __future__ import annotations

import re

from msgspec import Struct

_SOURCE = re.compile(r"drawing from '([^'\n]+)'")
# " -InternalBattery-0 (id=1)	72%; discharging; ...": a line of its own for each battery, a UPS's among them.
_CHARGE = re.compile(r"^ {0,8}-([^\n]{0,200}?)[ \t]{1,8}(\d{1,3})%", re.MULTILINE)
_INTERNAL = "InternalBattery"
_BATTERY, _UPS = "Battery Power", "UPS Power"
# Macs with a high power mode too have `powermode`: 0 automatic, 1 low, 2 high.
_LOW = re.compile(r"^[ \t]*(?:lowpowermode|powermode)[ \t]+(\d)\b", re.MULTILINE)
_LIMIT = re.compile(r"\bCPU_Speed_Limit[ \t]*=[ \t]*(\d{1,3})\b", re.IGNORECASE)
# Not at the start of its line: there stands the date.
_WARNING = re.compile(r"\b(?:thermal|performance) (?:warning )?level[ \t]*[:=][ \t]*(\d{1,6})", re.IGNORECASE)
_NO_WARNING = re.compile(r"No (?:thermal|performance) warning level", re.IGNORECASE)
_LIMITS = re.compile(r"\bCPU_\w+[ \t]*=[ \t]*\d", re.IGNORECASE)
_FREE = re.compile(r"free percentage:[ \t]*(\d{1,3})(?:\.\d{1,9})?[ \t]*%")
_PERCENT = 100


class Power(Struct, frozen=True, kw_only=True):
    on_battery: bool
    """Not on mains: on the machine's own battery, or on a UPS's."""
    percent: int | None = None
    """Charge of the machine's own battery; of the UPS's where that is the one that feeds it."""
    from_ups: bool = False
    """It is the battery of a UPS that feeds this machine."""


class Heat(Struct, frozen=True, kw_only=True):
    speed_limit_percent: int | None = None
    """Below 100: the system holds the processors back."""
    warning_level: int | None = None
    """0: it says that there is none."""


def parse_power(text: str) -> Power | None:
    """`pmset -g batt`: a Mac without a battery draws from AC Power and names no percentage; a UPS, which may be
    listed before the battery, does."""
    source = _SOURCE.search(text)
    if source is None:
        return None
    from_ups = source[1] == _UPS
    charges = [(name.startswith(_INTERNAL), _share(digits)) for name, digits in _CHARGE.findall(text)]
    own = [percent for internal, percent in charges if internal]
    others = [percent for internal, percent in charges if from_ups and not internal]
    percent = next(iter(own + others), None)
    return Power(on_battery=source[1] in (_BATTERY, _UPS), percent=percent, from_ups=from_ups)


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
    return _share(match[1]) if match else None


def _share(digits: str) -> int | None:
    return int(digits) if int(digits) <= _PERCENT else None
