"""What a chip could do at best: peak arithmetic and memory bandwidth, from `chips.csv`.

Each row there has its source and how far to trust it; nothing in it was measured by us.
"""

import csv
import re
from functools import cache
from pathlib import Path

from msgspec import Struct

from metalmark.model.run import Absent, Peak

FILE = Path(__file__).with_name("chips.csv")

_DTYPES = {
    "float32": "fp32_tflops",
    "tf32": "tf32_tensor_tflops",
    "bfloat16": "bf16_tensor_tflops",
    "float16": "fp16_tensor_tflops",
}
_MEMORY = re.compile(r"\d+GB")
# What drivers call the ways a GPU is mounted. An H100 with HBM3 is mounted by SXM; the first PCIe ones said HBM2e.
_MOUNTS = {"SXM": "SXM", "SXM2": "SXM", "SXM4": "SXM", "SXM5": "SXM", "HBM3": "SXM", "PCIE": "PCIE", "HBM2E": "PCIE"}
_MAKERS = {"NVIDIA", "TESLA"}


class Chip(Struct, frozen=True, kw_only=True):
    """One row of the table: a chip in one of its variants."""

    name: str
    gpu_cores: int | None
    memory_gb: float
    """The largest memory that it is sold with."""
    peak: Peak


@cache
def chips() -> tuple[Chip, ...]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_chip(row) for row in csv.DictReader(file))


def peak(name: str, *, cores: int | None = None, memory_bytes: int | None = None) -> Peak | Absent:
    """Return the peak of the GPU that calls itself `name`; its cores and memory choose among the variants."""
    apple = [chip for chip in chips() if chip.name == name and chip.gpu_cores is not None]
    if apple:
        return _apple(name, apple, cores, memory_bytes)
    words = _words(name)
    fits = [chip for chip in chips() if chip.gpu_cores is None and _is(chip, words)]
    if len(fits) > 1:
        return Absent(f"{name} is sold as {_either(fits)}, and does not say which it is")
    return fits[0].peak if fits else Absent(f"{name} is not in the table of chips")


def _apple(name: str, rows: list[Chip], cores: int | None, memory_bytes: int | None) -> Peak | Absent:
    if cores is None:
        return Absent(f"{name} is sold as {_either(rows)}, and the system did not say which it is")
    fits = [chip for chip in rows if chip.gpu_cores == cores]
    if not fits:
        return Absent(f"{name} with {cores} GPU cores is not in the table of chips, only {_either(rows)}")
    if len(fits) == 1:
        return fits[0].peak
    # Two variants have the same cores and different bandwidth: take the smallest that is sold with this much memory.
    enough = [chip for chip in fits if memory_bytes is not None and memory_bytes <= chip.memory_gb * 2**30]
    if not enough:
        return Absent(f"{name} is sold as {_either(fits)}, and its memory does not tell which it is")
    return min(enough, key=lambda chip: chip.memory_gb).peak


def _is(chip: Chip, words: list[str]) -> bool:
    """Return whether a driver's name is this chip's, and each word that is left over describes this variant: an
    "H100 NVL" or a "4090 Laptop GPU" is another chip."""
    own = _words(chip.name)
    rest = words[len(own) :]
    if words[: len(own)] != own or any(word not in _MOUNTS and not _MEMORY.fullmatch(word) for word in rest):
        return False
    mounts, sizes = _split(rest)
    own_mounts, own_sizes = _split(_words(chip.peak.variant))
    return mounts <= own_mounts and (not own_sizes or sizes <= own_sizes)


def _split(words: list[str]) -> tuple[set[str], set[str]]:
    return {_MOUNTS[word] for word in words if word in _MOUNTS}, {word for word in words if _MEMORY.fullmatch(word)}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s-]+", name.upper()) if word and word not in _MAKERS]


def _either(rows: list[Chip]) -> str:
    return " or ".join(chip.peak.variant for chip in rows)


def _chip(row: dict[str, str]) -> Chip:
    return Chip(
        name=row["chip"],
        gpu_cores=int(row["gpu_cores"]) if row["gpu_cores"] else None,
        memory_gb=float(row["max_mem_gb"]),
        peak=Peak(
            variant=row["variant"],
            flops_per_s={dtype: float(row[column]) * 1e12 for dtype, column in _DTYPES.items() if row[column]},
            bandwidth_bytes_per_s=float(row["mem_bw_gbs"]) * 1e9 if row["mem_bw_gbs"] else None,
            confidence=row["confidence"],
            source=row["source"],
            note=row["note"],
        ),
    )
