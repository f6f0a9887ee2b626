"""Steps of which it is known what they wait for: `explain` must name it first, and its shares must be right.

python benchmarks/explain_cases.py [--only CASE] [--device cpu|cuda]

The software device has parts of known lengths, so all shares of its steps are known. On PyTorch two shares are taken
from a loop that was instrumented by hand (the wait for a loader, the time in the optimiser), and only the verdict is
judged elsewhere. The deciding figures are the right verdicts and the worst error of a share, in points.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metalmark.explain.examine import Examination, examine
from metalmark.explain.job import ExplainOptions
from metalmark.explain.judge import explain_lines
from metalmark.machine.identity import identify
from metalmark.model.explanation import Bottleneck, Cause, Explained
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Plan, Scalar, Settings
from metalmark.model.run import Flag
from metalmark.runner.flags import flags_around
from metalmark.stats.window import Window
from metalmark.workloads.catalog import digest, load

MOST_POINTS = 10.0
WORKLOADS = Path(__file__).with_name("explain_workloads.py")
FEW_FILES = 140
"""Enough open files for one worker of PyTorch's loader, and too few for two."""
FILES_WORD = "open files"
BY_HAND_S = 3.0

Shares = Mapping[Cause, float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step, and what is known of it."""

    bottleneck: Bottleneck
    workload: str
    """A name of the catalogue, or of this benchmark's own workloads."""
    framework: str = "torch"
    given: Mapping[str, Scalar] = field(default_factory=dict)
    loader: Loader | None = None
    threads: int | None = None
    shares: Shares = field(default_factory=dict)
    """From 0 to 1; all shares of the software device, and those causes of PyTorch's that are known."""
    by_hand: Cause | None = None
    """The share that a loop instrumented by hand tells."""
    files: int | None = None
    """The most files that its processes may have open."""
    proposed: str = ""
    """What a proposal must speak of."""

    def plan(self, device: DeviceKind) -> Plan:
        own = WORKLOADS.name + ":" + self.workload.replace("-", "_")
        found = load(self.workload) if self.is_built_in else load(own, source=str(WORKLOADS))
        params = {param.name: param.default for param in found.params} | dict(self.given)
        return Plan(
            workload=self.workload if self.is_built_in else own, params=params, mode=Mode.TRAINING,
            framework=self.framework, device=Device(kind=DeviceKind.GPU if self.framework == "fake" else device),
            settings=Settings(threads=self.threads), loader=self.loader,
            feed=Feed.RESIDENT if self.loader is None else Feed.PIPELINE,
            workload_digest="" if self.is_built_in else digest(WORKLOADS),
        )  # fmt: skip

    @property
    def is_built_in(self) -> bool:
        return self.workload in ("fake", "input-pipeline", "mnist-mlp")

    @property
    def paths(self) -> dict[str, str]:
        name = WORKLOADS.name + ":" + self.workload.replace("-", "_")
        return {} if self.is_built_in else {name: str(WORKLOADS)}


def software(bottleneck: Bottleneck, given: dict[str, Scalar], shares: Shares, loader: Loader | None = None) -> Case:
    return Case(
        bottleneck=bottleneck, workload="fake", framework="fake", given=given, shares=shares, loader=loader
    )  # fmt: skip


SOFTWARE = {
    "item-every-step": software(
        Bottleneck.SYNC, {"compute_ms": 4.0, "memory_ms": 4.0, "host_ms": 8.0, "sync": True},
        {Cause.SYNC: 0.5, Cause.COMPUTE: 0.25, Cause.MEMORY: 0.25},
    ),
    "swap": software(Bottleneck.SWAP, {"compute_ms": 4.0, "memory_ms": 2.0, "fault": "swap"}, {}),
    "throttling": software(Bottleneck.HEAT, {"compute_ms": 4.0, "memory_ms": 2.0, "fault": "throttle"}, {}),
    "balanced": software(
        Bottleneck.BALANCED, {"compute_ms": 3.0, "memory_ms": 3.0, "optimizer_ms": 3.0, "host_ms": 1.0},
        {Cause.COMPUTE: 1 / 3, Cause.MEMORY: 1 / 3, Cause.OPTIMIZER: 1 / 3},
    ),
    "known-input": software(
        Bottleneck.INPUT, {"compute_ms": 4.0, "input_ms": 16.0, "queue": 4}, {Cause.INPUT: 0.75, Cause.COMPUTE: 0.25},
        Loader(),
    ),
    "known-transfer": software(
        Bottleneck.TRANSFER, {"compute_ms": 4.0, "transfer_ms": 8.0, "input_ms": 1.0, "queue": 4},
        {Cause.TRANSFER: 2 / 3, Cause.COMPUTE: 1 / 3}, Loader(),
    ),
    "known-host": software(
        Bottleneck.HOST, {"compute_ms": 2.0, "memory_ms": 1.0, "host_ms": 12.0, "queue": 8},
        {Cause.HOST: 0.75, Cause.COMPUTE: 2 / 12, Cause.MEMORY: 1 / 12},
    ),
}  # fmt: skip

ON_CPU = {
    "slow-producer": Case(
        bottleneck=Bottleneck.INPUT, workload="input-pipeline", given={"produce_ms": 10.0}, loader=Loader(workers=1),
        threads=1, by_hand=Cause.INPUT,
    ),
    "tiny-kernels": Case(bottleneck=Bottleneck.HOST, workload="tiny-kernels", threads=1),
    "large-products": Case(bottleneck=Bottleneck.COMPUTE, workload="large-products", threads=1),
    "element-wise": Case(bottleneck=Bottleneck.MEMORY, workload="element-wise", threads=1),
    "starved-loader": Case(
        bottleneck=Bottleneck.INPUT, workload="input-pipeline", given={"produce_ms": 10.0}, loader=Loader(workers=1),
        threads=1, files=FEW_FILES, proposed=FILES_WORD,
    ),
    "oversubscribed": Case(
        bottleneck=Bottleneck.THREADS, workload="mnist-mlp", given={"batch_size": 64}, threads=16
    ),
    "huge-embedding": Case(
        bottleneck=Bottleneck.OPTIMIZER, workload="huge-embedding", threads=1, by_hand=Cause.OPTIMIZER
    ),
}  # fmt: skip

ON_CUDA = {
    "slow-producer": Case(
        bottleneck=Bottleneck.INPUT, workload="input-pipeline", given={"produce_ms": 10.0}, loader=Loader(workers=1),
        by_hand=Cause.INPUT,
    ),
    "tiny-kernels": Case(bottleneck=Bottleneck.HOST, workload="tiny-kernels"),
    "large-products": Case(
        bottleneck=Bottleneck.COMPUTE, workload="large-products", given={"batch_size": 8192, "width": 8192}
    ),
    "element-wise": Case(
        bottleneck=Bottleneck.MEMORY, workload="element-wise", given={"batch_size": 64, "width": 1 << 22}
    ),
    "item-in-step": Case(bottleneck=Bottleneck.SYNC, workload="item-in-step", proposed="item"),
    "huge-embedding": Case(
        bottleneck=Bottleneck.OPTIMIZER, workload="huge-embedding", given={"rows": 4_000_000}, by_hand=Cause.OPTIMIZER
    ),
}  # fmt: skip
CASES = {DeviceKind.CPU: {**ON_CPU, **SOFTWARE}, DeviceKind.CUDA: ON_CUDA}


def explained(case: Case, device: DeviceKind) -> Explained:
    plan = case.plan(device)
    found = examine(plan, ExplainOptions(), case.paths)
    if found.failure is not None:
        raise SystemExit(f"An explanation ended by itself: {found.failure.message} {found.failure.detail}")
    return explain_lines(found.lines, plan, found.telemetry, flags_of(found), found.fallbacks)


def flags_of(found: Examination) -> tuple[Flag, ...]:
    assert found.opened is not None
    window = Window(
        [(0.0, found.elapsed_s)], found.opened.placed_on, found.telemetry, found.software.environment
    )  # fmt: skip
    return tuple(flags_around(window, identify()))


def judged(name: str, case: Case, device: DeviceKind) -> tuple[bool, float | None]:
    """Print what a case came to; return whether its verdict was right, and its worst share's error in points."""
    began = time.monotonic()
    found = explained(case, device)
    truth = dict(case.shares)
    if case.by_hand is not None:
        truth[case.by_hand] = share_by_hand(name, device)
    if case.framework == "fake" and truth:
        truth = {cause: truth.get(cause, 0.0) for cause in Cause}
    right = found.bottleneck is case.bottleneck
    notes = []
    if case.proposed:
        said = [f"{each.title} {each.reason} {each.written} {each.typed}" for each in found.proposals]
        told = any(case.proposed in text for text in said)
        right &= told
        notes.append(f"{'proposes' if told else 'DOES NOT PROPOSE'} what to do about {case.proposed}")
    errors = {cause: 100 * (found.share(cause) - share) for cause, share in truth.items()}
    worst = max(map(abs, errors.values()), default=None)
    shares = [f"{each.cause.value} {100 * found.share(each.cause):.0f}" for each in found.shares if each.seconds > 0]
    if worst is not None:
        cause = max(errors, key=lambda cause: abs(errors[cause]))
        notes.append(f"worst error {errors[cause]:+.1f} points ({cause.value})")
    verdict = found.bottleneck.value if found.bottleneck is case.bottleneck else (
        f"WRONG: {found.bottleneck.value}, not {case.bottleneck.value}"
    )  # fmt: skip
    step = f"{found.step_s * 1e3:.3g} ms per step; {', '.join(shares)}"
    print(f"{name}: {'; '.join([verdict, *notes])}; {step}; {time.monotonic() - began:.0f} s", flush=True)
    return right, worst


def judged_with_few_files(name: str, case: Case) -> tuple[bool, float | None]:
    """Judge in a child process: a lower limit can't be raised again."""
    command = [sys.executable, __file__, "--only", name, "--files", str(case.files)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print("\n".join(line for line in child.stdout.splitlines() if line.startswith(f"{name}: ")), flush=True)
    return child.returncode == 0, None


# Loops that are instrumented by hand.


def share_by_hand(name: str, device: DeviceKind) -> float:
    command = [sys.executable, __file__, "--by-hand", name, "--device", device.value]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(child.stdout))


def loop_by_hand(case: Case, device: DeviceKind) -> float:
    """Return the share of a plain loop's time that it spends in the loader, or in the optimiser."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    plan = case.plan(device)
    workload = load(plan.workload, source=case.paths.get(plan.workload, ""))
    if plan.settings.threads:
        torch.set_num_threads(plan.settings.threads)
    recipe = workload.recipe("torch", plan.params)
    model = recipe.model.to(device.value)
    optimizer = recipe.optimizer(model.parameters())

    def wait() -> None:
        if device is DeviceKind.CUDA:
            torch.cuda.synchronize()

    def tensors(index: int) -> Any:
        batch = recipe.prepare(workload.produce(plan.params, np.random.default_rng(index)))
        return [torch.from_numpy(np.asarray(array)) for array in (*batch.inputs, batch.targets)]

    class Made(Dataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return tensors(index)

        def __len__(self) -> int:
            return 1 << 30

    fixed = [tensors(index) for index in range(2)]
    loader = None
    if case.loader is not None:
        loader = iter(DataLoader(Made(), batch_size=None, num_workers=case.loader.workers))
    spent = {Cause.INPUT: 0.0, Cause.OPTIMIZER: 0.0}
    # On an asynchronous device the optimiser's own time is seen only if the host waits around it.
    waits = case.by_hand is Cause.OPTIMIZER
    began, steps, resident_s = 0.0, 0, 0.0
    while steps < 10 or time.perf_counter() - began < BY_HAND_S:
        if steps == 5:  # those before have warmed it up
            wait()
            began, spent = time.perf_counter(), dict.fromkeys(spent, 0.0)
        before = time.perf_counter()
        *inputs, targets = next(loader) if loader is not None else fixed[steps % 2]
        spent[Cause.INPUT] += time.perf_counter() - before
        *inputs, targets = (each.to(device.value) for each in (*inputs, targets))
        optimizer.zero_grad()
        recipe.loss(model(*inputs), targets.long() if targets.dtype == torch.int32 else targets).backward()
        if waits:
            wait()
        before = time.perf_counter()
        optimizer.step()
        if waits:
            wait()
        spent[Cause.OPTIMIZER] += time.perf_counter() - before
        steps += 1
    wait()
    elapsed_s = time.perf_counter() - began
    if case.by_hand is Cause.INPUT and device is DeviceKind.CUDA:
        # The device computes while the host waits: what the loader costs is what the loop is longer by without it.
        placed = [each.to(device.value) for each in fixed[0]]
        wait()
        before = time.perf_counter()
        for _ in range(200):
            *inputs, targets = placed
            optimizer.zero_grad()
            recipe.loss(model(*inputs), targets.long() if targets.dtype == torch.int32 else targets).backward()
            optimizer.step()
        wait()
        resident_s = (time.perf_counter() - before) / 200
        return 1 - resident_s / (elapsed_s / (steps - 5))
    assert case.by_hand is not None
    return spent[case.by_hand] / elapsed_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE", help="one case")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--files", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--by-hand", metavar="CASE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    device = DeviceKind(asked.device)
    cases = CASES[device]
    if asked.by_hand:
        print(json.dumps(loop_by_hand(cases[asked.by_hand], device)))
        return 0
    if asked.only and asked.only not in cases:
        parser.error(f"there is no case {asked.only!r}; there are {', '.join(cases)}")
    if asked.files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked.files, asked.files))
        cases = {name: replace(case, files=None) for name, case in cases.items()}
    right, total, worst = 0, 0, 0.0
    for name, case in cases.items():
        if asked.only in (None, name):
            is_right, error = judged_with_few_files(name, case) if case.files else judged(name, case, device)
            right, total, worst = right + is_right, total + 1, max(worst, error or 0.0)
    print(f"worst error of a known share: {worst:.1f} points")
    print(f"right verdicts: {right} of {total}")
    return int(right < total or worst > MOST_POINTS)


if __name__ == "__main__":
    sys.exit(main())
