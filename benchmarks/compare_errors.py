"""Realistic noise on the software device: how often does `compare` see what is not there, and find what is?

python benchmarks/compare_errors.py

Each comparison is two cells of five processes: 3% noise on each block, 2% from process to process, a block in fifty
that takes three times as long, each process 2% slower at its end than at its beginning, and the machine 1% slower over
the sweep, which measures the cells in turns. The device, the clock, the record, the pairing and the statistics are the
product's own; only time is simulated. 400 comparisons of a thing with itself, and 400 of things that differ by 5%:
half of them take 5% less time, half 5% more. `--seconds 10` a process decides; the default 3 s stand beside it for
information.

Then a machine that something else uses now and then: half of the blocks of one process in six take 40% longer, ten
processes a side. 400 equal pairs and 400 that differ by 5%, again.

Trainings are simulated too: three and five seeds per side whose best accuracy scatters by 0.4 points and whose speed by
2%; 400 comparisons of a training with itself, 400 of trainings whose accuracy differs by 1.5 points. Then the same
where each seed has samples of its own, which move the accuracies of both sides by 3 points.
"""

from __future__ import annotations

import random
import sys

import msgspec
from drift import MACHINE, SimulatedTime, completed

from metalmark.backends import fake
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Scalar
from metalmark.model.run import Software, Telemetry, new_id, now_utc
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession, TrainingSetup
from metalmark.results.comparison import compare, compare_runs
from metalmark.results.measured import measured_of
from metalmark.results.pairing import Side
from metalmark.runner import loop
from metalmark.stats.difference import Difference, Gap, Verdict, difference
from metalmark.workloads.catalog import load

COMPARISONS = 400
REPEATS = 5
BLOCK_MS = 250.0
NOISE, PROCESS_NOISE, OUTLIERS, DRIFT, SWEEP_DRIFT = 0.03, 0.02, 0.02, 0.02, 0.01
DIFFERENCE = 0.05
MOST_FALSE, LEAST_FOUND, COVERAGE = 0.05, 0.90, (0.93, 0.97)
SPIKY_REPEATS, SPIKY_BLOCKS, SPIKY_SHARE, SPIKE = 10, 40, 1 / 6, 1.4
LEAST_FOUND_SPIKY = 0.90
ACCURACY, SEED_NOISE, SAMPLES_NOISE, ACCURACY_DIFFERENCE = 0.80, 0.004, 0.03, 0.015
EPOCHS = 3


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
    found = compare(*sides)
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


def spiky_process(noise: random.Random, pace: float) -> list[float]:
    """The blocks of a process that something else may have slowed in half of them."""
    own, slowed = pace * (1 + noise.gauss(0, PROCESS_NOISE)), noise.random() < SPIKY_SHARE
    spikes = {number for number in range(SPIKY_BLOCKS) if slowed and noise.random() < 0.5}
    return [own * (1 + noise.gauss(0, NOISE)) * (SPIKE if n in spikes else 1.0) for n in range(SPIKY_BLOCKS)]


def spiky_rates() -> tuple[float, float]:
    noise = random.Random(16)
    wrong = {0.0: 0, DIFFERENCE: 0}
    for truth in wrong:
        for _ in range(COMPARISONS):
            sides = [[spiky_process(noise, pace) for _ in range(SPIKY_REPEATS)] for pace in (1.0, 1 + truth)]
            verdict = difference(*sides).verdict
            wrong[truth] += verdict is not Verdict.SLOWER if truth else verdict in (Verdict.FASTER, Verdict.SLOWER)
    false, found = wrong[0.0] / COMPARISONS, 1 - wrong[DIFFERENCE] / COMPARISONS
    print(f"spiky_false_verdicts: {false:.4f} ({wrong[0.0]} of {COMPARISONS})")
    print(f"spiky_found_5%: {found:.4f} ({COMPARISONS - wrong[DIFFERENCE]} of {COMPARISONS})", flush=True)
    return false, found


