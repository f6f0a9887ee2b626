"""What prefetching hides: input-pipeline with a producer that costs as much as the step, with and without it.

python benchmarks/input_pipeline.py [torch tensorflow]

The step is measured first, fed by the same loader from a producer that costs nothing, and the producer is then set to
it: handing a batch from one process to another, and finding it in another core's cache, is the loader's cost and not
waiting. Without prefetching the two must add up; with it the step must come within 15% of the larger of the two; and
the reported share of waiting must be within 5 points of the truth, which is known: without prefetching, all of the
producer's time is waiting; with it, what the step takes longer.
"""

from __future__ import annotations

import sys

from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Feed, Loader, Mode, Plan, Settings
from metalmark.runner.launch import run_cell
from metalmark.stats.summary import median

BATCH = 4096
"""Large enough for a step of some 20 ms, against which a loader's own cost is small."""
ROUNDS = 5
OVERLAP_BOUND, SUM_BOUND, SHARE_BOUND = 0.15, 0.15, 0.05
AHEAD, NONE = Loader(workers=1, prefetch=2), Loader(workers=0, prefetch=0)


def run(framework: str, produce_ms: float, loader: Loader) -> tuple[float, float]:
    """Seconds a step, and the share of it spent waiting. One thread computes, so that the producer has a core."""
    plan = Plan(
        workload="input-pipeline",
        params={"batch_size": BATCH, "produce_ms": produce_ms},
        mode=Mode.TRAINING,
        framework=framework,
        device=Device(kind=DeviceKind.CPU),
        settings=Settings(threads=1),
        budget=Budget(seconds=2),
        feed=Feed.PIPELINE,
        loader=loader,
    )
    outcome = run_cell(plan).outcome
    if not isinstance(outcome, Completed):
        raise SystemExit(f"{framework}: {outcome.kind.value}: {outcome.message}")
    blocks = outcome.measurement.blocks
    step_s = median([block.elapsed_s / block.steps for block in blocks])
    return step_s, sum(block.waited_s or 0.0 for block in blocks) / sum(block.elapsed_s for block in blocks)


def main(names: list[str]) -> int:
    worst = 0.0
    for name in names:
        rows = []
        for _ in range(ROUNDS):
            step_s, _ = run(name, 0.0, AHEAD)
            apart_s, apart_share = run(name, step_s * 1e3, NONE)
            ahead_s, ahead_share = run(name, step_s * 1e3, AHEAD)
            rows.append((step_s, apart_s, apart_share, ahead_s, ahead_share))
            print(
                f"{name}: step {step_s * 1e3:.1f} ms, apart {apart_s * 1e3:.1f}, ahead {ahead_s * 1e3:.1f}",
                file=sys.stderr,
            )
        step_s, apart_s, apart_share, ahead_s, ahead_share = (median([row[n] for row in rows]) for n in range(5))
        truth_apart, truth_ahead = step_s / apart_s, max(0.0, ahead_s - step_s) / ahead_s
        print(f"{name}_step_ms: {step_s * 1e3:.2f}")
        print(f"{name}_without_prefetch_over_sum: {apart_s / (2 * step_s):.3f}")
        print(f"{name}_with_prefetch_over_larger: {ahead_s / step_s:.3f}")
        print(f"{name}_waiting_share_without_prefetch: {apart_share:.3f} (truth {truth_apart:.3f})")
        print(f"{name}_waiting_share_with_prefetch: {ahead_share:.3f} (truth {truth_ahead:.3f})")
        worst = max(
            worst,
            (ahead_s / step_s - 1) / OVERLAP_BOUND,
            abs(apart_s / (2 * step_s) - 1) / SUM_BOUND,
            abs(apart_share - truth_apart) / SHARE_BOUND,
            abs(ahead_share - truth_ahead) / SHARE_BOUND,
        )
    print(f"worst_share_of_its_bound: {worst:.3f}")
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["torch", "tensorflow"]))
