"""The median step through Metalmark against the same model in a bare hand-written loop, alternating in one run.

python benchmarks/overhead.py [torch tensorflow jax mlx]

Both sides train the same model object on the same two batches in turn. A round measures a block on each side, in
turns first; a round's ratio is of two neighbours in time, so slow drift of the machine cancels, and a process's ratio
is the median of its rounds. Where a process happens to put its arrays still moves a ratio by some percent (seen with
a bare loop against itself), so each framework gets several processes, in turns with our side and the bare side begun
first; its figure is the median of theirs.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

LOW, HIGH = 0.98, 1.02
ROUNDS = 30
PROCESSES = 3
LEAST_STEP_S = 0.005
SIZES = {"torch": (16, 64), "tensorflow": (16, 64), "jax": (16, 64), "mlx": (4, 32)}
"""Batch and pixels, so that a step takes 5 ms or more: MLX's Linux build computes far slower than the others."""


def one(name: str, ours_first: bool) -> None:
    from metalmark.backends.base import RING
    from metalmark.backends.catalog import FRAMEWORKS
    from metalmark.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
    from metalmark.runner.loop import BLOCK_S, Clock
    from metalmark.stats import median
    from metalmark.workloads.catalog import load

    framework = FRAMEWORKS[name]
    # One thread: threads that wait for each other turn the machine's noise into tens of percent. MLX has no switch.
    settings = Settings(threads=None if name == "mlx" else 1)
    os.environ.update(framework.environment(settings))
    batch_size, pixels = SIZES[name]
    params = {"batch_size": batch_size, "pixels": pixels}
    workload = load("conv256")
    plan = Plan(
        workload="conv256",
        params=params,
        mode=Mode.TRAINING,
        framework=name,
        device=Device(kind=DeviceKind.CPU),
        settings=settings,
    )
    rng = np.random.default_rng(0)
    batches = [(batch.inputs[0], batch.targets) for batch in (workload.batch(params, rng) for _ in range(RING))]
    make = importlib.import_module(f"bare.{name}").make
    backend = framework.backend()
    # The model is kept aside before the session begins, whose first step may donate or compile its arrays.
    kept: list[Any] = []
    recipe_of = type(workload).recipe

    def recipe(self: Any, family: str, given: Any) -> Any:
        made = recipe_of(self, family, given)
        kept.append(made.model)
        return made

    type(workload).recipe = recipe  # type: ignore[method-assign]
    with backend.open(plan, workload) as session:
        clock = Clock(session, Budget(), origin_s=time.monotonic(), tell=lambda *_: None)
        bare = make(kept[0], batches)
        for begin in (clock.first_step, partial(bare, 1))[:: 1 if ours_first else -1]:
            begin()
        warm = [clock.block(3).elapsed_s / 3 for _ in range(5)]
        bare(15)
        # Blocks as long as Metalmark itself makes them: a hundred times what synchronising costs.
        steps = max(2, round(max(BLOCK_S, 100 * clock._sync_cost_s()) / median(warm)))

        def ours() -> float:
            return clock.block(steps).elapsed_s / steps

        def theirs() -> float:
            begin = time.perf_counter()
            bare(steps)
            return (time.perf_counter() - begin) / steps

        pairs = []
        for round_ in range(ROUNDS):
            first, second = (ours, theirs) if round_ % 2 else (theirs, ours)
            a, b = first(), second()
            pairs.append((a, b) if round_ % 2 else (b, a))
    step_s, bare_s = median([a for a, _ in pairs]), median([b for _, b in pairs])
    if step_s < LEAST_STEP_S:
        raise SystemExit(f"{name}: a step takes {step_s * 1e3:.2f} ms; make it larger, the claim is for 5 ms and more")
    print(step_s, bare_s, median([a / b for a, b in pairs]))


def main(names: list[str]) -> int:
    from metalmark.stats import median

    figures: dict[str, list[list[float]]] = {name: [] for name in names}
    for process in range(PROCESSES):
        for name in names:
            command = [sys.executable, __file__, "--one", name, str(process % 2)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                print(run.stderr[-2000:], file=sys.stderr)
                return 1
            figures[name].append([float(word) for word in run.stdout.split()[-3:]])
            print(f"process {process + 1} of {PROCESSES}, {name}: {figures[name][-1][2]:.4f}", file=sys.stderr)
    worst = 1.0
    for name, rows in figures.items():
        step_s, bare_s, ratio = (median([row[column] for row in rows]) for column in range(3))
        print(f"{name}_step_ms: {step_s * 1e3:.3f}")
        print(f"{name}_bare_ms: {bare_s * 1e3:.3f}")
        print(f"{name}_ratio: {ratio:.4f}")
        worst = max(worst, ratio, key=lambda value: abs(value - 1))
    print(f"worst_ratio: {worst:.4f}")
    return 0 if LOW <= worst <= HIGH else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3] == "1")
    else:
        sys.exit(main(sys.argv[1:] or list(SIZES)))
