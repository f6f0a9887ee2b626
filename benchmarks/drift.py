"""A software device that slows down by a known share over a run, with 3% noise: how often is it said, and wrongly?

python benchmarks/drift.py

The clock, the record and the flags are the product's own; only time is simulated, so that 200 seeded runs a level
take seconds. The noise is on each step (2 ms, a hundred of them a block, which averages it), then on each block (one
step of 250 ms), which is far harder. Beside them, for information: blocks of the default 3 s alone, and noise that
lasts from one block to the next (AR(1), 0.5).
"""

from __future__ import annotations

import math
import sys

from metalmark.backends import fake
from metalmark.model.measurement import Completed, Measurement, Phases, Proof
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Scalar
from metalmark.model.run import Machine, Telemetry
from metalmark.runner import loop
from metalmark.runner.flags import flags_of
from metalmark.workloads.catalog import load

RUNS = 200
LEVELS = (0.0, 0.02, 0.05, 0.20, 1.00)
NOISE = 0.03
MOST_FALSE_ALARMS = 0.02
LEAST_FOUND = 0.95
DECIDING = 0.20


class SimulatedTime:
    """Stands in for the `time` module: a sleep passes at once, and reading the clock costs a tenth of a microsecond."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def perf_counter(self) -> float:
        self._now_s += 1e-7
        return self._now_s

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class LastingNoise(fake.FakeSession):
    """Its noise has the same width, and each step keeps half of the last one's."""

    lasting = 0.5
    noise = 0.0

    def slowdown(self) -> float:
        self.noise = self.lasting * self.noise + self._random.gauss(0, NOISE * math.sqrt(1 - self.lasting**2))
        return super().slowdown() * max(0.05, 1 + self.noise)


def flagged(level: float, seed: int, *, step_ms: float, steps: int, lasting: bool = False) -> bool:
    params: dict[str, Scalar] = {param.name: param.default for param in load("fake").params}
    params.update(step_ms=step_ms, noise=0.0 if lasting else NOISE)
    plan = Plan(
        workload="fake",
        params=params,
        mode=Mode.TRAINING,
        framework="fake",
        device=Device(kind=DeviceKind.GPU),
        budget=Budget(steps=steps),
        seed=seed,
    )
    session = (LastingNoise if lasting else fake.FakeSession)(plan, params)

    def tell(phase: str, done: float | None, _: float | None) -> None:
        if phase == "measure" and done == 0.0:
            # The drift begins with the measured window and is complete at its end, however long the warm-up was.
            params.update(drift=level, drift_s=steps * step_ms / 1e3, drift_after_s=clock.steps_done * step_ms / 1e3)

    clock = loop.Clock(session, plan.budget, origin_s=0.0, tell=tell)
    measurement = clock.measure(clock.first_step())
    return any(
        flag.name == "drifting" for flag in flags_of(completed(session, measurement), Telemetry(hz=None), MACHINE)
    )


def completed(session: fake.FakeSession, measurement: Measurement) -> Completed:
    return Completed(
        placed_on="fake:0",
        device_name="software device",
        measurement=measurement,
        proof=Proof(first=2.0, last=1.0, extra_steps=0, moved="1 of 1", statement="not asked for"),
        phases=Phases(import_s=0, build_s=0, first_step_s=0, warmup_s=0, measure_s=0, end_s=0),
        memory=session.memory(),
        samples_per_step=1,
        parameters=1,
        trainable_parameters=1,
    )


MACHINE = Machine(
    chip="none",
    architecture="none",
    physical_cores=None,
    logical_cores=None,
    usable_cores=None,
    memory_bytes=0,
    os="none",
)


def rates(name: str, *, step_ms: float, steps: int, lasting: bool = False) -> dict[float, float]:
    found = {}
    for level in LEVELS:
        hits = sum(flagged(level, seed, step_ms=step_ms, steps=steps, lasting=lasting) for seed in range(RUNS))
        found[level] = hits / RUNS
        what = "false_alarms" if level == 0 else f"found_{level * 100:g}%"
        print(f"{name}_{what}: {found[level]:.3f} ({hits} of {RUNS})", flush=True)
    return found


def main() -> int:
    simulated = SimulatedTime()
    loop.time = fake.time = simulated  # type: ignore[assignment,attr-defined]
    fake.SPIN_S = 0.0
    rates("information_noise_on_blocks_3_s", step_ms=250.0, steps=12)
    rates("information_lasting_noise_on_blocks_10_s", step_ms=250.0, steps=40, lasting=True)
    decide = (
        rates("noise_on_steps_3_s", step_ms=2.0, steps=1500),
        rates("noise_on_blocks_10_s", step_ms=250.0, steps=40),
    )
    false_alarms = max(found[0.0] for found in decide)
    least = min(found[DECIDING] for found in decide)
    print(f"worst_false_alarms: {false_alarms:.3f}")
    print(f"least_found_at_20%: {least:.3f}")
    return 0 if false_alarms <= MOST_FALSE_ALARMS and least >= LEAST_FOUND else 1


if __name__ == "__main__":
    sys.exit(main())
