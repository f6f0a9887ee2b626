"""tensorflow-metal's releases: which TensorFlow, which Python each loads with, and the pin that works.

`tensorflow_metal_versions.csv` names its sources. Where Apple's table and the check of the wheels' symbols disagree,
the symbols win: Apple's text gives 1.1.0 TensorFlow 2.18, whose library lacks what 1.1.0 links.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from metalmark.doctor.versions import parse

FILE = Path(__file__).with_name("tensorflow_metal_versions.csv")
SOURCES = ("https://pypi.org/project/tensorflow-metal/", "https://developer.apple.com/metal/tensorflow-plugin/")
Minor = tuple[int, int]


class Verdict(StrEnum):
    LOADS = "loads"
    FAILS = "fails"
    """Known to fail at import."""
    UNKNOWN = "unknown"
    """Outside of what anybody stated."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    version: str
    pythons: tuple[Minor, Minor]
    """Oldest and newest that have a wheel."""
    architectures: tuple[str, ...]
    tensorflow: tuple[Minor, Minor]
    """Oldest and newest it loads with."""
    fails_from: Minor | None

    def loads(self, tensorflow: Minor) -> Verdict:
        if self.fails_from is not None and tensorflow >= self.fails_from:
            return Verdict.FAILS
        oldest, newest = self.tensorflow
        return Verdict.LOADS if oldest <= tensorflow <= newest else Verdict.UNKNOWN

    def has_wheel(self, python: Minor) -> bool:
        return self.pythons[0] <= python <= self.pythons[1]

    @property
    def pin(self) -> str:
        major, minor = self.tensorflow[1]
        # Up to 2.15 the real package for a Mac was tensorflow-macos; `tensorflow` was a stub or absent.
        package = "tensorflow" if (major, minor) >= (2, 15) else "tensorflow-macos"
        return f'pip install "{package}=={major}.{minor}.*" tensorflow-metal=={self.version}'


@cache
def plugins() -> tuple[Plugin, ...]:
    """Oldest first."""
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    stated = {row["tensorflow_metal"]: _stated(row) for row in rows}
    found = []
    for row in rows:
        version = row["tensorflow_metal"]
        # Apple's table has one line a minor release: a patch release is for the same TensorFlow.
        family = [span for other, span in stated.items() if other.split(".")[:2] == version.split(".")[:2]]
        span = stated[version] or next(span for span in family if span is not None)
        tags = [int(tag) for tag in re.findall(r"cp3(\d+)", row["py_tags"])]
        fails = re.search(r"fails >=(\d+)\.(\d+)", row["static_link_check"])
        found.append(
            Plugin(
                version=version,
                pythons=((3, min(tags)), (3, max(tags))),
                architectures=tuple(row["arch"].split("+")),
                tensorflow=span,
                fails_from=(int(fails[1]), int(fails[2])) if fails else None,
            )
        )
    return tuple(found)


def find(version: str | None) -> Plugin | None:
    wanted = parse(version)
    return next((plugin for plugin in plugins() if wanted is not None and parse(plugin.version) == wanted), None)


def best(python: Minor) -> Plugin | None:
    """The newest plugin with a wheel for this Python on Apple Silicon."""
    fitting = [p for p in plugins() if p.has_wheel(python) and "arm64" in p.architectures]
    return fitting[-1] if fitting else None


def mend(python: Minor) -> tuple[str, ...]:
    """What to type for a pair that loads, with a Python that has a wheel."""
    plugin = best(python)
    if plugin is not None:
        return (plugin.pin,)
    newest = plugins()[-1]
    major, minor = newest.pythons[1]
    return (
        f"python{major}.{minor} -m venv .venv",
        newest.pin.replace("pip install", ".venv/bin/pip install"),
    )


def _stated(row: dict[str, str]) -> tuple[Minor, Minor] | None:
    """From the first of Apple's table to the last that links; either may be silent."""
    apple = re.match(r"(\d+)\.(\d+)", row["apple_table_tf"])
    linked = re.search(r"ok (\d+)\.(\d+)-(\d+)\.(\d+)", row["static_link_check"])
    minors = [(int(apple[1]), int(apple[2]))] if apple else []
    if linked:
        minors += [(int(linked[1]), int(linked[2])), (int(linked[3]), int(linked[4]))]
    return (min(minors), max(minors)) if minors else None
