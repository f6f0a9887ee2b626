"""What the machine's file says of the Mac that this process pretends to be on."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any


@cache
def folder() -> Path:
    return Path(os.environ["PRETEND_MAC"])


@cache
def scene() -> dict[str, Any]:
    """The part of the bundle that says what the doctor saw."""
    found: dict[str, Any] = json.loads((folder() / "machine.json").read_bytes())["scene"]
    return found


@cache
def sysctl() -> dict[str, str]:
    found: dict[str, str] = json.loads((folder() / "sysctl.json").read_bytes())
    return found


def cores() -> int:
    return int(sysctl().get("hw.logicalcpu", "8"))


def physical_cores() -> int:
    return int(sysctl().get("hw.physicalcpu", "8"))


def memory_bytes() -> int:
    return int(sysctl()["hw.memsize"])


def gpu_name() -> str:
    gpus = (scene().get("machine") or {}).get("gpus") or [{}]
    return str(gpus[0].get("name", "Apple GPU"))


def has_metal(framework: str) -> bool:
    """Whether the framework's probe found Metal on that machine."""
    probe = (scene().get("probes") or {}).get(framework) or {}
    return any(device["word"] == "mps" and device["present"] for device in probe.get("devices", ()))


def virtual() -> bool:
    return sysctl().get("kern.hv_vmm_present") == "1"


def package(name: str) -> str | None:
    version: str | None = scene().get("packages", {}).get(name)
    return version


def slept_s() -> float:
    """How long the machine has slept since it was made; a test writes it while a command runs."""
    try:
        return float((folder() / "slept").read_text())
    except (OSError, ValueError):
        return 0.0
