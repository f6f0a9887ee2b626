"""The errors that Metalmark knows: one entry each in `errors/*.toml`, and the conditions under which it is the answer.

docs/doctor.md describes the fields. The files are read when the first text is to be recognised.
"""

import operator
import re
import tomllib
from collections.abc import Callable
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from metalmark.doctor.error_pattern import ErrorPattern
from metalmark.doctor.error_text import FRAMEWORK_MODULES, ErrorText, System, may_satisfy, size_bytes
from metalmark.doctor.scene import parse_version

ERRORS = Path(__file__).with_name("errors")

_AREAS = {
    "metal": frozenset({"torch"}), "torch": frozenset({"torch"}), "tensorflow": frozenset({"tensorflow", "keras"}),
    "jax": frozenset({"jax"}), "mlx": frozenset({"mlx"}),
}  # fmt: skip
"""The framework that all entries of a file are about."""
_PROSE = ("happened", "change", "tell")
_COMPARISON = re.compile(r"(\w+)\s*(==|!=|<=|>=|<|>)\s*(\S.*)")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


class Weight(IntEnum):
    """How likely an error is the cause of what the user sees: the first is shown first."""

    CAUSE = 0
    CONSEQUENCE = 1
    """It follows from something else, which may be in the same text."""
    REMARK = 2
    """A warning that healthy runs print too."""


class FurtherCause(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another cause of the same text, less likely than those before it."""

    happened: str
    tell: str
    """How to see whether it is this one."""
    change: str
    fix: tuple[str, ...] = ()


class NumberCondition(Struct, frozen=True, kw_only=True):
    """A condition on the numbers of a message: a group of the expression, and a number or another group."""

    group: str
    sign: str
    other: str

    @classmethod
    def parse(cls, words: str) -> "NumberCondition":
        found = _COMPARISON.fullmatch(words.strip())
        if found is None:
            raise ValueError(f"{words!r} is not a comparison: write a group, one of == != < <= > >=, and a number.")
        return cls(group=found[1], sign=found[2], other=found[3].strip())

    def holds(self, groups: dict[str, str | None]) -> bool:
        """A number that is not in the text, or can't be read, fulfils no condition."""
        here, there = groups.get(self.group), groups.get(self.other, self.other)
        if here is None or there is None:
            return False
        sizes = size_bytes(here), size_bytes(there)
        if None not in sizes:
            return _OPERATORS[self.sign](*sizes)
        versions = parse_version(here), parse_version(there)
        return None not in versions and _OPERATORS[self.sign](*versions)


class KnownError(Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """One entry."""

    name: str
    patterns: tuple[str, ...]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    system: System | None = None
    """The system that the text must show."""
    system_signs: tuple[str, ...] = ()
    """Expressions that show this system too where this error is printed: any of them is enough."""
    unless_system: System | None = None
    versions: dict[str, str] = {}
    offered: str | None = None
    numbers: tuple[str, ...] = ()
    outranks: tuple[str, ...] = ()
    weight: Weight = Weight.CAUSE
    happened: str
    change: str
    fix: tuple[str, ...] = ()
    tell: str | None = None
    also: tuple[FurtherCause, ...] = ()
    source: str
    area: str = ""
    """The name of its file, without the ending."""

    def __post_init__(self) -> None:
        if self.system_signs and self.system is None:
            raise ValueError(
                'system_signs are signs of no system: write system = "mac" or system = "other" beside them'
            )
        if self.system is not None and self.system is self.unless_system:
            raise ValueError(f"system and unless_system are both {self.system.value}: no text shows that")

    @cached_property
    def expressions(self) -> tuple[ErrorPattern, ...]:
        return tuple(map(ErrorPattern, self.patterns))

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """The frameworks that it is about; none if it is about the system or any of them."""
        named = {FRAMEWORK_MODULES[word] for word in self.name.split("-") if word in FRAMEWORK_MODULES}
        return frozenset(named) or _AREAS.get(self.area, frozenset())

    @cached_property
    def conditions(self) -> tuple[NumberCondition, ...]:
        return tuple(map(NumberCondition.parse, self.numbers))

    def find(self, text: ErrorText) -> re.Match[str] | None:
        """Return where the text shows this error, if all conditions hold."""
        possible = [pattern for pattern in self.expressions if pattern.possible(text.lowered)]
        matches = [match for pattern in possible if (match := self._first(pattern, text)) is not None]
        if not matches or not self._holds(text):
            return None
        return min(matches, key=lambda match: match.start())

    def _first(self, pattern: ErrorPattern, text: ErrorText) -> re.Match[str] | None:
        for match in pattern.matches(text.text, text.lowered):
            if self._counts(match) and self._offered(match, text):
                return match
        return None

    def _counts(self, match: re.Match[str]) -> bool:
        groups = match.groupdict() if self.conditions else {}
        return all(condition.holds(groups) for condition in self.conditions)

    def _offered(self, match: re.Match[str], text: ErrorText) -> bool:
        if self.offered is None:
            return True
        offered = text.offered_near(match.start(), match.end())
        return offered is not None and offered.satisfy(self.offered)

    def _holds(self, text: ErrorText) -> bool:
        for package, specifier in self.versions.items():
            named = text.versions(package)
            if named and not any(may_satisfy(version, specifier) for version in named):
                return False
        if self.unless_system is not None and text.shows(self.unless_system):
            return False
        if not all(pattern.occurs(text.text, text.lowered) for pattern in self._needed):
            return False
        return self._on_its_system(text) and not any(
            pattern.occurs(text.text, text.lowered) for pattern in self._excluding
        )

    def _on_its_system(self, text: ErrorText) -> bool:
        if self.system is None or text.shows(self.system):
            return True
        return any(pattern.occurs(text.text, text.lowered) for pattern in self._signs)

    @cached_property
    def _needed(self) -> tuple[ErrorPattern, ...]:
        return tuple(map(ErrorPattern, self.needs))

    @cached_property
    def _signs(self) -> tuple[ErrorPattern, ...]:
        return tuple(map(ErrorPattern, self.system_signs))

    @cached_property
    def _excluding(self) -> tuple[ErrorPattern, ...]:
        return tuple(map(ErrorPattern, self.unless))


@cache
def known_errors() -> tuple[KnownError, ...]:
    return tuple(error for path in sorted(ERRORS.glob("*.toml")) for error in read_errors(path))


def read_errors(path: Path) -> list[KnownError]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["errors"]
    return [known_error(entry, area=path.stem) for entry in entries]


def known_error(entry: dict[str, Any], *, area: str = "") -> KnownError:
    """Return the entry of a table as TOML gives it: prose in one line, the weight by its name."""
    further = [{**cause, **_prose(cause)} for cause in entry.get("also", ())]
    weight = Weight[entry.get("weight", Weight.CAUSE.name).upper()]
    try:
        return msgspec.convert({**entry, **_prose(entry), "also": further, "weight": weight, "area": area}, KnownError)
    except msgspec.ValidationError as error:
        raise ValueError(f"{area}.toml, {entry.get('name', 'an entry without a name')}: {error}") from error


def _prose(entry: dict[str, Any]) -> dict[str, str]:
    return {field: " ".join(entry[field].split()) for field in _PROSE if field in entry}
