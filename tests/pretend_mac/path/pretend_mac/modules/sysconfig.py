"""sysconfig on a Mac."""

from __future__ import annotations

from typing import Any

from pretend_mac import machine


def changed(_: Any) -> dict[str, Any]:
    return {"get_platform": lambda: f"macosx-11.0-{machine.scene()['architecture']}"}
