"""Installed packages as a Mac has them: the machine's own versions, and none of Linux's builds."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError
from typing import Any

LINUX_ONLY = {"tensorflow-cpu", "tensorflow_cpu", "mlx-cpu", "mlx_cpu", "nvidia-ml-py", "nvidia_ml_py"}


def changed(real: Any) -> dict[str, Any]:
    def distributions(**options: Any) -> Iterator[Distribution]:
        return (found for found in real.distributions(**options) if _name(found) not in LINUX_ONLY)

    def version(name: str) -> str:
        if name in LINUX_ONLY:
            raise PackageNotFoundError(name)
        return str(real.version(name))

    return {"distributions": distributions, "version": version}


def _name(found: Distribution) -> str:
    metadata = found.metadata
    return str(metadata["Name"]).lower() if metadata is not None and "Name" in metadata else ""
