"""sys on a Mac."""

from __future__ import annotations

from typing import Any


def changed(_: Any) -> dict[str, Any]:
    return {"platform": "darwin"}
