"""PyTorch's step taken apart: in one worker on the CPU, and on an accelerator that PyTorch's profiler knows nothing
of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from metalmark.explain.examine import Examination, examine
from metalmark.explain.job import Ceiling, Counted, ExplainOptions, Profiled, Tried
from metalmark.explain.torch import ONE_BY_ONE, SIDE, UPDATE, TorchAnatomy
from metalmark.model.explanation import Experiment, ExperimentKind, Profile
from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Loader, Mode, Plan, Settings
from metalmark.model.run import Absent
from metalmark.workloads.catalog import load
from tests.simulated.conftest import Simulated, simulated

__all__ = ["simulated"]

torch = pytest.importorskip("torch")
HIDDEN_PARAMETERS, HEAD_PARAMETERS = 784 * 128 + 128, 128 * 10 + 10
NEVER_ON_A_CPU = {ExperimentKind.ENQUEUE, ExperimentKind.SYNCS}


def perceptron(workload: str = "mnist-mlp", *, mode: Mode = Mode.TRAINING, **settings: object) -> Plan:
    params = {param.name: param.default for param in load(workload).params} | {"batch_size": 4}
    return Plan(
        workload=workload,
        params=params,
        mode=mode,
        framework="torch",
        device=Device(kind=DeviceKind.CPU),
        settings=Settings(**settings),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.json"


@pytest.fixture(scope="module")
def found(trace_file: Path) -> Examination:
    """One worker makes every experiment on a small step with a loader; nothing is compiled for real."""
    plan = replace(perceptron("input-pipeline"), feed=Feed.PIPELINE, loader=Loader())
    options = ExplainOptions(seconds=0.03, blocks=2, trace=str(trace_file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        return examine(plan, options)


def tried(found: Examination, kind: ExperimentKind) -> list[Experiment]:
    return [line.experiment for line in found.lines if isinstance(line, Tried) and line.experiment.kind is kind]


def test_every_experiment_is_there_or_says_why_not(found: Examination) -> None:
    assert found.failure is None
    assert found.complete
    assert found.opened is not None
    assert not found.opened.asynchronous
    assert found.opened.threads == 1
    assert found.software.versions["torch"] == torch.__version__
    experiments = [line.experiment for line in found.lines if isinstance(line, Tried)]
    assert {each.kind for each in experiments} == set(ExperimentKind) - NEVER_ON_A_CPU
    for each in experiments:
        assert (each.seconds is None) == bool(each.absent), each
        assert (each.seconds is None) == (not each.samples), each
    (asked,) = tried(found, ExperimentKind.AS_ASKED)
    assert asked.waited_s is not None
    assert {each.waited_s is None for each in tried(found, ExperimentKind.LOADER)} == {False}
    assert {each.change.params["batch_size"] for each in tried(found, ExperimentKind.BATCH)} == {2, 8}
    (captured,) = tried(found, ExperimentKind.CAPTURED)
    assert "needs an NVIDIA GPU" in captured.absent
    (layout,) = tried(found, ExperimentKind.LAYOUT)
    assert "no 4-dimensional weight" in layout.absent
    (ceiling,) = [line for line in found.lines if isinstance(line, Ceiling)]
    assert ceiling.flops_per_s is not None
    assert ceiling.bytes_per_s is not None
    assert ceiling.flops_per_s > ceiling.bytes_per_s > 1e6


def test_work_is_what_the_workload_says(found: Examination) -> None:
    (counted,) = [line.work for line in found.lines if isinstance(line, Counted)]
    assert not isinstance(counted, Absent)
    assert found.opened is not None
    assert sum(work.flops for work in counted) == pytest.approx(found.opened.flops_per_step)


def test_a_profile_names_operations_and_a_trace_has_events(found: Examination, trace_file: Path) -> None:
    (profile,) = [line.profile for line in found.lines if isinstance(line, Profiled)]
    assert isinstance(profile, Profile)
    assert profile.source == "torch.profiler"
    assert len(profile.operations) == 10
    names = {operation.name for operation in profile.operations}
    assert {"aten::addmm", "aten::mm"} & names
    assert all(name.startswith("aten::") for name in names)
    assert sum(operation.share for operation in profile.operations) <= 1.0 + 1e-9
    assert sum(operation.seconds for operation in profile.operations) <= profile.total_s * (1 + 1e-9)
    events = json.loads(trace_file.read_text())["traceEvents"]
    assert "aten::addmm" in {event.get("name") for event in events}


def open_once(plan: Plan) -> tuple[TorchAnatomy, float]:
    """Return an anatomy after its first step, and the proof of that."""
    with SIDE.open(plan, load(plan.workload)) as anatomy:
        anatomy.session.step()
        return anatomy, anatomy.session.proof()


def test_bytes_of_an_update_are_those_of_its_arrays() -> None:
    """Adam's second moment is multiplied in place: read once and written once, 4 bytes each."""
    anatomy, _ = open_once(perceptron())
    counted = anatomy.work()
    assert not isinstance(counted, Absent)
    by_name = {(work.part, work.name): work for work in counted}
    parameters = HIDDEN_PARAMETERS + HEAD_PARAMETERS
    assert by_name[UPDATE, "aten::mul_"].bytes == 2 * 4 * parameters
    assert by_name[UPDATE, "aten::sqrt"].bytes == 2 * 4 * parameters
    # A product reads its two matrices and the bias, and writes a third.
    products = by_name["", "aten::addmm"]
    assert products.calls == 2
    assert products.bytes == 4 * (parameters + 4 * (784 + 128) + 4 * (128 + 10))
    assert not any("view" in work.name or work.name in ("aten::t", "aten::detach") for work in counted)


