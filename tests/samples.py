"""Records made by hand, for tests that need no measurement."""

from __future__ import annotations

from typing import Any

from metalmark.model.measurement import BenchRun, Block, Completed, Measurement, Outcome, Phases, Proof
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Settings
from metalmark.model.run import Absent, DeviceMemory, Failed, FailureKind, Machine, Software, Telemetry
from metalmark.model.sweep import new_id

MACHINE = Machine(
    chip="Test chip",
    architecture="arm64",
    physical_cores=4,
    logical_cores=8,
    usable_cores=8,
    memory_bytes=2**34,
    os="X 1",
)


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "workload": "mnist-mlp",
        "params": {"batch_size": 32},
        "mode": Mode.TRAINING,
        "framework": "torch",
        "device": Device(kind=DeviceKind.CPU),
        "settings": Settings(),
    }
    return Plan(**{**fields, **changes})


def completed(
    step_s: float = 0.1, *, steps: int = 10, blocks: int = 14, samples: int = 32, **changes: Any
) -> Completed:
    """`blocks` blocks of `steps` steps, each step lasting `step_s`."""
    unknown = Absent(reason="not counted")
    block = Block(steps=steps, elapsed_s=step_s * steps, at_s=1.0, proof=1.0, drain_s=0.0)
    fields: dict[str, Any] = {
        "placed_on": "cpu",
        "device_name": "CPU",
        "measurement": Measurement(
            first_step_s=1.0, warmup=(block,), steady=True, blocks=(block,) * blocks, sync_s=1e-6
        ),
        "proof": Proof(first=2.3, last=0.1, extra_steps=0, moved="4 of 4", statement="loss 2.3 → 0.1"),
        "phases": Phases(import_s=0, build_s=1, first_step_s=2, warmup_s=3, measure_s=4, end_s=5),
        "memory": DeviceMemory(live_bytes=unknown, driver_bytes=unknown, peak_bytes=unknown),
        "samples_per_step": samples,
        "parameters": 100,
        "trainable_parameters": 100,
    }
    return Completed(**{**fields, **changes})


def failed(kind: FailureKind = FailureKind.OUT_OF_MEMORY, message: str = "no room") -> Failed:
    return Failed(kind=kind, message=message)


def record(outcome: Outcome | None = None, **changes: Any) -> BenchRun:
    fields: dict[str, Any] = {
        "id": new_id(),
        "sweep": "sweep00001",
        "cell": 0,
        "repeat": 0,
        "started_at": "2026-11-15T08:00:00.000000Z",
        "plan": plan(),
        "machine": MACHINE,
        "software": Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "2.13.0"}),
        "outcome": outcome or completed(),
        "telemetry": Telemetry(hz=None),
    }
    return BenchRun(**{**fields, **changes})
