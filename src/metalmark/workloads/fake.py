"""The software device's own workload: known step times, noise and faults, for tests and benchmarks."""

import numpy as np

from metalmark.model.workload import Batch, Param, Params, Recipe, Workload

FAULTS = (
    "none, oom, metal-oom, crash, kill, hang, open-hang, raise, rubbish, fallback; what the proof sees: nan, wrong, "
    "frozen, moving, no-sync, flat, zero-head, unused; joined by +"
)


def _build(params: Params) -> Recipe:
    return Recipe(model=dict(params), loss=lambda *_: None, optimizer=lambda: None)


def _batch(params: Params, _: np.random.Generator) -> Batch:
    nothing = np.zeros((params["batch_size"], 1), np.float32)
    return Batch(inputs=(nothing,), targets=nothing)


WORKLOAD = Workload(
    name="fake",
    title="Steps of a known length on the software device",
    params=(
        Param("batch_size", 32, "samples per step", minimum=1),
        Param("step_ms", 2.0, "true length of a step, ms", minimum=0.001),
        Param("noise", 0.0, "standard deviation of a step, as a share", minimum=0),
        Param("process_noise", 0.0, "standard deviation between processes, as a share", minimum=0),
        Param("outliers", 0.0, "share of steps that take three times as long", minimum=0),
        Param("drift", 0.0, "slowdown reached after --drift-s, as a share"),
        Param("drift_s", 3.0, "how long the drift takes, s of steps at their true length", minimum=0.001),
        Param("drift_after_s", 0.0, "when it begins, in the same seconds", minimum=0),
        Param("queue", 1000, "steps the device takes on before a caller waits", minimum=1),
        Param("memory_mb", 1e6, "memory of the device; a sample needs 1 MiB", minimum=1),
        Param("leak_mb", 0.0, "memory lost at each step", minimum=0),
        Param("fault", "none", FAULTS),
    ),
    build={"fake": _build},
    batch=_batch,
)
