"""The batch size: the largest that helps, found by throughput and stopped before memory runs out."""

import math
from collections.abc import Mapping

from metalmark.model.plan import PlanChange
from metalmark.model.run import Machine
from metalmark.tune.search import TuningOption
from metalmark.tune.space import BATCH_AXIS

WORTH = 1.03
"""What a doubled batch must gain in samples per second: a larger batch trains differently, so it must pay."""
MEMORY_SHARE = 0.85
"""Of the memory, what a batch may be expected to need. Drivers and other programs need the rest."""
MOST_DOUBLINGS = 12
INFLUENCE = 3.0
"""A step that waits for its host gains nothing from what helps its device, and threads that are too many for a small
batch are too few for a large one."""


class BatchClimb:
    """Doubles the batch while that helps."""

    def __init__(self, first: int, *, limit_bytes: float = math.inf) -> None:
        self._first, self._limit_bytes = first, limit_bytes
        self._values: dict[int, float] = {}
        self._bytes: dict[int, int | None] = {}
        self.ended = ""
        """Why no larger batch is tried."""

    @property
    def best(self) -> int:
        """The largest batch that was worth its doubling."""
        best = self._first
        while (twice := best * 2) in self._values and self._values[best] >= WORTH * self._values[twice]:
            best = twice
        return best

    def propose(self) -> int | None:
        """Return the batch size to measure next; None where a larger one would not help or not fit."""
        if self.ended or not self._values:
            return None
        largest = max(self._values)
        if self.best != largest:
            self.ended = f"a batch of {largest} gains less than {(WORTH - 1) * 100:.0f}% over {largest // 2}"
            return None
        needed = expected_bytes(self._bytes, largest * 2)
        if needed is not None and needed > self._limit_bytes:
            self.ended = (
                f"a batch of {largest * 2} should need {needed / 2**30:.1f} GiB, and {self._limit_bytes / 2**30:.1f} "
                "GiB is the limit"
            )
            return None
        if largest >= self._first * 2**MOST_DOUBLINGS:
            self.ended = f"a batch of {largest} is {2**MOST_DOUBLINGS} times as large as the one asked for"
            return None
        return largest * 2

    def tell(self, batch: int, value: float | None, peak_bytes: int | None, *, spoilt: str = "") -> None:
        """Say what a batch size came to, per sample. None: it failed. `spoilt`: why no larger one may be tried."""
        if value is None or spoilt:
            self.ended = spoilt or f"a batch of {batch} failed"
            return
        self._values[batch] = value
        self._bytes[batch] = peak_bytes


def batch_option(batch: int) -> TuningOption:
    """Return a larger batch as the search weighs it with settings."""
    change = PlanChange(params={BATCH_AXIS: batch})
    return TuningOption(name=f"batch {batch}", axis=BATCH_AXIS, change=change, recompiles=True, influence=INFLUENCE)


def expected_bytes(known: Mapping[int, int | None], batch: int) -> float | None:
    """Return what a batch should need: a line through the two largest that are known, or twice the only one."""
    sizes = sorted(size for size, held in known.items() if held is not None)
    if not sizes:
        return None
    last = known[sizes[-1]] or 0
    if len(sizes) == 1:
        return last * batch / sizes[-1]
    before = known[sizes[-2]] or 0
    return last + max(0.0, (last - before) / (sizes[-1] - sizes[-2])) * (batch - sizes[-1])


def memory_limit(machine: Machine, device_type: str, asked_bytes: int | None) -> float:
    """Return how many bytes a batch may be expected to need."""
    if asked_bytes is not None:
        return float(asked_bytes)
    sizes = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes]
    held = sizes[0] if device_type == "cuda" and sizes else machine.memory_bytes
    return MEMORY_SHARE * held
