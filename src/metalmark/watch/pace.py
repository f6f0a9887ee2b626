"""LoopPace: where a loop's time goes, in stretches of steps, with little memory however long it runs."""

from metalmark.model.watch import Stretch

MOST_STRETCHES = 4096


class LoopPace:
    """Where a loop's time goes. Each step is a stretch of its own until there are MOST_STRETCHES: then neighbours are
    joined, again and again as the run goes on. Memory stays small, and every sum stays exact."""

    def __init__(self) -> None:
        self._size = 1
        self._done: list[list[float]] = []
        self.waits_known = True
        """Whether what was waited for input can be told; for a library's loop it may not."""

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

    def step(self, at_s: float, elapsed_s: float, waited_s: float, steps: int = 1) -> None:
        """Take a step, or `steps` that could not be told apart; 0: more of the one before."""
        done = self._done
        if done and (done[-1][0] < self._size or not steps):
            last = done[-1]
            last[0] += steps
            last[2] += elapsed_s
            last[3] += waited_s
            return
        if not steps:
            return
        if len(done) >= MOST_STRETCHES:
            pairs = zip(done[::2], done[1::2], strict=True)
            self._done = done = [[a[0] + b[0], a[1], a[2] + b[2], a[3] + b[3]] for a, b in pairs]
            self._size *= 2
        done.append([steps, at_s, elapsed_s, waited_s])

    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(
            Stretch(steps=int(steps), at_s=at_s, elapsed_s=elapsed_s, waited_s=waited_s if self.waits_known else None)
            for steps, at_s, elapsed_s, waited_s in self._done
        )
