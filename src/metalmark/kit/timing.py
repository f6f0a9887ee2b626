"""Time with the device idle: a stopwatch for a stretch of code, and blocks of steps for a figure with its interval."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from msgspec import structs

from metalmark.backends.base import Session, unknown_memory
from metalmark.errors import UsageError
from metalmark.kit.arrays import synchronize, to_numpy
from metalmark.kit.frameworks import owner
from metalmark.model.measurement import Measurement
from metalmark.model.plan import Budget
from metalmark.model.run import DeviceMemory
from metalmark.runner.loop import Clock
from metalmark.stats.summary import Interval, median, median_interval


class Stopwatch:
    """`with mm.Stopwatch() as watch: ...`: the clock is read when the devices are idle, at both ends.

    Each use adds to `laps_s`; a lap that ended in an exception is none.
    """

    def __init__(self) -> None:
        self.laps_s: list[float] = []
        self._values: tuple[Any, ...] = ()
        self._begin = 0.0

    def until(self, *values: Any) -> None:
        """What the lap's end waits for besides: MLX computes nothing that is not asked for."""
        self._values += values

    @property
    def elapsed_s(self) -> float:
        """The last lap."""
        if not self.laps_s:
            raise UsageError("The stopwatch has measured nothing yet.", hint="Read it after its `with` block.")
        return self.laps_s[-1]

    def __enter__(self) -> "Stopwatch":
        synchronize()
        self._begin = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        values, self._values = self._values, ()
        if kind is None:
            synchronize(*values)
            self.laps_s.append(time.perf_counter() - self._begin)


class Timing(Measurement, frozen=True, kw_only=True):
    """What `measure` saw, every block of it; medians and intervals are derived."""

    @property
    def median_s(self) -> float:
        """A step's."""
        return median(self._steps_s)

    @property
    def interval(self) -> Interval | None:
        """95%, of the median, over the blocks; None under six of them."""
        return median_interval(self._steps_s)

    @property
    def _steps_s(self) -> list[float]:
        return [block.elapsed_s / block.steps for block in self.blocks]

    def __str__(self) -> str:
        interval = self.interval
        sure = f" ± {interval.half_share:.1%}" if interval else ""
        return (
            f"{self.median_s * 1e3:.4g} ms a step{sure} ({len(self.blocks)} blocks, "
            f"first step {self.first_step_s * 1e3:.4g} ms)"
        )


def measure(step: Callable[[], Any], *, seconds: float = 3.0, steps: int | None = None, min_blocks: int = 10) -> Timing:
    """Calls `step` in blocks between two synchronisations: as `metalmark bench` does, in this process.

    `step` may return its loss: it is waited for, read after each block's clock has stopped, and must be finite.
    Exactly `steps` are measured where given, else `seconds` and `min_blocks` at least.
    """
    if seconds <= 0 or min_blocks < 1 or (steps is not None and steps < 1):
        raise UsageError("mm.measure() takes positive seconds, steps and min_blocks.")
    budget = Budget(steps=steps, seconds=seconds, min_blocks=min_blocks)
    # Of a Session the clock needs only what a Stepper has.
    session = cast(Session, _Stepper(step))
    clock = Clock(session, budget, origin_s=time.monotonic(), tell=lambda _phase, _done, _step_s: None)
    return Timing(**structs.asdict(clock.measure(clock.first_step())))


class _Stepper:
    """The user's function as the clock sees a session."""

    feeder = SimpleNamespace(waited_s=0.0)

    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step
        self._output: Any = None

    def step(self) -> None:
        self._output = self._step()

    def settle(self) -> None:
        """Whatever the user's own first step started is the user's."""

    def synchronize(self) -> None:
        synchronize(self._output)

    def proof(self) -> float:
        """The loss, where the function returns a number; else there is nothing to look at."""
        output = self._output
        if isinstance(output, int | float):
            return float(output)
        if owner(output) is None:
            return 0.0
        array = to_numpy(output)
        return float(array.reshape(-1)[0]) if array.size == 1 else 0.0

    def memory(self) -> DeviceMemory:
        return unknown_memory("mm.measure() looks at time alone")
