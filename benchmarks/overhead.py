"""The median step through Metalmark against the same model in a bare hand-written loop, alternating in one run.

python benchmarks/overhead.py [torch tensorflow jax mlx]

Both sides train the same model object on the same two batches, where they lie. A round is four blocks, ours, bare,
bare, ours (and the other way round in turn), so that a steady drift of the machine cancels; its ratio is ours over
bare. A framework's figure is the pseudo-median (Hodges and Lehmann) of the rounds of several fresh processes, in which
our side and the bare side are begun first in turn. Processes are added until the figure's 95% interval, by bootstrap
over whole processes, is narrower than the bound asks for: the width decides when to stop, never the value.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

LOW, HIGH = 0.98, 1.02
ROUNDS = 40
LEAST_PROCESSES, MOST_PROCESSES = 5, 25
HALF_WIDTH = 0.008
RESAMPLES = 400
LEAST_STEP_S = 0.005
WORKLOAD = "mnist-mlp"
"""Few parameters: an optimiser that walks through tens of megabytes is as fast as those happen to lie."""
SIZES = {"torch": 2048, "tensorflow": 2048, "jax": 2048, "mlx": 64}
"""Batches that make a step take 5 ms or more: MLX's Linux build computes far slower than the others."""


def one(name: str, ours_first: bool) -> None:
    from metalmark.backends.catalog import FRAMEWORKS
    from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
    from metalmark.runner.loop import Clock
    from metalmark.stats.summary import median
    from metalmark.workloads.catalog import load

    framework = FRAMEWORKS[name]
    # One thread: threads that wait for each other turn the machine's noise into tens of percent. MLX has no switch.
    settings = Settings(threads=None if name == "mlx" else 1)
    os.environ.update(framework.environment(settings))
    params = {"batch_size": SIZES[name]}
    workload = load(WORKLOAD)
    plan = Plan(
        workload=WORKLOAD,
        params=params,
        mode=Mode.TRAINING,
        framework=name,
        device=Device(kind=DeviceKind.CPU),
        settings=settings,
    )
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
        bare = make(kept[0], list(session.feeder.ring))
        for begin in (clock.first_step, partial(bare, 1))[:: 1 if ours_first else -1]:
            begin()
        bare(15)
        sync_s = clock._sync_cost_s()
        # Blocks as long as Metalmark itself makes them.
        last = clock._warm_up(sync_s)[0][-1]
        steps = clock._block_steps(last.elapsed_s / last.steps, sync_s)

        def ours() -> float:
            return clock.block(steps).elapsed_s / steps

        def theirs() -> float:
            begin = time.perf_counter()
            bare(steps)
            return (time.perf_counter() - begin) / steps

        times: dict[Any, list[float]] = {ours: [], theirs: []}
        for round_ in range(ROUNDS):
            for side in (ours, theirs, theirs, ours) if round_ % 2 else (theirs, ours, ours, theirs):
                times[side].append(side())
    step_s, bare_s = median(times[ours]), median(times[theirs])
    if step_s < LEAST_STEP_S:
        raise SystemExit(f"{name}: a step takes {step_s * 1e3:.2f} ms; make it larger, the claim is for 5 ms and more")
    both = [sum(times[ours][n : n + 2]) / sum(times[theirs][n : n + 2]) for n in range(0, 2 * ROUNDS, 2)]
    print(json.dumps({"step_s": step_s, "bare_s": bare_s, "ratios": both}))


def pseudo_median(values: Any) -> float:
    """The median of the means of all pairs: as robust as a median, and nearly as sharp as a mean."""
    array = np.asarray(values)
    first, second = np.triu_indices(len(array))
    return float(np.median((array[first] + array[second]) / 2))


def half_width(processes: list[list[float]]) -> float:
    rng = np.random.default_rng(0)
    again = [
        pseudo_median(np.concatenate([processes[n] for n in rng.integers(0, len(processes), len(processes))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(again, [0.025, 0.975])
    return float(high - low) / 2


def main(names: list[str]) -> int:
    from metalmark.stats.summary import median

    figures: dict[str, list[Any]] = {name: [] for name in names}
    widths: dict[str, float] = {}
    for process in range(MOST_PROCESSES):
        for name in names:
            if process >= LEAST_PROCESSES and widths[name] <= HALF_WIDTH:
                continue
            command = [sys.executable, __file__, "--one", name, str(process % 2)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                print(run.stderr[-2000:], file=sys.stderr)
                return 1
            figures[name].append(json.loads(run.stdout.splitlines()[-1]))
            ratios = [row["ratios"] for row in figures[name]]
            widths[name] = half_width(ratios)
            so_far = f"{pseudo_median(np.concatenate(ratios)):.4f} ± {widths[name]:.4f}"
            print(f"{name}, process {process + 1}: {pseudo_median(ratios[-1]):.4f}, so far {so_far}", file=sys.stderr)
    worst = 1.0
    for name, rows in figures.items():
        ratio = pseudo_median(np.concatenate([row["ratios"] for row in rows]))
        print(f"{name}_processes: {len(rows)}")
        print(f"{name}_step_ms: {median([row['step_s'] for row in rows]) * 1e3:.3f}")
        print(f"{name}_bare_ms: {median([row['bare_s'] for row in rows]) * 1e3:.3f}")
        print(f"{name}_half_width: {widths[name]:.4f}")
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
