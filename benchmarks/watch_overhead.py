"""A step of a script that `metalmark watch` follows against the same step of one that it does not, in turn.

python benchmarks/watch_overhead.py [rounds]

A step is a batch from a DataLoader without workers, forward, loss, backward and update of a small network in PyTorch on
the CPU, with a batch size that makes it take about 5 ms. Steps alternate in one process, two by two: watched, bare,
bare, watched. Before watched ones the hooks of `metalmark watch` are put into PyTorch, and after them they are taken
out again, both outside of the clock, and so is one step after that: Python looks methods up again that were replaced.
The clock is the processor time of the training's thread: the step waits for nobody, and what other programs take from
the machine is no part of it. Four such blocks are a group with a difference of its own, and a round's cost is the
pseudo-median (Hodges and Lehmann) of its groups' differences. What was seen is written to a file once in a round, and
counts with its share of a second. The figure is the pseudo-median of the rounds, with half its 95% interval by
bootstrap over them: a bound is kept only where the interval shows it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST = 1.02
ROUNDS = 120
GROUPS = 20
STEPS, LEAD = 2, 1
STEP_S = 0.005
WARM_STEPS = 50

clock = time.thread_time


def main(rounds: int) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other turn noise into tens of percent
    import torch
    from overhead import half_width, pseudo_median

    from metalmark.stats.summary import median

    torch.set_num_threads(1)
    loader, step, size = sized(torch)
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        sides = Sides(loader, step, folder)
        sides.one_round()
        done = [sides.one_round() for _ in range(rounds)]
    ratios = [each.ratio for each in done]
    ratio, width = pseudo_median(ratios), half_width([[each] for each in ratios])
    print(f"batch_size: {size}")
    print(f"rounds: {rounds}")
    print(f"bare_ms: {median([each.bare_s for each in done]) * 1e3:.3f}")
    print(f"watching_us: {pseudo_median([each.cost_s for each in done]) * 1e6:.1f}")
    print(f"writing_share: {median([each.writing for each in done]):.5f}")
    print(f"half_width: {width:.4f}")
    print(f"ratio: {ratio:.4f}")
    return 0 if ratio + width <= MOST else 1


class Round(NamedTuple):
    bare_s: float
    cost_s: float
    """Of watching a step."""
    writing: float
    """What is written once in a second, as a share of it."""

    @property
    def ratio(self) -> float:
        return 1 + self.cost_s / self.bare_s + self.writing


class Sides:
    """The same steps, watched and not."""

    def __init__(self, loader: Any, step: Callable[[Any], Any], folder: str) -> None:
        from metalmark.watch.agent_package import agent_module

        self._loader, self._step = loader, step
        install = agent_module("install")
        self._hook_into: Callable[[Any], Callable[[], None]] = install.hook_into
        self._file = install.LineFile(folder)
        self._recorder = agent_module("recorder").Recorder(self._file.write)
        self._batches: Iterator[Any] = iter(())

    def one_round(self) -> Round:
        from overhead import pseudo_median

        from metalmark.stats.summary import median

        before = self._recorder.steps
        self._batches = iter(self._loader)
        costs_s, bare_s = [], []
        for number in range(GROUPS):
            watched_s, unwatched_s = [], []
            for is_watched in (True, False, False, True) if number % 2 else (False, True, True, False):
                if is_watched:
                    undo = self._hook_into(self._recorder)
                    watched_s.append(self._steps_s())
                    undo()
                else:
                    unwatched_s.append(self._steps_s())
            costs_s.append((sum(watched_s) - sum(unwatched_s)) / 2)
            bare_s += unwatched_s
        seen = self._recorder.steps - before
        assert seen == GROUPS * 2 * (LEAD + STEPS), f"{seen} steps were seen"
        begin = clock()
        self._recorder.flush()
        return Round(median(bare_s), pseudo_median(costs_s), clock() - begin)

    def _steps_s(self) -> float:
        for _ in range(LEAD):
            self._step(next(self._batches))
        begin = clock()
        for _ in range(STEPS):
            self._step(next(self._batches))
        return (clock() - begin) / STEPS


def sized(torch: Any) -> tuple[Any, Callable[[Any], Any], int]:
    """A loader, a step of about 5 ms on this machine, and its batch size."""
    from metalmark.stats.summary import median

    nn, data = torch.nn, torch.utils.data
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss_of = nn.CrossEntropyLoss()

    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    size = 8
    while True:
        # Whole batches are its rows: fetching one by one would be most of the step.
        rows = [(torch.rand(size, 784), torch.arange(size) % 10)] * max(2 * WARM_STEPS, GROUPS * 4 * (LEAD + STEPS))
        loader = data.DataLoader(rows, batch_size=None)
        batches = iter(loader)
        times_s = []
        for _ in range(2 * WARM_STEPS):
            begin = clock()
            step(next(batches))
            times_s.append(clock() - begin)
        if median(times_s[WARM_STEPS:]) >= STEP_S:
            return loader, step, size
        size += 8


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
