"""Check and Finding: one symptom, looked for in a Scene; what was seen, why it matters, what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from metalmark.doctor.scene import Scene


class Severity(StrEnum):
    """Worst first. Errors and warnings are in the exit code; notes are not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(Struct, frozen=True, kw_only=True):
    check: str = ""
    """The name of the check that made it, which puts it there itself."""
    severity: Severity
    title: str
    evidence: str
    """What was seen on this machine."""
    why: str
    fix: tuple[str, ...] = ()
    """Lines to type; a line that can't be typed is a sentence."""


Examine = Callable[[Scene], Finding | Iterable[Finding] | None]


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    title: str
    """The symptom in a line, for the table of checks."""
    story: str
    """The whole of it, for --explain."""
    sources: tuple[str, ...] = ()
    examine: Examine

    def look(self, scene: Scene) -> list[Finding]:
        seen = self.examine(scene)
        if seen is None:
            return []
        return [replace(finding, check=self.name) for finding in ([seen] if isinstance(seen, Finding) else seen)]


def error(title: str, *, evidence: str, why: str, fix: Iterable[str] = ()) -> Finding:
    return Finding(severity=Severity.ERROR, title=title, evidence=evidence, why=why, fix=tuple(fix))


def warning(title: str, *, evidence: str, why: str, fix: Iterable[str] = ()) -> Finding:
    return Finding(severity=Severity.WARNING, title=title, evidence=evidence, why=why, fix=tuple(fix))


def note(title: str, *, evidence: str, why: str, fix: Iterable[str] = ()) -> Finding:
    return Finding(severity=Severity.NOTE, title=title, evidence=evidence, why=why, fix=tuple(fix))


def issue(repository: str, *numbers: int) -> tuple[str, ...]:
    """Addresses of issues, as sources are given."""
    return tuple(f"https://github.com/{repository}/issues/{number}" for number in numbers)
