"""BlockTimer: seconds per call of a step or of a part of one, in short blocks between two synchronisations."""

import math
import time
from collections.abc import Callable, Sequence

from metalmark.runner.loop import MAX_STEPS_PER_BLOCK, STEADY_SPREAD, SYNC_SHARE
from metalmark.stats.summary import mean_interval, median, spread

Call = Callable[[], None]
FEWEST_BLOCKS = 2
SYNCS = 5
NEIGHBOURS = 2
"""Blocks that are compared to see whether a pace is steady."""


class BlockTimer:
    """Times what it is given on one device; `seconds` and `blocks` are what each experiment has."""

    def __init__(self, wait: Call, *, seconds: float, blocks: int) -> None:
        self._wait, self._seconds, self._blocks = wait, seconds, blocks
        self.sync_s = _sync_cost_s(wait)
        self._block_s = max(seconds / blocks, self.sync_s / SYNC_SHARE)

    def block(self, call: Call, calls: int) -> float:
        """Return the seconds per call of one block, at whose beginning the device is idle."""
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        self._wait()
        return (time.perf_counter() - begin) / calls

    def warm_up(self, call: Call, *, at_least: int = 1) -> int:
        """Call until the pace is steady, for `seconds` at most, and return how many calls a block has."""
        self._wait()
        began = time.perf_counter()
        calls, done = 1, 0
        while True:
            call_s = self.block(call, calls)
            done += calls
            needed = max(1, min(MAX_STEPS_PER_BLOCK, math.ceil(self._block_s / max(call_s, 1e-9))))
            if needed <= calls * 2 and done >= at_least:
                break
            calls = max(calls, min(calls * 2, needed))
        recent = [call_s]
        while time.perf_counter() - began < self._seconds and call_s * needed < self._seconds:
            recent.append(self.block(call, needed))
            if spread(recent[-NEIGHBOURS:]) <= STEADY_SPREAD:
                break
        return needed

    def blocks_of(self, call_s: float) -> int:
        """Return how many blocks a call of this length is worth: the asked number, fewer where one call is long."""
        return max(FEWEST_BLOCKS, min(self._blocks, int(2 * self._seconds / max(call_s, 1e-9))))

    def several(self, call: Call, calls: int, blocks: int) -> list[float]:
        self._wait()
        return [self.block(call, calls) for _ in range(blocks)]

    def time(self, call: Call, *, at_least: int = 1) -> list[float]:
        """Warm up, and return the seconds per call of each block."""
        calls = self.warm_up(call, at_least=at_least)
        first = self.several(call, calls, FEWEST_BLOCKS)
        return first + self.several(call, calls, self.blocks_of(first[-1] * calls) - len(first))


def error_of(samples: Sequence[float]) -> float:
    """Return half the width of the 95% interval, assuming that blocks differ by chance alone."""
    interval = mean_interval([max(sample, 1e-12) for sample in samples], "blocks of one process")
    # Two blocks far from each other tell nothing, and their interval on a logarithm has no bound.
    return 0.0 if interval is None else min((interval.high - interval.low) / 2, max(samples))


def _sync_cost_s(wait: Call) -> float:
    wait()
    costs = []
    for _ in range(SYNCS):
        begin = time.perf_counter()
        wait()
        costs.append(time.perf_counter() - begin)
    return median(costs)
