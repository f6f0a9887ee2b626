"""Realistic noise on the software device: how often does `compare` see what is not there, and find what is?

python benchmarks/compare_errors.py

Each comparison is two cells of five processes: 3% noise on each block, 2% from process to process, a block in fifty
that takes three times as long, each process 2% slower at its end than at its beginning, and the machine 1% slower over
the sweep, which measures the cells in turns. The device, the clock, the record, the pairing and the statistics are the
product's own; only time is simulated. 400 comparisons of a thing with itself, and 400 of things that differ by 5%:
half of them take 5% less time, half 5% more. `--seconds 10` a process decides; the default 3 s stand beside it for
information.
"""

from __future__ import annotations

import sys

import msgspec
from drift import MACHINE, SimulatedTime, completed

from metalmark.backends import fake
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Scalar
from metalmark.model.run import Software, Telemetry
from metalmark.model.sweep import new_id, now_utc
from metalmark.results.comparison import compare
from metalmark.results.measured import measured_of
from metalmark.results.pairing import Side
from metalmark.runner import loop
from metalmark.stats.difference import Difference, Verdict
from metalmark.workloads.catalog import load

COMPARISONS = 400
REPEATS = 5
BLOCK_MS = 250.0
NOISE, PROCESS_NOISE, OUTLIERS, DRIFT, SWEEP_DRIFT = 0.03, 0.02, 0.02, 0.02, 0.01
DIFFERENCE = 0.05
MOST_FALSE, LEAST_FOUND, COVERAGE = 0.05, 0.90, (0.93, 0.97)


def process(side: int, repeat: int, seed: int, pace: float, seconds: float) -> BenchRun:
    """One process of the sweep; `pace`: how much longer its side takes in truth."""
    params: dict[str, Scalar] = {param.name: param.default for param in load("fake").params}
    plan = Plan(
        workload="fake",
        params=params,
        mode=Mode.TRAINING,
        framework="fake",
        device=Device(kind=DeviceKind.GPU if side else DeviceKind.CPU),
        budget=Budget(seconds=seconds),
    )
    warmer = 1 + SWEEP_DRIFT * (repeat * 2 + side) / (2 * REPEATS - 1)
    truth: dict[str, Scalar] = {
        **params, "step_ms": BLOCK_MS * pace * warmer, "noise": NOISE, "process_noise": PROCESS_NOISE,
        "outliers": OUTLIERS, "drift": DRIFT, "drift_s": seconds,
    }  # fmt: skip
    number = (seed * REPEATS + repeat) * 2 + side
    session = fake.FakeSession(msgspec.structs.replace(plan, seed=number), truth)
    clock = loop.Clock(session, plan.budget, origin_s=0.0, tell=lambda *_: None)
    return BenchRun(
        id=new_id(),
        sweep="simulated0",
        cell=side,
        repeat=repeat,
        started_at=now_utc(),
        plan=plan,
        machine=MACHINE,
        software=Software(metalmark="0", python="3"),
        outcome=completed(session, clock.measure(clock.first_step())),
        telemetry=Telemetry(hz=None),
    )


def once(seed: int, pace: float, seconds: float) -> Difference:
    turns = [(side, repeat) for repeat in range(REPEATS) for side in (0, 1)]
    records = [process(side, repeat, seed, pace if side else 1.0, seconds) for side, repeat in turns]
    cells = measured_of(records)
    sides = [Side(device, [cell for cell in cells if cell.how["device"] == device]) for device in ("cpu", "gpu")]
    found, _ = compare(*sides)
    speed = found.rows[0].speed
    if not isinstance(speed, Difference) or len(found.rows) != 1:
        raise SystemExit("the two cells were not paired")
    return speed


def rates(name: str, seconds: float) -> tuple[float, float, float]:
    same = [once(seed, 1.0, seconds) for seed in range(COMPARISONS)]
    false = sum(one.verdict in (Verdict.FASTER, Verdict.SLOWER) for one in same)
    print(f"{name}_false_verdicts: {false / COMPARISONS:.4f} ({false} of {COMPARISONS})", flush=True)
    found = covered = 0
    for word, pace, half in (("faster", 1 - DIFFERENCE, 0), ("slower", 1 + DIFFERENCE, 1)):
        half_of = range(COMPARISONS * (half + 2) // 2, COMPARISONS * (half + 3) // 2)
        differ = [once(seed, pace, seconds) for seed in half_of]
        hits = sum(one.verdict.value == word for one in differ)
        covered += sum(_covers(one, 1 / pace) for one in differ)
        found += hits
        print(f"{name}_found_5%_{word}: {hits / len(differ):.4f} ({hits} of {len(differ)})", flush=True)
    covered += sum(_covers(one, 1.0) for one in same)
    wide = sum(one.high / one.low for one in same if one.low and one.high) / len(same)
    print(f"{name}_mean_interval_width: {(wide - 1) * 100:.1f}%")
    coverage = covered / (2 * COMPARISONS)
    print(f"{name}_intervals_cover: {coverage:.4f} ({covered} of {2 * COMPARISONS})")
    print(f"{name}_found_5%: {found / COMPARISONS:.4f} ({found} of {COMPARISONS})", flush=True)
    return false / COMPARISONS, coverage, found / COMPARISONS


def _covers(one: Difference, truth: float) -> bool:
    return one.low is not None and one.high is not None and one.low <= truth <= one.high


def main() -> int:
    loop.time = fake.time = SimulatedTime()  # type: ignore[assignment,attr-defined]
    fake.SPIN_S = 0.0
    rates("information_3_s", 3.0)
    false, coverage, found = rates("at_10_s", 10.0)
    print(f"false_verdicts: {false:.4f}")
    print(f"coverage: {coverage:.4f}")
    print(f"found: {found:.4f}")
    return 0 if false <= MOST_FALSE and found >= LEAST_FOUND and COVERAGE[0] <= coverage <= COVERAGE[1] else 1


if __name__ == "__main__":
    sys.exit(main())
