"""A step of an existing loop with three lines of `mm.run` around it against the same step without, in turn.

python benchmarks/kit_overhead.py [rounds]

A step is one matrix product of PyTorch on the CPU, sized to take 5 ms, and one of its elements as the loss. Steps
alternate one by one, ours, bare, bare, ours: this machine's speed wanders by a tenth within a second, and a neighbour
of 6 ms ago is the best witness of what a step would have taken. Ours is asking the watched loader for its batch, the
step, and logging its loss. The sensors' thread runs beside both sides, so all of its CPU time is added to ours, as if
the loop had stood still for it. A round is STEPS of each side in one run; its ratio is ours over bare. The figure is
the pseudo-median (Hodges and Lehmann) of the rounds, with half its 95% interval by bootstrap over them: a bound is
kept only where the interval shows it. Beginning and ending a run is not part of a step and is printed apart.
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
ROUNDS = 100
STEPS = 200
LEAD = 10
"""Steps before the clock: sensors find out what there is in the first milliseconds of a run, once."""
STEP_S = 0.005
WARM_STEPS = 20


def main(rounds: int) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other turn noise into tens of percent
    import torch
    from overhead import half_width, pseudo_median

    from metalmark.stats import median

    torch.set_num_threads(1)
    step, size = sized(torch)
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        store = Path(folder, "store.sqlite3")
        one_round(step, store)
        done = [one_round(step, store) for _ in range(rounds)]
    ratios = [each.ratio for each in done]
    ratio, width = pseudo_median(ratios), half_width([[each] for each in ratios])
    print(f"matrix_size: {size}")
    print(f"rounds: {rounds}")
    print(f"bare_ms: {median([each.bare_s for each in done]) * 1e3 / STEPS:.3f}")
    print(f"watch_and_log_ms: {median([each.ours_s - each.bare_s for each in done]) * 1e3 / STEPS:.4f}")
    print(f"sensors_share: {median([each.sensors for each in done]):.4f}")
    print(f"begin_and_end_ms: {median([each.around_s for each in done]) * 1e3:.1f}")
    print(f"half_width: {width:.4f}")
    print(f"ratio: {ratio:.4f}")
    return 0 if ratio + width <= MOST else 1


class Round(NamedTuple):
    ours_s: float
    bare_s: float
    sensors: float
    """Of the sensors' thread: its CPU time as a share of the round."""
    around_s: float
    """To begin and end the run."""

    @property
    def ratio(self) -> float:
        return self.ours_s / self.bare_s + self.sensors


def one_round(step: Callable[[], Any], store: Path) -> Round:
    import metalmark as mm

    clock = time.perf_counter
    seconds = {True: 0.0, False: 0.0}
    entered = clock()
    with mm.run("overhead", store=store) as run:
        looped = clock()
        batches = iter(run.watch(range(LEAD + STEPS)))

        def ours() -> None:
            next(batches)
            run.log(loss=step())

        for _ in range(LEAD):
            ours()
        begin, others = clock(), time.process_time() - time.thread_time()
        for number in range(2 * STEPS):
            mine = number % 4 in (0, 3)
            work = ours if mine else step
            started = clock()
            work()
            seconds[mine] += clock() - started
        elapsed, others = clock() - begin, time.process_time() - time.thread_time() - others
        ended = clock()
    around_s = (looped - entered) + (clock() - ended)
    return Round(seconds[True], seconds[False], others / elapsed, around_s)


def sized(torch: Any) -> tuple[Any, int]:
    """A step of about 5 ms on this machine."""
    size = 128
    while True:
        arrays = [torch.rand(size, size) for _ in range(3)]

        def step(left: Any = arrays[0], right: Any = arrays[1], out: Any = arrays[2]) -> Any:
            # In place: a fresh result each step is as fast as the allocator happens to find memory for it.
            return torch.mm(left, right, out=out)[0, 0]

        for _ in range(WARM_STEPS):
            step()
        begin = time.perf_counter()
        for _ in range(WARM_STEPS):
            step()
        took_s = (time.perf_counter() - begin) / WARM_STEPS
        if took_s >= 0.9 * STEP_S:
            return step, size
        size = max(size + 8, int(size * min(2.0, (STEP_S / took_s) ** (1 / 3))))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
