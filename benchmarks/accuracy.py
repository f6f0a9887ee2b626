"""On the software device with known step times and a deep queue: is the reported median the truth?

python benchmarks/accuracy.py

Runs the whole path, worker process included; then breaks the device's synchronisation on purpose and expects
the cell to fail as a wrong result.
"""

from __future__ import annotations

import sys

from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.launch import run_cell
from metalmark.stats.summary import median
from metalmark.workloads.catalog import load

TRUE_MS = (0.5, 2.0, 10.0, 50.0)
BOUND = 0.01


def run(step_ms: float, fault: str) -> Completed | Failed:
    params = {param.name: param.default for param in load("fake").params}
    params.update(step_ms=step_ms, fault=fault, queue=10_000)
    plan = Plan(
        workload="fake",
        params=params,
        mode=Mode.TRAINING,
        framework="fake",
        device=Device(kind=DeviceKind.GPU),
        budget=Budget(seconds=2.0),
    )
    return run_cell(plan).outcome


def main() -> int:
    worst = 0.0
    for step_ms in TRUE_MS:
        outcome = run(step_ms, "none")
        if isinstance(outcome, Failed):
            print(f"failed_{step_ms:g}_ms: {outcome.message}")
            return 1
        found_ms = median([b.elapsed_s / b.steps for b in outcome.measurement.blocks]) * 1e3
        error = found_ms / step_ms - 1
        worst = max(worst, abs(error))
        print(f"reported_for_{step_ms:g}_ms: {found_ms:.5f} ({error * 100:+.3f}%)", flush=True)
    caught = 0
    for step_ms in TRUE_MS:
        outcome = run(step_ms, "no-sync")
        loud = isinstance(outcome, Failed) and outcome.kind is FailureKind.WRONG_RESULT
        caught += loud
        said = outcome.message if isinstance(outcome, Failed) else "a completed measurement: NOT caught"
        print(f"without_synchronisation_{step_ms:g}_ms: {said}", flush=True)
    print(f"broken_synchronisation_caught: {caught} of {len(TRUE_MS)}")
    print(f"worst_error: {worst:.5f}")
    return 0 if worst <= BOUND and caught == len(TRUE_MS) else 1


if __name__ == "__main__":
    sys.exit(main())
