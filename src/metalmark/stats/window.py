"""Window: what telemetry says about one part of a run's time, and about the device it ran on."""

import re
from collections.abc import Mapping, Sequence
from typing import Self

from metalmark.model.measurement import Completed
from metalmark.model.run import Telemetry

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Window:
    """A part of a run's time and the device it ran on. Readings count that lie in one of its spans."""

    def __init__(
        self,
        spans: Sequence[tuple[float, float]],
        placed_on: str,
        telemetry: Telemetry,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`spans`: (begin, end) in seconds from the worker's start. `environment`: the worker's, in which the GPUs may
        be numbered otherwise than by the driver."""
        self.begin_s, self.end_s = spans[0][0], spans[-1][1]
        self._spans = spans
        self.series = {series.name: series for series in telemetry.series}
        self.telemetry = telemetry
        self.absent = telemetry.absent
        self.off = telemetry.hz is None
        self.slept_s = telemetry.slept_s or 0.0
        """Seconds asleep in the worker's whole life: which part of it was asleep is not recorded."""
        self.gpu = gpu_of(placed_on, (environment or {}).get(VISIBLE, ""))
        """What the run's GPU is called in telemetry ("gpu0"); None on a CPU, or where that can't be known."""
        self.part = "cpu" if is_cpu(placed_on) else self.gpu
        """What telemetry calls the device; None where which GPU it was can't be known."""

    @classmethod
    def measured(cls, run: Completed, telemetry: Telemetry, environment: Mapping[str, str] | None = None) -> Self:
        """From the first measured block to the end of the last: warm-up and proof are outside."""
        return cls([(run.phases.measure_s, run.phases.end_s)], run.placed_on, telemetry, environment)

    def inside(self, name: str) -> list[tuple[float, float]]:
        """(seconds from the worker's start, value) of each reading taken inside the window."""
        every = self._readings(name)
        return [(at_s, value) for at_s, value in every if any(begin <= at_s <= end for begin, end in self._spans)]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.inside(name)]

    def held(self, name: str) -> list[float]:
        """`values`, and before them the last reading before the window: a slow series holds until its next one."""
        before = [value for at_s, value in self._readings(name) if at_s < self.begin_s]
        return before[-1:] + self.values(name)

    def counted(self, name: str) -> float | None:
        """By how much a counter went up; None where fewer than two readings tell."""
        held = self.held(name)
        return max(held[-1] - held[0], 0.0) if len(held) >= 2 else None

    def _readings(self, name: str) -> list[tuple[float, float]]:
        series = self.series.get(name)
        return [] if series is None else list(zip(series.at_s, series.values, strict=True))


def is_cpu(placed_on: str) -> bool:
    return placed_on.lower().startswith("cpu")


def gpu_of(placed_on: str, visible: str) -> str | None:
    """Telemetry's name of a GPU: `cuda:1` is the second of the GPUs that the worker may see."""
    if is_cpu(placed_on):
        return None
    number = re.search(r":(\d+)$", placed_on)
    index = int(number[1]) if number else 0
    if not visible.strip():
        return f"gpu{index}"
    words = [word.strip() for word in visible.split(",")]
    # A GPU may be named by its serial instead: which number the driver gives that one is not recorded.
    return f"gpu{words[index]}" if index < len(words) and words[index].isdigit() else None