def training(side: int, seed: int, accuracy: float, noise: random.Random, digest: str) -> TrainingRun:
    """One training whose last epoch is its best, `seed` of its side, on the samples of that digest."""
    top, compute_s = accuracy + noise.gauss(0, SEED_NOISE), 10 * (1 + noise.gauss(0, PROCESS_NOISE))
    epochs = tuple(
        Epoch(
            number=number, session=0, begin_s=20.0 * number, end_s=20.0 * number + 12, samples=1000, steps=10,
            losses=(1.0,), train_loss=1.0, validation_loss=1.0, accuracy=top - 0.1 * (EPOCHS - number), top5=1.0,
            validation_samples=1000, learning_rate=0.1, input_s=1.0, compute_s=compute_s, first_steps_s=0.0,
            first_steps_samples=0, validation_s=1.0,
        )
        for number in range(1, EPOCHS + 1)
    )  # fmt: skip
    device = Device(kind=DeviceKind.GPU if side else DeviceKind.CPU)
    plan = Plan(workload="fake", params={}, mode=Mode.TRAINING, framework="fake", device=device, seed=seed)
    software, telemetry = Software(metalmark="0", python="3"), Telemetry(hz=None)
    session = TrainingSession(
        started_at=now_utc(), first_epoch=1, machine=MACHINE, software=software, telemetry=telemetry
    )
    setting = TrainingSetup(
        placed_on="cpu", device_name="", parameters=1, trainable_parameters=1, data="made", data_digest=digest,
        train_samples=1000, validation_samples=1000, classes=10, workers=0,
    )  # fmt: skip
    return TrainingRun(
        id=new_id(), started_at=now_utc(), plan=plan, goal=Goal(epochs=EPOCHS), ending=Ending.EPOCHS, setting=setting,
        epochs=epochs, sessions=(session,),
    )  # fmt: skip


def training_rates(name: str, seeds: int, *, own_samples: bool = False) -> tuple[float, float, float]:
    """False verdicts on equal accuracies, coverage of the interval, and how many real differences were found."""
    noise = random.Random(seeds)
    false = covered = found = 0
    for truth in (0.0, ACCURACY_DIFFERENCE):
        for _ in range(COMPARISONS):
            moved = [noise.gauss(0, SAMPLES_NOISE) if own_samples else 0.0 for _ in range(seeds)]
            sides = [
                Side.of_runs(str(side), [
                    training(side, seed, ACCURACY + moved[seed] + side * truth, noise, f"{seed if own_samples else 0}")
                    for seed in range(seeds)
                ])
                for side in (0, 1)
            ]  # fmt: skip
            (comparison,), _ = compare_runs(sides)
            trained = comparison.rows[0].trained
            if trained is None or not isinstance(trained.accuracy, Gap):
                raise SystemExit("the two trainings were not compared")
            accuracy = trained.accuracy
            false += truth == 0 and accuracy.verdict in (Verdict.BETTER, Verdict.WORSE)
            found += truth > 0 and accuracy.verdict is Verdict.BETTER
            covered += accuracy.low is not None and accuracy.high is not None and accuracy.low <= truth <= accuracy.high
    print(f"{name}_{seeds}_seeds_false_verdicts: {false / COMPARISONS:.4f} ({false} of {COMPARISONS})")
    print(f"{name}_{seeds}_seeds_found_1.5_points: {found / COMPARISONS:.4f} ({found} of {COMPARISONS})")
    coverage = covered / (2 * COMPARISONS)
    print(f"{name}_{seeds}_seeds_intervals_cover: {coverage:.4f} ({covered} of {2 * COMPARISONS})", flush=True)
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
    held = false <= MOST_FALSE and found >= LEAST_FOUND and COVERAGE[0] <= coverage <= COVERAGE[1]
    spiky = spiky_rates()
    held = held and spiky[0] <= MOST_FALSE and spiky[1] >= LEAST_FOUND_SPIKY
    # Three seeds cover too much rather than too little: with so few, Welch's degrees of freedom err on the safe side.
    few, enough = training_rates("trainings", 3), training_rates("trainings", REPEATS)
    paired = training_rates("trainings_with_samples_per_seed", REPEATS, own_samples=True)
    held = held and max(few[0], enough[0], paired[0]) <= MOST_FALSE and enough[2] >= LEAST_FOUND <= paired[2]
    return 0 if held and min(few[1], enough[1], paired[1]) >= COVERAGE[0] else 1


if __name__ == "__main__":
    sys.exit(main())
