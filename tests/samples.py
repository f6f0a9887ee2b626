"""Runs of every kind made by hand, for tests that need no measurement."""

from __future__ import annotations

from typing import Any

from metalmark.model.measurement import BenchRun, Block, Completed, Measurement, Outcome, Phases, Proof
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Settings
from metalmark.model.run import Absent, DeviceMemory, Failed, FailureKind, Machine, Software, Telemetry, new_id
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession, TrainingSetup
from metalmark.model.watch import Curve, Pass, Stretch, WatchedRun, WatchEnding

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


def epoch(number: int = 1, accuracy: float = 0.5, **changes: Any) -> Epoch:
    fields: dict[str, Any] = {
        "number": number, "session": 0, "begin_s": 10.0 * number, "end_s": 10.0 * number + 10, "samples": 100,
        "steps": 10, "losses": (1.0,) * 10, "train_loss": 1.0, "validation_loss": 1 - accuracy, "accuracy": accuracy,
        "top5": 1.0, "validation_samples": 20, "learning_rate": 0.1, "input_s": 1.0, "compute_s": 6.0,
        "first_steps_s": 2.0, "first_steps_samples": 10, "validation_s": 2.0,
    }  # fmt: skip
    return Epoch(**{**fields, **changes})


def training_session(**changes: Any) -> TrainingSession:
    fields: dict[str, Any] = {
        "started_at": "2026-11-15T08:00:01.000000Z",
        "first_epoch": 1,
        "machine": MACHINE,
        "software": Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "2.13.0"}),
        "telemetry": Telemetry(hz=None),
    }
    return TrainingSession(**{**fields, **changes})


def training_run(**changes: Any) -> TrainingRun:
    """Two epochs, both done."""
    fields: dict[str, Any] = {
        "id": new_id(),
        "started_at": "2026-11-15T08:00:00.000000Z",
        "plan": plan(),
        "goal": Goal(epochs=2),
        "ending": Ending.EPOCHS,
        "setting": TrainingSetup(
            placed_on="cpu", device_name="CPU", parameters=100, trainable_parameters=100, data="synthetic",
            data_digest="d" * 64, train_samples=100, validation_samples=20, classes=10, workers=0,
        ),
        "epochs": (epoch(1, 0.5), epoch(2, 0.9)),
        "sessions": (training_session(),),
    }  # fmt: skip
    return TrainingRun(**{**fields, **changes})


def watched_run(**changes: Any) -> WatchedRun:
    """One loop of 10 steps of 0.1 s, a quarter of which went by waiting for batches."""
    fields: dict[str, Any] = {
        "id": new_id(),
        "started_at": "2026-11-15T08:00:00.000000Z",
        "name": "my loop",
        "elapsed_s": 2.0,
        "ended": WatchEnding.COMPLETED,
        "params": {"lr": 0.1, "net": "small"},
        "machine": MACHINE,
        "software": Software(metalmark="0.1.0", python="3.11.7"),
        "stretches": {"train": (Stretch(steps=10, at_s=1.0, elapsed_s=1.0, waited_s=0.25),)},
        "passes": (Pass(loop="train", at_s=1.0, steps=10, elapsed_s=1.0, waited_s=0.25, first_wait_s=0.1),),
        "curves": (Curve(name="loss", steps=(1, 2), at_s=(1.0, 2.0), values=(2.3, None)),),
        "telemetry": Telemetry(hz=None),
    }
    return WatchedRun(**{**fields, **changes})
