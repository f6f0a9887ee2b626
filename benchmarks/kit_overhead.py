"""An existing loop with three lines of `mm.run` added against the same loop without, alternating in one process.

python benchmarks/kit_overhead.py [rounds]

A step is one matrix product of PyTorch on the CPU, sized to take 5 ms, and its mean as the loss. A round is four
stretches of STEPS steps, ours, bare, bare, ours (and the other way round in turn), so that a steady drift of the
machine cancels; its ratio is ours over bare. Ours has its sensors on, at their own pace; they are off while the bare
loop runs. The figure is the pseudo-median (Hodges and Lehmann) of the rounds. Beginning and ending a run is not part
of a step and is printed apart.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOST = 1.01
ROUNDS = 60
STEPS = 100
STEP_S = 0.005
WARM_STEPS = 20


def main(rounds: int) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other turn noise into tens of percent
    import torch
    from overhead import pseudo_median

    import metalmark as mm
    from metalmark.stats import median

    torch.set_num_threads(1)
    step, size = sized(torch)
    folder = tempfile.TemporaryDirectory(prefix="metalmark-")
    store = Path(folder.name, "store.sqlite3")
    beginnings: list[float] = []

    def bare() -> float:
        loader = range(STEPS)
        begin = time.perf_counter()
        for _ in loader:
            step()
        return (time.perf_counter() - begin) / STEPS

    def ours() -> float:
        loader = range(STEPS)
        entered = time.perf_counter()
        with mm.run("overhead", store=store) as run:
            begin = time.perf_counter()
            for _ in run.watch(loader):
                run.log(loss=step())
            end = time.perf_counter()
        beginnings.append(time.perf_counter() - entered - (end - begin))
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
    print(f"ratio: {ratio:.4f}")
    return 0 if ratio <= MOST else 1


def sized(torch: Any) -> tuple[Any, int]:
    """A step of about 5 ms on this machine."""
    size = 128
    while True:
        left, right = torch.rand(size, size), torch.rand(size, size)

        def step(left: Any = left, right: Any = right) -> Any:
            return (left @ right).mean()

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
