"""What to type and what to write for a change."""

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from metalmark.model.plan import DeviceKind, PlanChange, word


@cache
def snippets() -> Mapping[str, Mapping[str, str]]:
    """Return what to write, by change and framework."""
    return tomllib.loads(Path(__file__).with_name("changes.toml").read_text(encoding="utf-8"))


def written(name: str, framework: str, **values: object) -> str:
    """Return what to write in a script for a change; empty where there is nothing to write in that framework."""
    return snippets().get(name, {}).get(framework, "").format(**values)


def device_type(placed_on: str) -> str:
    """The type of device that settings depend on: "cpu", "cuda" or "mps"."""
    placed = placed_on.lower()
    if "cpu" in placed or not placed:
        return DeviceKind.CPU.value
    name = placed.partition(":")[0]
    if name != DeviceKind.GPU.value:
        return name
    if sys.platform == "darwin":
        return DeviceKind.MPS.value
    return DeviceKind.CUDA.value


def typed(change: PlanChange) -> str:
    """Return what to add to a command of Metalmark for a change."""
    words = []
    for name, value in {**change.settings, **change.loader, **change.params}.items():
        flag = f"--{name.replace('_', '-')}"
        words.append(f"{flag}={word(value)}" if isinstance(value, bool) and not value else flag)
        words += [] if isinstance(value, bool) else [word(value)]
    if change.feed is not None:
        words += ["--data-from", change.feed.value]
    return " ".join(words)
