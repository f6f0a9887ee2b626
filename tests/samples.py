"""Runs of every kind made by hand, for tests that need no measurement."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metalmark.model.explanation import (
    Bottleneck,
    Cause,
    Experiment,
    ExperimentKind,
    Explained,
    ExplanationRun,
    MeasuredGain,
    OperationCost,
    OperationWork,
    Profile,
    Proposal,
    Roofline,
    StepShare,
)
from metalmark.model.measurement import BenchRun, Block, Completed, Measurement, Outcome, Phases, Proof
from metalmark.model.parity import (
    Checked,
    Compared,
    FaultDiagnosis,
    ParityMark,
    ParityRun,
    ParityVerdict,
    Quantity,
    Statistic,
    Trial,
)
from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Loader, Mode, Plan, PlanChange, Settings
from metalmark.model.run import Absent, DeviceMemory, Failed, FailureKind, Machine, Software, Telemetry, new_id
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession, TrainingSetup
from metalmark.model.tuning import Rung, RungStatus, Tuned, TuningGoal, TuningPhase, TuningRequest, TuningRun
from metalmark.model.watch import (
    CopyGroup,
    Curve,
    Pass,
    Stretch,
    SyncPoint,
    WatchedProcess,
    WatchedRun,
    WatchedScript,
    WatchedSteps,
    WatchEnding,
)
from metalmark.store.live import LiveTuning

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


def watched_script(**changes: Any) -> WatchedScript:
    """100 steps of a script on Metal: 10 ms each, of which it waits 4 ms for batches."""
    fields: dict[str, Any] = {
        "command": "python train.py --epochs 2", "exit_code": 0, "frameworks": ("torch",), "device": "mps",
        "device_name": "Test GPU", "batch_size": 64, "first_step_s": 0.8,
        "steady": WatchedSteps(
            steps=100, elapsed_s=1.0, waited_s=0.4, forward_s=0.2, backward_s=0.25, optimizer_s=0.05, sync_s=0.06,
            copy_s=0.02, host_s=0.3,
        ),
        "phases": {"start-up": 2.5, "training": 2.0, "validation": 0.5, "checkpoint": 0.1},
        "syncs": (
            SyncPoint(where="train.py:41", call=".item()", count=100, seconds=0.05),
            SyncPoint(where="train.py:57", call="print", count=10, seconds=0.01),
        ),
        "copies": (
            CopyGroup(up_to_bytes=1024, count=101, total_bytes=51712, seconds=0.004),
            CopyGroup(up_to_bytes=262144, count=101, total_bytes=20275200, seconds=0.016),
        ),
        "processes": (
            WatchedProcess(role="main", steps=101, ended=True),
            WatchedProcess(role="loader worker", steps=0, ended=True),
            WatchedProcess(role="loader worker", steps=0, ended=False),
        ),
    }  # fmt: skip
    return WatchedScript(**{**fields, **changes})


def compared(
    quantity: Quantity = Quantity.GRADIENT, name: str = "fc.weight", sigmas: float = 1.0, **changes: Any
) -> Compared:
    """A quantity that is so many sigmas off, of 10 that are allowed."""
    fields: dict[str, Any] = {
        "quantity": quantity, "name": name, "distance": sigmas * 1e-6, "sigma": 1e-6, "limit": 10.0, "where": (3, 1),
    }  # fmt: skip
    return Compared(**{**fields, **changes})


AGREEING = (
    compared(Quantity.EVAL_OUTPUT, "bn1", 0.5),
    compared(Quantity.EVAL_OUTPUT, "fc", 1.5),
    compared(Quantity.LOSS, "", 0.0),
    compared(Quantity.GRADIENT, "conv1.weight", 4.125),
    compared(Quantity.UPDATE, "conv1.weight", 2.0, steps=8, statistic=Statistic.LARGEST),
)
DIFFERING = (
    compared(Quantity.EVAL_OUTPUT, "bn1", 310_000.0),
    *AGREEING[1:],
    compared(Quantity.STATISTIC, "bn1.running_var", distance=None),
)


def checked(rows: tuple[Compared, ...] = AGREEING, **changes: Any) -> Checked:
    fields: dict[str, Any] = {
        "placed_on": "mps", "device_name": "Test GPU", "reference_placed_on": "cpu", "truth": "float64 on cpu",
        "noise": ("float32", "permuted batch", "1 thread"), "compared": rows, "seconds": 12.0,
    }  # fmt: skip
    return Checked(**{**fields, **changes})


def diagnosis(**changes: Any) -> FaultDiagnosis:
    fields: dict[str, Any] = {
        "batch_sizes": {8: ParityVerdict.AGREES, 9: ParityVerdict.DIFFERS, 32: ParityVerdict.DIFFERS},
        "trials": (
            Trial(change="--channels-last", verdict=ParityVerdict.AGREES, sigmas=0.5),
            Trial(change="--dtype bfloat16", verdict=ParityVerdict.DIFFERS, sigmas=40.0),
            Trial(change="--compile", verdict=ParityVerdict.UNTESTED, reason="no compiler is installed"),
        ),
        "compiled_until": "layer1.0",
        "known_issues": ("A known fault of batch normalisation: https://example.org/issues/1",),
        "repro": "import torch\nprint(torch.__version__)\n",
    }
    return FaultDiagnosis(**{**fields, **changes})


def parity_run(outcome: Checked | Failed | None = None, **changes: Any) -> ParityRun:
    """A check of Metal in bfloat16 against the CPU, which agrees."""
    fields: dict[str, Any] = {
        "id": new_id(),
        "sweep": "sweep00002",
        "cell": 0,
        "started_at": "2026-11-15T09:00:00.000000Z",
        "plan": plan(device=Device(kind=DeviceKind.MPS), settings=Settings(dtype=Dtype.BFLOAT16)),
        "reference": plan(),
        "machine": MACHINE,
        "software": Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "2.13.0"}),
        "outcome": outcome or checked(),
        "telemetry": Telemetry(hz=None),
    }
    return ParityRun(**{**fields, **changes})


def parity_mark(verdict: ParityVerdict = ParityVerdict.DIFFERS, **changes: Any) -> ParityMark:
    fields: dict[str, Any] = {"run": "parity0001", "verdict": verdict, "sentence": f"torch mps {verdict}: in bn1."}
    return ParityMark(**{**fields, **changes})


INPUT_SHARES = (
    StepShare(cause=Cause.INPUT, seconds=0.0115, error_s=0.0003, evidence="the loop waited 11.5 ms for each batch"),
    StepShare(cause=Cause.HOST, seconds=0.001, error_s=0.0001, evidence="the captured step takes 1.00 ms less"),
    StepShare(cause=Cause.COMPUTE, seconds=0.002, error_s=0.0002, evidence="2 of 6 kinds of operation are arithmetic"),
    StepShare(cause=Cause.MEMORY, seconds=0.001, error_s=0.0002, evidence="4 of 6 kinds of operation move bytes"),
    StepShare(cause=Cause.OPTIMIZER, seconds=0.0005, error_s=0.0001, evidence="0.50 ms less without the update"),
    StepShare(cause=Cause.SYNC, seconds=0.0, error_s=0.0, evidence="no call inside the step waits"),
    StepShare(cause=Cause.UNEXPLAINED, seconds=0.0002, error_s=0.0004, evidence="what is left"),
)


def explained(**changes: Any) -> Explained:
    """A step of 16.2 ms that waits 71% of its time for its loader; of two proposals, the first was measured."""
    blocks = (0.0161, 0.0162, 0.0164)
    fields: dict[str, Any] = {
        "bottleneck": Bottleneck.INPUT,
        "step_s": 0.0162,
        "error_s": 0.0003,
        "shares": INPUT_SHARES,
        "proposals": (
            Proposal(
                title="4 loader workers", typed="--workers 4", written="DataLoader(..., num_workers=4)",
                change=PlanChange(loader={"workers": 4}), gain=3.18, low=2.9, high=3.4,
                reason="with 4 workers a step took 5.10 ms when it was tried",
                measured=MeasuredGain(baseline_s=0.00051, changed_s=0.000165, gain=3.09, low=3.01, high=3.16),
            ),
            Proposal(
                title="capture the step as a CUDA graph", typed="--graph on", written="torch.cuda.graph(...)",
                change=PlanChange(settings={"graph": True}), gain=1.07,
                reason="the host's share would be gone",
            ),
        ),
        "experiments": (
            Experiment(
                kind=ExperimentKind.AS_ASKED, seconds=0.0162, error_s=0.0003, samples=blocks, waited_s=0.0115
            ),
            Experiment(kind=ExperimentKind.RESIDENT, seconds=0.0047, error_s=0.0001, samples=(0.0046, 0.0047, 0.0049)),
            Experiment(
                kind=ExperimentKind.LOADER, change=PlanChange(loader={"workers": 4}), seconds=0.0051, error_s=0.0002,
                baseline_s=0.0162, waited_s=0.0004,
            ),
            Experiment(
                kind=ExperimentKind.BATCH, change=PlanChange(params={"batch_size": 64}), seconds=0.0079,
                baseline_s=0.0047, note="twice the batch",
            ),
            Experiment(kind=ExperimentKind.CAPTURED, seconds=None, absent="mps has no graphs"),
        ),
        "work": (OperationWork(name="aten::mm", calls=6, flops=1.2e10, bytes=4.0e7),),
        "profile": Profile(
            source="torch.profiler",
            operations=(
                OperationCost(name="aten::mm", calls=6, seconds=0.0019, share=0.475),
                OperationCost(name="aten::relu", calls=2, seconds=0.0007, share=0.175),
            ),
            total_s=0.004,
        ),
        "roofline": Roofline(
            flops=1.2e10, bytes=1.0e8, step_s=0.0162, peak_flops_per_s=1.4e13, peak_bytes_per_s=3.5e11,
            source="counted from the shapes of its operations",
        ),
        "placed_on": "mps",
        "device_name": "Test GPU",
        "samples_per_step": 32,
        "parts": {"forward": 0.0014, "backward": 0.0028, "optimiser": 0.0005},
        "notes": ("The loader's processes are started anew in each experiment.",),
        "elapsed_s": 41.0,
    }  # fmt: skip
    return Explained(**{**fields, **changes})


def explanation_run(outcome: Explained | Failed | None = None, **changes: Any) -> ExplanationRun:
    given = plan(device=Device(kind=DeviceKind.MPS), feed=Feed.PIPELINE, loader=Loader(workers=0))
    fields: dict[str, Any] = {
        "id": new_id(),
        "started_at": "2026-11-15T10:00:00.000000Z",
        "subject": "mnist-mlp training batch 32 torch mps",
        "plan": given,
        "machine": MACHINE,
        "software": Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "2.13.0"}),
        "outcome": outcome or explained(),
        "telemetry": Telemetry(hz=None),
    }
    return ExplanationRun(**{**fields, **changes})


def rung(title: str, status: RungStatus, step_s: float | None = 0.00174, **changes: Any) -> Rung:
    """Settings against a baseline of 3.20 ms per step."""
    fields: dict[str, Any] = {
        "title": title, "status": status, "step_s": step_s, "samples_per_step": 32,
        "value": None if step_s is None else step_s / 32, "gain": None if step_s is None else 0.0032 / step_s,
        "processes": 1, "runs": ("trial00001",),
    }  # fmt: skip
    if step_s is None:
        fields |= {"samples_per_step": None, "processes": 0}
    return Rung(**{**fields, **changes})


AGREES, DIFFERS = parity_mark(ParityVerdict.AGREES), parity_mark(ParityVerdict.DIFFERS)
BASELINE_RUNG = rung(
    "baseline", RungStatus.BASELINE, 0.0032, processes=3, first_step_s=0.01, peak_bytes=512 << 20, runs=("trial00000",)
)
BEST_RUNG = rung(
    "+ compile", RungStatus.BEST, 0.0016, change=PlanChange(settings={"dtype": "bfloat16", "compile": True}), low=1.94,
    high=2.06, processes=3, first_step_s=8.2, peak_bytes=300 << 20, parity=AGREES, curve=AGREES,
)  # fmt: skip
OTHER_RUNGS = (
    rung("fused", RungStatus.NO_GAIN, 0.0033, change=PlanChange(settings={"fused": True})),
    rung(
        "float16", RungStatus.DIFFERS, 0.0010, change=PlanChange(settings={"dtype": "float16"}), parity=DIFFERS,
        reason="torch mps differs: in bn1.",
    ),
    rung(
        "channels_last", RungStatus.FAILED, None, change=PlanChange(settings={"channels_last": True}),
        reason="the worker was killed",
    ),
)  # fmt: skip


def tuned(**changes: Any) -> Tuned:
    """Bfloat16 and compile make a step twice as fast; of three other settings one trains differently, one failed."""
    fields: dict[str, Any] = {
        "ladder": (
            BASELINE_RUNG,
            rung("+ bfloat16", RungStatus.ON_THE_WAY, 0.0020, change=PlanChange(settings={"dtype": "bfloat16"})),
            BEST_RUNG,
        ),
        "others": OTHER_RUNGS,
        "placed_on": "cpu",
        "device_name": "Test CPU",
        "trials": 11,
        "elapsed_s": 95.0,
        "left_out": ("graph: torch has no graphs on cpu",),
        "notes": ("The batch size was kept.",),
    }
    return Tuned(**{**fields, **changes})


def live_tuning(**changes: Any) -> LiveTuning:
    """A search that runs: so far bfloat16 and compile are the best."""
    fields: dict[str, Any] = {
        "baseline": plan().label, "goal": TuningGoal.THROUGHPUT, "phase": TuningPhase.SEARCH,
        "trying": "bfloat16 + fused", "rungs": (BASELINE_RUNG, replace(BEST_RUNG, title="bfloat16 + compile"),
                                                *OTHER_RUNGS),
    }  # fmt: skip
    return LiveTuning(**{**fields, **changes})


def tuning_run(outcome: Tuned | Failed | None = None, **changes: Any) -> TuningRun:
    fields: dict[str, Any] = {
        "id": new_id(),
        "sweep": "sweep00003",
        "started_at": "2026-11-15T11:00:00.000000Z",
        "plan": plan(),
        "request": TuningRequest(),
        "machine": MACHINE,
        "software": Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "2.13.0"}),
        "outcome": outcome or tuned(),
        "telemetry": Telemetry(hz=None),
    }
    return TuningRun(**{**fields, **changes})
