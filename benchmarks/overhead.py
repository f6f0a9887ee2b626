"""The median step through Metalmark against the same model in a bare hand-written loop, alternating in one run.

python benchmarks/overhead.py [torch tensorflow jax mlx]

Each framework has a process of its own. A round measures a block on each side, in turns first; a round's ratio
is of two neighbours in time, so slow drift of the machine cancels. The figure is the median of the ratios.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LOW, HIGH = 0.98, 1.02
ROUNDS = 40
LEAST_STEP_S = 0.005
SIZES = {"torch": (16, 64), "tensorflow": (16, 64), "jax": (16, 64), "mlx": (4, 32)}
"""Batch and pixels, so that a step takes 5 ms or more: MLX's Linux build computes far slower than the others."""


def one(name: str) -> None:
    from metalmark.backends.catalog import FRAMEWORKS
    from metalmark.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
    from metalmark.runner.loop import Clock
    from metalmark.stats import median
    from metalmark.workloads.catalog import load

    framework = FRAMEWORKS[name]
    os.environ.update(framework.environment(Settings()))
    batch_size, pixels = SIZES[name]
    params = {"batch_size": batch_size, "pixels": pixels}
    workload = load("conv256")
    plan = Plan(
        workload="conv256", params=params, mode=Mode.TRAINING, framework=name, device=Device(kind=DeviceKind.CPU)
    )
    with framework.backend().open(plan, workload) as session:
        clock = Clock(session, Budget(), origin_s=time.monotonic(), tell=lambda *_: None)
        batch = workload.batch(params, np.random.default_rng(0))
        bare = importlib.import_module(f"bare.{name}").make(batch.inputs[0], batch.targets)
        clock.first_step()
        bare(1)
        warm = [clock.block(3).elapsed_s / 3 for _ in range(5)]
        bare(15)
        steps = max(2, round(0.15 / median(warm)))

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
    print(f"{name}_step_ms: {step_s * 1e3:.3f}")
    print(f"{name}_bare_ms: {bare_s * 1e3:.3f}")
    print(f"{name}_ratio: {median([a / b for a, b in pairs]):.4f}", flush=True)


def main(names: list[str]) -> int:
    worst = 1.0
    for name in names:
        run = subprocess.run(
            [sys.executable, __file__, "--one", name],
            capture_output=True,
            text=True,
            check=False,
        )
        print(run.stdout, end="", flush=True)
        if run.returncode:
            print(run.stderr[-2000:], file=sys.stderr)
            return 1
        ratio = float(run.stdout.split(f"{name}_ratio: ")[1].split()[0])
        worst = max(worst, ratio, key=lambda value: abs(value - 1))
    print(f"worst_ratio: {worst:.4f}")
    return 0 if LOW <= worst <= HIGH else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:] or list(SIZES)))
