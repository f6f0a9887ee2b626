"""WHAT is trained: one package per network. Its `__init__.py` imports no framework; each `on_*.py` imports its own."""

from __future__ import annotations

from collections.abc import Sequence

FAMILIES = ("torch", "keras", "mlx")


def builders(package: str, function: str = "build", families: Sequence[str] = FAMILIES) -> dict[str, str]:
    """Name the functions that build a package's network, one per family of frameworks, without importing any."""
    return {family: f"{package}.on_{family}:{function}" for family in families}
