"""A step of an existing loop with three lines of `mm.run` around it against the same step without, in turn.

python benchmarks/kit_overhead.py [rounds]

A step is a training step of PyTorch on the CPU: forward, loss, backward and update of a small network, with a batch
that makes it take about 5 ms. Steps alternate one by one, ours, bare, bare, ours: this machine's speed wanders by a
tenth within a second, and a neighbour of 6 ms ago is the best witness of what a step would have taken. Bare is asking a
loader for its batch, and the step; ours is asking the watched loader, the step, and logging its loss. Four such steps
are a group, with a difference of its own: a step that the machine interrupts takes twice as long, and a sum over many
would be about those. A round is one run of GROUPS groups; its cost is the pseudo-median (Hodges and Lehmann) of their
differences, which counts what the run does once in 64 steps or once a second, some tenths of a millisecond, since
groups differ by more than that. The sensors' thread runs beside both sides, so all of its CPU time is added to ours, as
if the loop had stood still for it. The figure is the pseudo-median of the rounds, with half its 95% interval by
bootstrap over them: a bound is kept only where the interval shows it. Beginning and ending a run is not part of a step
and is printed apart.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MOST = 1.01
ROUNDS = 400
GROUPS = 100
LEAD = 10
"""Steps before the clock: sensors find out what there is in the first milliseconds of a run, once."""
STEP_S = 0.005
WARM_STEPS = 50


def main(rounds: int) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other turn noise into tens of percent
    import torch
    from overhead import half_width, pseudo_median

    from metalmark.stats.summary import median

    torch.set_num_threads(1)
    step, size = sized(torch)
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        store = Path(folder, "store.sqlite3")
        one_round(step, store)
        done = [one_round(step, store) for _ in range(rounds)]
    ratios = [each.ratio for each in done]
    ratio, width = pseudo_median(ratios), half_width([[each] for each in ratios])
    print(f"batch_size: {size}")
    print(f"rounds: {rounds}")
    print(f"bare_ms: {median([each.bare_s for each in done]) * 1e3:.3f}")
    print(f"watch_and_log_ms: {pseudo_median([each.cost_s for each in done]) * 1e3:.4f}")
    print(f"sensors_share: {median([each.sensors for each in done]):.4f}")
    print(f"begin_and_end_ms: {median([each.around_s for each in done]) * 1e3:.1f}")
    print(f"half_width: {width:.4f}")
    print(f"ratio: {ratio:.4f}")
    return 0 if ratio + width <= MOST else 1


class Round(NamedTuple):
    bare_s: float
    cost_s: float
    """Of watching and logging a step."""
    sensors: float
    """Of the sensors' thread: its CPU time as a share of the round."""
    around_s: float
    """To begin and end the run."""

    @property
    def ratio(self) -> float:
        return 1 + self.cost_s / self.bare_s + self.sensors


def one_round(step: Callable[[], Any], store: Path) -> Round:
    from overhead import pseudo_median

    import metalmark as mm
    from metalmark.stats.summary import median

    clock = time.perf_counter
    costs_s, bare_s = [], []
    entered = clock()
    with mm.run("overhead", store=store) as run:
        looped = clock()
        watched, plain = iter(run.watch(range(LEAD + 2 * GROUPS))), iter(range(2 * GROUPS))

        def ours() -> None:
            next(watched)
            run.log(loss=step())

        def bare() -> None:
            next(plain)
            step()

        for _ in range(LEAD):
            ours()
        begin, others = clock(), time.process_time() - time.thread_time()
        for _ in range(GROUPS):
            seconds = []
            for work in (ours, bare, bare, ours):
                started = clock()
                work()
                seconds.append(clock() - started)
            first, second, third, fourth = seconds
            costs_s.append((first + fourth - second - third) / 2)
            bare_s += second, third
        elapsed, others = clock() - begin, time.process_time() - time.thread_time() - others
        ended = clock()
    around_s = (looped - entered) + (clock() - ended)
    return Round(median(bare_s), pseudo_median(costs_s), others / elapsed, around_s)


def sized(torch: Any) -> tuple[Any, int]:
    """A step of about 5 ms on this machine, and its batch size."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss_of = nn.CrossEntropyLoss()
    size = 8
    while True:
        x, y = torch.rand(size, 784), torch.arange(size) % 10

        def step(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(WARM_STEPS):
            step()
        begin = time.perf_counter()
        for _ in range(WARM_STEPS):
            step()
        took_s = (time.perf_counter() - begin) / WARM_STEPS
        if took_s >= STEP_S:
            return step, size
        size += 8


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
