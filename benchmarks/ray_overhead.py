"""What a cell costs more through Ray than started by the command itself: the same cells, alternating in one run.

python benchmarks/ray_overhead.py

It starts a cluster of this machine alone. `step` is the software device's step, which has a known length, and a real
one of PyTorch's on the CPU. `added` is how much longer a cell takes from its request to its stored run, once the
node has run one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import msgspec

from metalmark.app.on_cluster import ClusterPlace, open_cluster
from metalmark.app.place import ANY, HERE
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, CellTarget, Device, DeviceKind, Mode, Plan, Sweep
from metalmark.model.run import new_id, now_utc
from metalmark.results.cells import Cell
from metalmark.stats.summary import median
from metalmark.store.store import Store
from metalmark.workloads.catalog import load

ROUNDS = 7
STEP_BOUND, ADDED_BOUND_S = 0.02, 1.0
CASES = (("fake", "fake", DeviceKind.GPU), ("mnist-mlp", "torch", DeviceKind.CPU))


def sweep_of(workload: str, framework: str, device: DeviceKind) -> Sweep:
    params = {param.name: param.default for param in load(workload).params}
    plan = Plan(
        workload=workload, params=params, mode=Mode.TRAINING, framework=framework, device=Device(kind=device),
        budget=Budget(seconds=1.0),
    )  # fmt: skip
    return Sweep(id=new_id(), created_at=now_utc(), plans=(plan,))


def measured(sweep: Sweep, place: ClusterPlace | None, store: Store) -> tuple[BenchRun, float]:
    """Return the run of a sweep with one cell, and how long it took until it was stored."""
    kept: list[BenchRun] = []

    def keep(run: BenchRun) -> None:
        store.add(run)
        kept.append(run)

    sweep = msgspec.structs.replace(sweep, id=new_id(), targets=() if place is None else (CellTarget(),))
    begin_s = time.perf_counter()
    (place or HERE).run_sweep(sweep, previous=[], keep=keep)
    return kept[0], time.perf_counter() - begin_s


def worker_s(run: BenchRun) -> float:
    """How long the worker measured: warm-up has no fixed length, and it is not what the way to the worker costs."""
    assert not hasattr(run.outcome, "message"), run.outcome
    return run.outcome.phases.end_s  # type: ignore[union-attr]


def main() -> int:
    broken = False
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder, "store.sqlite3")) as store,
        open_cluster("local-ray", ANY, say=lambda _: None) as place,
    ):
        figures: dict[str, float] = {}
        for workload, framework, device in CASES:
            sweep = sweep_of(workload, framework, device)
            begin_s = time.perf_counter()
            place.prepare(sweep)
            measured(sweep, place, store)
            measured(sweep, None, store)
            print(f"{workload} first cell and node s: {time.perf_counter() - begin_s:.2f}")
            steps: dict[bool, list[float]] = {False: [], True: []}
            extra: dict[bool, list[float]] = {False: [], True: []}
            for number in range(ROUNDS):
                for through_ray in (False, True) if number % 2 else (True, False):
                    run, took_s = measured(sweep, place if through_ray else None, store)
                    steps[through_ray].append(Cell(plan=run.plan, records=(run,)).step_s)
                    extra[through_ray].append(took_s - worker_s(run))
            local, there = median(steps[False]), median(steps[True])
            print(f"{workload} step here ms: {local * 1e3:.4f}")
            print(f"{workload} step through Ray ms: {there * 1e3:.4f}")
            print(f"{workload} cell beside its worker here s: {median(extra[False]):.3f}")
            print(f"{workload} cell beside its worker through Ray s: {median(extra[True]):.3f}")
            figures[f"{workload} step difference %"] = (there / local - 1) * 100
            figures[f"{workload} added per cell s"] = median(extra[True]) - median(extra[False])
    for name, value in figures.items():
        bound = STEP_BOUND * 100 if name.endswith("%") else ADDED_BOUND_S
        broken |= abs(value) > bound if name.endswith("%") else value > bound
        print(f"{name}: {value:.3f}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
