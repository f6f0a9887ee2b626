"""Whether the machine slept while something was timed, where Linux and macOS differ.

`time.monotonic()` and `time.perf_counter()` stand still in sleep on both systems, so a record's own times show
nothing of it. Two comparisons show it, and both are recorded:

- Each system has one clock that goes on in sleep and one that does not; their difference grows by exactly the time
  slept, whoever sets the wall clock. On macOS they are CLOCK_MONOTONIC_RAW and CLOCK_UPTIME_RAW. (CLOCK_MONOTONIC goes
  on there too, but it is the wall clock less the time of the last start, and follows its corrections.)
- The wall clock, against `time.monotonic()`. It can also be set, or corrected over the network, or jump because a
  virtual machine was paused. What it gained or lost beyond the time slept is reported as such, never as sleep.
"""

import sys
import time

from msgspec import Struct

LEAST_STEP_S = 5.0
LEAST_STEP_SHARE = 1e-3
"""The wall clock is kept right by running it a little faster or slower: over a long run that adds up to seconds."""


class SleepGap(Struct, frozen=True, kw_only=True):
    """The time that `time.monotonic()` did not count."""

    slept_s: float
    wall_gap_s: float
    """How much more time passed on the wall clock; negative if it was set back."""
    elapsed_s: float

    @property
    def note(self) -> str:
        """What happened to the wall clock besides sleep, as a sentence; empty if nothing did."""
        step_s = self.wall_gap_s - self.slept_s
        if abs(step_s) < max(LEAST_STEP_S, LEAST_STEP_SHARE * self.elapsed_s):
            return ""
        if step_s < 0:
            return f"The wall clock was set back by {-step_s:,.0f} s meanwhile; nothing is timed by it."
        return (
            f"The wall clock was set forward by {step_s:,.0f} s meanwhile, or a virtual machine was paused; "
            "nothing is timed by it."
        )


class SleepWatch:
    """Watches for sleep from the moment it is made."""

    def __init__(self) -> None:
        self._asleep_s, self._wall_s, self._running_s = asleep_s(), time.time(), time.monotonic()

    def gap(self) -> SleepGap:
        """Return the time that was not counted since then."""
        elapsed_s = time.monotonic() - self._running_s
        return SleepGap(
            # The two clocks are read one after the other, so the difference wavers by some microseconds.
            slept_s=max(0.0, round(asleep_s() - self._asleep_s, 3)),
            wall_gap_s=round(time.time() - self._wall_s - elapsed_s, 3),
            elapsed_s=elapsed_s,
        )


def asleep_s() -> float:
    """Return how long this machine has slept since it was started."""
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - time.clock_gettime(time.CLOCK_UPTIME_RAW)
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return 0.0
