"""Version numbers that may be nonsense: what can't be read is unknown, and unknown is never older or newer."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def parse(text: str | None) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def release(text: str | None) -> tuple[int, int] | None:
    """Major and minor: (2, 19) of "2.19.0+cpu"."""
    version = parse(text)
    return (version.major, version.minor) if version else None


def at_least(text: str | None, oldest: str) -> bool:
    version = parse(text)
    return version is not None and version >= Version(oldest)


def older(text: str | None, first: str) -> bool:
    version = parse(text)
    return version is not None and version < Version(first)
