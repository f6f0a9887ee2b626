"""LoopPace: where a loop's time goes, one stretch of steps at a time."""

from __future__ import annotations

from metalmark.model.watch import Stretch

MOST = 4096


class LoopPace:
    """Each step is a stretch of its own until there are MOST: then neighbours are joined, again and again as the run
    goes on. Memory stays small, and every sum stays exact."""

    def __init__(self) -> None:
        self._size = 1
        self._done: list[list[float]] = []

    def take(self, marks: list[float], begin: float, origin: float) -> float:
        """Take two moments per step, when its batch was there and when it ended, and empty `marks`; return the time
        waited. The first step began at `begin`, each other one where the step before ended."""
        waited_s = 0.0
        for got, end in zip(marks[::2], marks[1::2], strict=True):
            self.step(begin - origin, end - begin, got - begin)
            waited_s += got - begin
            begin = end
        marks.clear()
        return waited_s

    def step(self, at_s: float, elapsed_s: float, waited_s: float) -> None:
        done = self._done
        if done and done[-1][0] < self._size:
            last = done[-1]
            last[0] += 1
            last[2] += elapsed_s
            last[3] += waited_s
            return
        if len(done) >= MOST:
            self._done = done = [_joined(a, b) for a, b in zip(done[::2], done[1::2], strict=True)]
            self._size *= 2
        done.append([1, at_s, elapsed_s, waited_s])

    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(
            Stretch(steps=int(steps), at_s=at_s, elapsed_s=elapsed_s, waited_s=waited_s)
            for steps, at_s, elapsed_s, waited_s in self._done
        )


def _joined(first: list[float], second: list[float]) -> list[float]:
    return [first[0] + second[0], first[1], first[2] + second[2], first[3] + second[3]]
