"""Which version of a framework is here, as the framework itself says, else its package."""

from __future__ import annotations

from importlib import metadata
from typing import Any

UNKNOWN = "unknown"
"""Of a package whose description is damaged: it may still be imported and used."""


def version_of(package: str, module: Any = None) -> str | None:
    """Return the version that `module` tells of itself, else its package's; None where it is not installed."""
    told = getattr(module, "__version__", None)
    if isinstance(told, str) and told:
        return str(told)
    try:
        described = metadata.distribution(package).metadata
        # Asked first: from Python 3.12 on, a missing field is a warning, and later an error.
        return (described["Version"] or UNKNOWN) if "Version" in described else UNKNOWN
    except metadata.PackageNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):  # newer Pythons, where the description is missing as a whole
        return UNKNOWN
