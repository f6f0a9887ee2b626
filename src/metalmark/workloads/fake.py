"""The software device's own workload: known step times, noise and faults, for tests and benchmarks."""

import numpy as np

from metalmark.model.workload import Batch, Param, Params, Recipe, Workload

FAULTS = (
    "none, oom, metal-oom, crash, kill, hang, open-hang, raise, rubbish, fallback; what the proof sees: nan, wrong, "
    "frozen, moving, no-sync, flat, zero-head, unused; what telemetry shows: swap, throttle; what a parity check "
    "finds: parity-race and others; joined by +"
)
PARITY_FAULTS = (
    "batch-statistics-in-eval", "conv-batch-9", "adam-epsilon", "gradient-scale", "no-dropout", "stale-variance",
    "float16-sums", "shifted-labels", "norm-epsilon", "decay-biases", "race", "edge", "nan", "random", "untrainable",
)  # fmt: skip
"""Of the network that a parity check looks into, each written with parity- before it. The last three are the
reference's too; the one before them, an input on the edge of a ReLU, is no fault."""
INPUTS, CLASSES = 32, 10


def _build(params: Params) -> Recipe:
    return Recipe(model=dict(params), loss=lambda *_: None, optimizer=lambda: None)


def _batch(params: Params, rng: np.random.Generator) -> Batch:
    inputs = rng.standard_normal((params["batch_size"], INPUTS), np.float32)
    # Labels that can be learned: which of ten fixed directions a sample points to.
    directions = np.random.default_rng(CLASSES).standard_normal((INPUTS, CLASSES))
    return Batch(inputs=(inputs,), targets=np.argmax(inputs @ directions, axis=1))


WORKLOAD = Workload(
    name="fake",
    title="Steps of a known length on the software device",
    params=(
        Param("batch_size", 32, "samples per step", minimum=1),
        Param("step_ms", 2.0, "true length of a step whose parts are not given, ms", minimum=0.001),
        Param("host_ms", 0.0, "time the host needs to enqueue a step, ms", minimum=0),
        Param("compute_ms", 0.0, "the device's arithmetic, ms in a step of 32 samples", minimum=0),
        Param("memory_ms", 0.0, "the device's memory traffic, ms in a step of 32 samples", minimum=0),
        Param("fixed_ms", 0.0, "what the device needs at any batch size, ms per step", minimum=0),
        Param("optimizer_ms", 0.0, "the optimiser, ms per training step", minimum=0),
        Param("input_ms", 0.0, "time one worker of the loader needs for a batch, ms", minimum=0),
        Param("transfer_ms", 0.0, "copying a loader's batch of 32 samples to the device, ms", minimum=0),
        Param("sync", False, "wait for the device at the end of every step"),
        Param("noise", 0.0, "standard deviation of a step, as a share", minimum=0),
        Param("process_noise", 0.0, "standard deviation between processes, as a share", minimum=0),
        Param("outliers", 0.0, "share of steps that take three times as long", minimum=0),
        Param("drift", 0.0, "slowdown reached after --drift-s, as a share"),
        Param("drift_s", 3.0, "how long the drift takes, s of steps at their true length", minimum=0.001),
        Param("drift_after_s", 0.0, "when it begins, in the same seconds", minimum=0),
        Param("queue", 1000, "steps the device takes on before a caller waits", minimum=1),
        Param("memory_mb", 1e6, "memory of the device; a sample needs 1 MiB", minimum=1),
        Param("leak_mb", 0.0, "memory lost at each step", minimum=0),
        Param("compile_s", 0.0, "what --compile adds to the first step, s", minimum=0),
        Param("landscape", 0, "which known gains the settings have (0: none)", minimum=0),
        Param("fault", "none", FAULTS),
    ),
    build={"fake": _build},
    batch=_batch,
)