@pytest.mark.parametrize("mode", Mode)
def test_parts_of_a_step_change_no_parameter(mode: Mode) -> None:
    anatomy, loss = open_once(perceptron(mode=mode))
    before = anatomy.session.fingerprint()
    anatomy.forward()
    assert anatomy.session.proof() != loss  # the second batch, and in training after an update
    if mode is Mode.TRAINING:
        anatomy.backward()
        assert all(parameter.grad is not None for parameter in anatomy.session._trainable)
    assert anatomy.session.fingerprint() == before
    anatomy.session.step()
    assert (anatomy.session.fingerprint() != before) == (mode is Mode.TRAINING)


def test_inference_counts_its_products() -> None:
    plan = perceptron(mode=Mode.INFERENCE)
    anatomy, _ = open_once(plan)
    counted = anatomy.work()
    assert not isinstance(counted, Absent)
    flops = load("mnist-mlp").flops
    assert flops is not None
    assert sum(work.flops for work in counted) == 4 * flops(plan.params)


def test_a_session_sets_back_what_it_changed() -> None:
    threads = torch.get_num_threads()
    with SIDE.open(perceptron(threads=threads + 1, dtype=Dtype.BFLOAT16), load("mnist-mlp")):
        assert SIDE.threads() == threads + 1
    assert SIDE.threads() == threads


ON_THE_DEVICE = """
import sys
from msgspec import json
from metalmark.explain.torch import SIDE
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.runner.worker import leave
from metalmark.workloads.catalog import load
device = Device(kind=DeviceKind.GPU)
plan = Plan(workload="mnist-mlp", params={"batch_size": 4}, mode=Mode.TRAINING, framework="torch", device=device)
with SIDE.open(plan, load("mnist-mlp")) as anatomy:
    anatomy.session.step()
    print(anatomy.session.placement.device, anatomy.asynchronous)
    print(json.encode(anatomy.profile(3)).decode())
    print(sum(work.flops for work in anatomy.work()))
    try:
        anatomy.trace("unused", 1)
    except Exception as error:
        print(error)
leave()  # as a worker does: threads of a backward pass were seen to abort a process that takes PyTorch apart
"""


def test_operations_of_another_accelerator_are_timed_one_by_one(simulated: Simulated) -> None:
    environment = {**os.environ, **simulated(limit_mib=64)}
    run = subprocess.run(
        [sys.executable, "-c", ON_THE_DEVICE], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    placed, profile, flops, refusal = run.stdout.splitlines()
    assert placed == "simulated:0 True"
    told = json.loads(profile)
    assert told["source"] == ONE_BY_ONE
    calls = {operation["name"]: operation["calls"] for operation in told["operations"]}
    assert len(calls) == 10
    assert calls.get("aten::mm", 3) == 3
    assert float(flops) == 4 * (2 * 2 * 784 * 128 + 3 * 2 * 128 * 10)
    assert "does not follow simulated" in refusal
