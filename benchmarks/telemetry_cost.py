"""What sampling at 5 Hz does to the step time, alternating on and off while one worker trains.

python benchmarks/telemetry_cost.py [--device cuda] [--rounds N]

A worker process trains through Metalmark's own session and runs a block of steps whenever it is told to. The parent,
as in a real run, samples every sensor of this machine, or does not. A round is four blocks of 0.4 s, on,
off, off, on (and the other way round in turn), so that a steady drift of the machine cancels; its ratio is on over
off. The figure is the pseudo-median of the rounds' ratios, less 1. Rounds are added until its 95% interval, by
bootstrap, is narrower than the bound asks for: the width decides when to stop, never the value. All of the CPU's
cores work, so that the sampler has none to itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from overhead import RESAMPLES, pseudo_median

HZ = 5.0
BOUNDS = {"cpu": 0.015, "cuda": 0.005}
LEAST_ROUNDS, MOST_ROUNDS = 24, 150
BLOCK_S = 0.4
PATIENCE_S = 30.0
SIZES = {"cpu": ("mnist-mlp", {"batch_size": 2048}), "cuda": ("bert", {"batch_size": 64, "seq_len": 128})}


def worker(device: str) -> None:
    """Each line on stdin asks for a block; its seconds a step go to stdout."""
    from metalmark.backends.catalog import FRAMEWORKS
    from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan
    from metalmark.runner.loop import Clock
    from metalmark.workloads.catalog import load

    name, sizes = SIZES[device]
    workload = load(name)
    params = {param.name: param.default for param in workload.params} | sizes
    plan = Plan(
        workload=name, params=params, mode=Mode.TRAINING, framework="torch", device=Device(kind=DeviceKind(device))
    )
    with FRAMEWORKS["torch"].backend().open(plan, workload) as session:
        clock = Clock(session, Budget(), origin_s=time.monotonic(), tell=lambda *_: None)
        clock.first_step()
        clock.block(5)
        trial = clock.block(20)
        steps = max(1, round(BLOCK_S * trial.steps / trial.elapsed_s))
        print(json.dumps(steps), flush=True)
        for _ in sys.stdin:
            print(json.dumps(clock.block(steps).elapsed_s / steps), flush=True)


class Trainer:
    def __init__(self, device: str) -> None:
        command = [sys.executable, __file__, "--worker", "--device", device]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.steps = self._answer()

    def block(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the worker ended")
        return json.loads(line)


def sampled(trainer: Trainer) -> tuple[float, int]:
    """A block while every sensor is asked; with how many readings there were."""
    from metalmark.telemetry.sampler import Sampler
    from metalmark.telemetry.sensors import default_sensors

    begin_s = time.monotonic()
    sampler = Sampler(default_sensors(trainer.process.pid), HZ, begin_s)
    sampler.start()
    # What it costs to start is paid once a run, before anything is measured.
    while "process_cpu" not in sampler.latest and time.monotonic() - begin_s < PATIENCE_S:
        time.sleep(0.02)
    step_s = trainer.block()
    telemetry = sampler.stop(PATIENCE_S)
    return step_s, sum(len(series.values) for series in telemetry.series if series.name == "process_cpu")


def half_width(ratios: list[float]) -> float:
    rng = np.random.default_rng(0)
    drawn = [pseudo_median(rng.choice(ratios, len(ratios))) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(high - low) / 2


def main(device: str, most_rounds: int) -> int:
    bound = BOUNDS[device]
    trainer = Trainer(device)
    ratios: list[float] = []
    times: dict[bool, list[float]] = {True: [], False: []}
    readings: list[int] = []
    width = float("inf")
    while len(ratios) < most_rounds and (len(ratios) < LEAST_ROUNDS or width > bound / 3):
        in_round: dict[bool, float] = {True: 0.0, False: 0.0}
        for on in (True, False, False, True) if len(ratios) % 2 else (False, True, True, False):
            if on:
                step_s, count = sampled(trainer)
                readings.append(count)
            else:
                # The same pause as before a sampled block, so that both begin alike.
                time.sleep(1 / HZ)
                step_s = trainer.block()
            in_round[on] += step_s
            times[on].append(step_s)
        ratios.append(in_round[True] / in_round[False])
        if len(ratios) >= 4:
            width = half_width(ratios)
            print(f"round {len(ratios)}: {pseudo_median(ratios) - 1:+.4f} ± {width:.4f}", file=sys.stderr)
    trainer.close()
    print(f"device: {device}")
    print(f"rounds: {len(ratios)}")
    print(f"steps_a_block: {trainer.steps}")
    print(f"readings_a_block: {np.mean(readings):.1f}")
    print(f"step_ms_off: {np.median(times[False]) * 1e3:.4f}")
    print(f"step_ms_on: {np.median(times[True]) * 1e3:.4f}")
    print(f"half_width: {width:.4f}")
    cost = pseudo_median(ratios) - 1
    print(f"telemetry_cost: {cost:+.4f}")
    # An interval wider than the bound would show nothing.
    return 0 if abs(cost) < bound and width < bound else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(BOUNDS), default="cpu")
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS, help="at most this many")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.device)
    else:
        sys.exit(main(options.device, options.rounds))
