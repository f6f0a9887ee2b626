"""Check and Finding: a symptom to look for in a Scene; what was seen, why it matters and what to type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

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
    """Name of the check that made it, which fills this in itself."""
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
    """The symptom in one line, for the table of checks."""
    story: str
    """The long explanation, for --explain."""
    sources: tuple[str, ...]
    examine: Examine

    def look(self, scene: Scene) -> list[Finding]:
        seen = self.examine(scene)
        if seen is None:
            return []
        return [replace(finding, check=self.name) for finding in ([seen] if isinstance(seen, Finding) else seen)]


def check(name: str, title: str, *sources: str) -> Callable[[Examine], Check]:
    """Make a Check of the function below. Its docstring is the story; `sources` are the addresses that bear it out."""

    def make(examine: Examine) -> Check:
        story = " ".join((examine.__doc__ or "").split())
        return Check(name=name, title=title, story=story, sources=sources, examine=examine)

    return make


def _finding(severity: Severity, title: str, *, evidence: str, why: str, fix: Iterable[str] = ()) -> Finding:
    return Finding(severity=severity, title=title, evidence=evidence, why=why, fix=tuple(fix))


error = partial(_finding, Severity.ERROR)
warning = partial(_finding, Severity.WARNING)
note = partial(_finding, Severity.NOTE)


def issue(repository: str, *numbers: int) -> tuple[str, ...]:
    """Return the addresses of issues, as sources are given."""
    return tuple(f"https://github.com/{repository}/issues/{number}" for number in numbers)
