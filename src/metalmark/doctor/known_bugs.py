"""Versions with known wrong results on a device the user has."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from metalmark.doctor.check import Finding, Severity, check
from metalmark.doctor.scene import Scene, at_least, older

KNOWN_BUGS = Path(__file__).with_name("known_bugs.toml")


class KnownBug(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `known_bugs.toml`, whose first lines describe the fields."""

    framework: str = "torch"
    device: str = "mps"
    title: str
    affects: str
    avoid: tuple[str, ...]
    sources: tuple[str, ...]
    first: str | None = None
    fixed: str | None = None
    severity: Severity = Severity.NOTE
    unless: tuple[str, str] | None = None

    def concerns(self, scene: Scene) -> bool:
        version = scene.version(self.framework)
        if version is None or not scene.present(self.framework, self.device):
            return False
        if self.unless is not None and scene.environment.get(self.unless[0]) == self.unless[1]:
            return False
        begun = self.first is None or at_least(version, self.first)
        return begun and (self.fixed is None or older(version, self.fixed))


BUGS = msgspec.convert(tomllib.loads(KNOWN_BUGS.read_text(encoding="utf-8"))["bugs"], tuple[KnownBug, ...])


@check("known-wrong-results", *dict.fromkeys(source for bug in BUGS for source in bug.sources))
def known_bugs(scene: Scene) -> Iterator[Finding]:
    for bug in BUGS:
        if bug.concerns(scene):
            yield Finding(
                severity=bug.severity,
                title=bug.title,
                evidence=f"{bug.framework} {scene.version(bug.framework)} with {bug.device}",
                why=f"{' '.join(bug.affects.split())} See {', '.join(bug.sources)}.",
                fix=bug.avoid,
            )
