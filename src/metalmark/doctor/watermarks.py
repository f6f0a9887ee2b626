"""Watermarks: PyTorch's two limits on Metal's memory, as ratios of what Metal recommends."""

from __future__ import annotations

import math

from msgspec import Struct

from metalmark.doctor.scene import Scene

HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
DEFAULT_HIGH, DEFAULT_LOW, MOST = 1.7, 1.4, 2.0
SAFE_HIGH, LOW_SHARE = 1.0, 0.8
"""A high one that keeps a job inside the memory, and the low one as a share of it."""
RECOMMENDED = 0.75
"""What Metal recommends as a working set, as a share of the memory, about, where no wired limit is set."""
SAFE = f"export {HIGH}={SAFE_HIGH} {LOW}={SAFE_HIGH * LOW_SHARE}"


class Watermarks(Struct, frozen=True, kw_only=True):
    """As PyTorch reads them from the environment."""

    high: float
    low: float

    @property
    def out_of_range(self) -> bool:
        return not 0 <= self.high <= MOST

    @property
    def crossed(self) -> bool:
        """The low one above the high one; no high one is no limit, so that its range is the bound."""
        return not 0 <= self.low <= (self.high or MOST)

    @property
    def unlimited(self) -> bool:
        return self.high == 0


def read(scene: Scene) -> Watermarks:
    return Watermarks(high=_ratio(scene, HIGH, DEFAULT_HIGH), low=_ratio(scene, LOW, DEFAULT_LOW))


def _ratio(scene: Scene, name: str, default: float) -> float:
    if name not in scene.environment:
        return default
    try:
        value = float(scene.environment[name])
    except ValueError:
        return 0.0  # as strtod reads what is no number
    return value if math.isfinite(value) else MOST + 1
