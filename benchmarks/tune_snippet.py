"""What the snippet of `metalmark tune` gains in a plain loop, against the gain that was promised.

python benchmarks/tune_snippet.py [--device cpu|cuda] [--set NAME=VALUE ...] [--workload NAME] [--promised GAIN]

The network is conv256 on PyTorch, on one thread of the CPU, and the setting is `dtype=bfloat16` unless told otherwise.
A plain loop and the loop of the snippet train networks of their own on the same batches. Where no promised gain is
given, so do two sessions of Metalmark, without the settings and with them, and the gain between those is the promise.
A round is one block of steps per side, and then another in the opposite order, so that a steady drift of the machine
cancels. On the CPU the clock is the processor time of the training's thread, so what other programs take from the
machine is no part of it; on a GPU it is the wall's, read when the GPU is idle. A gain is the pseudo-median (Hodges and
Lehmann) of the rounds' ratios, and the figure is the gain of the snippet over the promised one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

LEAST = 0.9
ROUNDS = 30
STEPS = 2
WARM_STEPS = 5
PARAMS: dict[str, dict[str, Any]] = {
    "conv256": {"batch_size": 8, "pixels": 128},
    "gpt": {"size": "nano", "batch_size": 4, "seq_len": 128},
    "mnist-mlp": {"batch_size": 2048},
}

Side = Callable[[int], None]
"""Trains so many steps."""
Clock = Callable[[], float]


def main(promised: float | None, settings: dict[str, Any], workload_name: str, rounds: int, device: str) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other turn noise into tens of percent
    import torch
    from overhead import half_width, pseudo_median

    from metalmark.backends.torch import BACKEND
    from metalmark.model.plan import Device, DeviceKind, Mode, Plan, PlanChange
    from metalmark.stats.summary import median
    from metalmark.tune.snippet import snippet
    from metalmark.workloads.catalog import load

    torch.set_num_threads(1)
    workload = load(workload_name)
    params = {**{param.name: param.default for param in workload.params}, **PARAMS[workload_name]}
    plan = Plan(
        workload=workload_name,
        params=params,
        mode=Mode.TRAINING,
        framework="torch",
        device=Device(kind=DeviceKind(device)),
    )
    change = PlanChange(settings=settings)
    made: dict[str, Any] = {}
    exec(snippet(plan, change, placed_on=device), made)
    with ExitStack() as stack:
        sessions = {
            "promised_plain": stack.enter_context(BACKEND.open(plan, workload)),
            "promised": stack.enter_context(BACKEND.open(change.applied(plan), workload)),
        }
        ring = list(sessions["promised"].feeder.ring)
        sides: dict[str, Side] = {}
        for name, make_step in (("plain", make_plain_step), ("snippet", made["make_step"])):
            recipe = workload.recipe("torch", params)
            sides[name] = looped(make_step(recipe.model.train().to(device), recipe.loss, recipe.optimizer), ring)
        if promised is None:
            sides |= {name: stepped(session) for name, session in sessions.items()}
        times_s = timed(sides, rounds, time.thread_time if device == "cpu" else clock_of_gpu)
    ratios = [before / after for before, after in zip(times_s["plain"], times_s["snippet"], strict=True)]
    gain, width = pseudo_median(ratios), half_width([[each] for each in ratios])
    if promised is None:
        pairs = zip(times_s["promised_plain"], times_s["promised"], strict=True)
        promised = pseudo_median([before / after for before, after in pairs])
    print(f"settings: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    print(f"rounds: {rounds}")
    for name, side_s in times_s.items():
        print(f"{name}_ms: {median(side_s) * 1e3:.3f}")
    print(f"gain: {gain:.3f}")
    print(f"half_width: {width:.3f}")
    print(f"promised_gain: {promised:.3f}")
    print(f"share_of_promise: {gain / promised:.3f}")
    return 0 if gain >= LEAST * promised else 1


def make_plain_step(model: Any, loss_fn: Any, make_optimizer: Any) -> Callable[[Any, Any], Any]:
    """The loop that a user has before the snippet."""
    optimizer = make_optimizer(model.parameters())

    def step(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def looped(step: Callable[[Any, Any], Any], ring: list[Any]) -> Side:
    def run(steps: int) -> None:
        for number in range(steps):
            step(*ring[number % len(ring)])

    return run


def stepped(session: Any) -> Side:
    def run(steps: int) -> None:
        for _ in range(steps):
            session.step()

    return run


def clock_of_gpu() -> float:
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def timed(sides: dict[str, Side], rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Return the seconds per step of each side, one figure per round."""
    for run in sides.values():
        run(WARM_STEPS)
    times_s: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        this_round_s = dict.fromkeys(sides, 0.0)
        for name in (*sides, *reversed(sides)):
            begin = clock()
            sides[name](STEPS)
            this_round_s[name] += clock() - begin
        for name, elapsed_s in this_round_s.items():
            times_s[name].append(elapsed_s / (2 * STEPS))
    return times_s


def setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, {"on": True, "off": False}.get(value, int(value) if value.isdecimal() else value)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--promised", type=float, help="The promised gain; it is measured unless given.")
    parser.add_argument("--set", type=setting, action="append", help="A setting: dtype=bfloat16, compile=on.")
    parser.add_argument("--workload", choices=PARAMS, default="conv256", help="The network.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Number of rounds.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="The device.")
    given = parser.parse_args()
    chosen = dict(given.set or [("dtype", "bfloat16")])
    sys.exit(main(given.promised, chosen, given.workload, given.rounds, given.device))
