"""An existing loop with three lines of `mm.run` added against the same loop without, alternating in one process.

python benchmarks/kit_overhead.py [rounds]

A step is one matrix product of PyTorch on the CPU, sized to take 5 ms, and one of its elements as the loss. A round is
four stretches of STEPS steps, ours, bare, bare, ours (and the other way round in turn), so that a steady drift of the
machine cancels; its ratio is ours over bare. Ours has its sensors on, at their own pace; they are off while the bare
loop runs. The figure is the pseudo-median (Hodges and Lehmann) of the rounds, with half its 95% interval by bootstrap
over them. Beginning and ending a run is not part of a step and is printed apart.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOST = 1.01
ROUNDS = 40
STEPS = 200
"""A second of them: long enough for the sensors' turn to come."""
LEAD = 10
"""Steps before the clock: sensors find out what there is in the first milliseconds of a run, once."""
STEP_S = 0.005
WARM_STEPS = 20


def main(rounds: int) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other turn noise into tens of percent
    import torch
    from overhead import half_width, pseudo_median

    import metalmark as mm
    from metalmark.stats import median

    torch.set_num_threads(1)
    step, size = sized(torch)
    folder = tempfile.TemporaryDirectory(prefix="metalmark-")
    store = Path(folder.name, "store.sqlite3")
    beginnings: list[float] = []

    def bare() -> float:
        begin = 0.0
        for number in range(LEAD + STEPS):
            if number == LEAD:
                begin = time.perf_counter()
            step()
        return (time.perf_counter() - begin) / STEPS

    def ours() -> float:
        begin, entered = 0.0, time.perf_counter()
        with mm.run("overhead", store=store) as run:
            looped = time.perf_counter()
            for number in run.watch(range(LEAD + STEPS)):
                if number == LEAD:
                    begin = time.perf_counter()
                run.log(loss=step())
            end = time.perf_counter()
        beginnings.append(time.perf_counter() - entered - (end - looped))
        return (end - begin) / STEPS

    bare(), ours()
    times: dict[Any, list[float]] = {ours: [], bare: []}
    for round_ in range(rounds):
        for side in (ours, bare, bare, ours) if round_ % 2 else (bare, ours, ours, bare):
            times[side].append(side())
    ratios = [sum(times[ours][n : n + 2]) / sum(times[bare][n : n + 2]) for n in range(0, 2 * rounds, 2)]
    folder.cleanup()
    ratio = pseudo_median(ratios)
    print(f"matrix_size: {size}")
    print(f"rounds: {rounds}")
    print(f"bare_ms: {median(times[bare]) * 1e3:.3f}")
    print(f"ours_ms: {median(times[ours]) * 1e3:.3f}")
    print(f"begin_and_end_ms: {median(beginnings[1:]) * 1e3:.1f}")
    print(f"half_width: {half_width([[each] for each in ratios]):.4f}")
    print(f"ratio: {ratio:.4f}")
    return 0 if ratio <= MOST else 1


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
