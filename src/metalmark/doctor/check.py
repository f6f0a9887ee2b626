"""Check and Finding: a symptom to look for in a Scene; what was seen, why it matters and what to type."""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from metalmark.doctor.scene import Scene

CHECK_TEXTS = Path(__file__).with_name("checks.toml")


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


@cache
def check_texts() -> dict[str, dict[str, Any]]:
    """Return what `checks.toml` says of each check: its title, its story and its sources."""
    return tomllib.loads(CHECK_TEXTS.read_text(encoding="utf-8"))


def check(name: str, *sources: str) -> Callable[[Examine], Check]:
    """Make a Check of the function below, with its entry in `checks.toml`; `sources` are added to those given there."""
    entry = check_texts()[name]
    story = " ".join(entry["story"].split())
    return lambda examine: Check(
        name=name, title=entry["title"], story=story, sources=(*entry.get("sources", ()), *sources), examine=examine
    )


def _finding(severity: Severity, title: str, *, evidence: str, why: str, fix: Iterable[str]) -> Finding:
    return Finding(severity=severity, title=title, evidence=evidence, why=why, fix=tuple(fix))


error = partial(_finding, Severity.ERROR)
warning = partial(_finding, Severity.WARNING)
note = partial(_finding, Severity.NOTE)
