"""What is installed, from the packages' own metadata: importing a framework would take seconds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from metalmark.doctor.scene import OpenMp
from metalmark.scrub import printable

ASKING = (
    "torch",
    "torchvision",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-macos",
    "tensorflow-metal",
    "keras",
    "tf-keras",
    "jax",
    "jaxlib",
    "jax-metal",
    "mlx",
    "transformers",
    "scipy",
    "ml-dtypes",
)
"""The packages whose own requirements are looked at."""

_OPENMP = re.compile(r"/(lib(?:omp|iomp5|gomp)[\w.+-]*?\.(?:dylib|so[\w.]*))\b")
_VERSION_CHARS = 60


def read(found: Iterable[Distribution] | None = None) -> dict[str, Any]:
    """The parts of a Scene that installed packages decide. One that is damaged costs only itself."""
    packages: dict[str, str] = {}
    requirements: dict[str, tuple[str, ...]] = {}
    openmp: list[OpenMp] = []
    for distribution in distributions() if found is None else found:
        try:
            described = distribution.metadata
            if "Name" not in described or "Version" not in described:
                continue
            name = normalised(described["Name"])
            version = printable(described["Version"])[:_VERSION_CHARS]
            if not name or name in packages:  # the first on the path is the one that is imported
                continue
            packages[name] = version
            if name in ASKING:
                requirements[name] = tuple(distribution.requires or ())
            # Read whole: turned into paths, the list of files of four frameworks takes a second.
            record = distribution.read_text("RECORD") or ""
            libraries = dict.fromkeys(_OPENMP.findall(record))
            openmp += [OpenMp(package=name, library=library) for library in libraries]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {"packages": packages, "requirements": requirements, "openmp": (*openmp, *_of_conda())}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def _of_conda() -> Iterable[OpenMp]:
    """A conda environment keeps its libraries outside of Python's packages."""
    prefix = Path(sys.prefix)
    if not (prefix / "conda-meta").is_dir():
        return
    seen = set()
    for path in sorted((prefix / "lib").glob("lib*omp*")):
        # libgomp.so, libgomp.so.1 and libgomp.so.1.0.0 are one file; conda's libgomp is often a link to LLVM's.
        real = path.resolve()
        if _OPENMP.search(f"/{real.name}") and real not in seen:
            seen.add(real)
            yield OpenMp(package="conda", library=real.name)
