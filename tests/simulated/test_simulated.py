"""An accelerator that is neither CUDA nor Metal, through real workers: sweeps outlive its memory, and its
refusals are those of Metal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metalmark.backends.base import Probe
from metalmark.model.codec import decode_export
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Proving
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.launch import run_cell
from metalmark.runner.probing import probe_all
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.simulated.conftest import Simulated

QUICK = ("--framework", "torch", "--steps", "10", "--seconds", "0.2")
LIMIT_MIB = 16
"""The perceptron trains in 2, and a ring of two batches of 2,500 images is 15: their first step has no room."""


@pytest.fixture
def here(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and probes that this test's own process starts have the device."""
    for name, value in simulated(limit_mib=256).items():
        monkeypatch.setenv(name, value)


def test_out_of_memory_in_the_middle_of_a_sweep(cli: Cli, simulated: Simulated, store_file: Path) -> None:
    environment = simulated(limit_mib=LIMIT_MIB)
    run = cli(
        "bench", "mnist-mlp", *QUICK, "--device", "gpu", "--batch-size", "16,2500,32", "--markdown", **environment
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.startswith("| ")]
    headers, first, middle, last = ([part.strip() for part in line] for line in (lines[0], *lines[-3:]))
    step, rate, proof = (headers.index(name) for name in ("step", "samples/s", "proof"))
    assert [line[0] for line in (first, middle, last)] == ["16", "2500", "32"]
    assert (middle[step], middle[rate], middle[proof]) == ("-", "-", "out of memory")
    assert "gpu → simulated:0" in first
    assert "gpu → simulated:0" in last
    assert "simulated backend out of memory" in run.stdout
    with Store(store_file, readonly=True) as store:
        outcomes = {record.plan.params["batch_size"]: record.outcome for record in store.load(store.rows())}
    assert isinstance(outcomes[2500], Failed)
    assert outcomes[2500].kind is FailureKind.OUT_OF_MEMORY
    assert outcomes[2500].phase == "first step"
    for batch_size in (16, 32):
        outcome = outcomes[batch_size]
        assert isinstance(outcome, Completed)
        assert outcome.placed_on == "simulated:0"
        assert outcome.proof.last < outcome.proof.first
        assert outcome.proof.moved == "4 of 4"


@pytest.mark.usefixtures("here")
def test_the_limit_decides_not_the_batch() -> None:
    """The same batch completes where there is room for it; in inference, with its own proof."""
    plan = Plan(
        workload="mnist-mlp",
        params={"batch_size": 2500},
        mode=Mode.INFERENCE,
        framework="torch",
        device=Device(kind=DeviceKind.GPU),
        budget=Budget(steps=10, seconds=0.2),
        proof=Proving.STRICT,
    )
    outcome = run_cell(plan).outcome
    assert isinstance(outcome, Completed), outcome
    assert outcome.placed_on == "simulated:0"
    assert "output repeats" in outcome.proof.statement
    assert outcome.proof.moved == "0 of 4"


def test_any_is_it_and_there_is_no_second_one(cli: Cli, simulated: Simulated) -> None:
    """With convolutions, which a device of PyTorch's must bring along."""
    arguments = ("conv256", *QUICK, "--device", "any,gpu:1", "--pixels", "16", "--batch-size", "4")
    run = cli("bench", *arguments, "--json", "-q", **simulated())
    trained, absent = decode_export(run.stdout.encode(), source="stdout")
    assert isinstance(trained.outcome, Completed), trained.outcome
    assert not trained.outcome.proof.doubts
    assert trained.outcome.placed_on == "simulated:0"
    assert isinstance(absent.outcome, Failed)
    assert absent.outcome.kind is FailureKind.UNSUPPORTED
    assert "There is no gpu:1: PyTorch sees 1 such device" in absent.outcome.message


@pytest.mark.usefixtures("here")
def test_the_probe_lists_it() -> None:
    probe = probe_all(["torch"])["torch"]
    assert isinstance(probe, Probe), probe
    present = {report.word: report.name for report in probe.devices if report.present}
    assert present["gpu"] == "simulated"
    assert "cpu" in present


def test_without_its_environment_there_is_no_such_device() -> None:
    """What the other tests see comes from the plugin that PyTorch loads, and from nothing else."""
    probe = probe_all(["torch"])["torch"]
    assert isinstance(probe, Probe), probe
    assert "simulated" not in {report.name for report in probe.devices}


ANSWERS = """
import json, sys
import numpy, torch
device = torch.accelerator.current_accelerator()
assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
x = torch.arange(6.0).reshape(2, 3).to(device)
def answer(statement):
    try:
        exec(statement)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "accepted"
print(json.dumps([answer(statement) for statement in json.load(sys.stdin)]))
"""

REFUSED = {
    "x.numpy()": "TypeError: can't convert simulated:0 device type tensor to numpy. Use Tensor.cpu()",
    "numpy.asarray(x)": "TypeError: can't convert simulated:0 device type tensor to numpy",
    "x.double()": "TypeError: Cannot convert a simulated Tensor to float64 dtype",
    "torch.zeros(2, dtype=torch.float64).to(device)": "TypeError: Cannot convert a simulated Tensor to float64",
    "x.to(torch.complex128)": "TypeError: Cannot convert a simulated Tensor to complex128",
    "x + torch.ones(2, 3)": "RuntimeError: Expected all tensors to be on the same device",
    "x @ torch.ones(3, 2)": "RuntimeError: Expected all tensors to be on the same device",
    "torch.nn.Linear(3, 2)(x)": "RuntimeError: Expected all tensors to be on the same device",
    "torch.nn.Conv1d(2, 2, 1)(x)": "RuntimeError: Expected all tensors to be on the same device",
    "torch.empty(8 << 20, device=device)": "OutOfMemoryError: simulated backend out of memory (simulated allocated: ",
    "x.repeat(1 << 20, 1)": "OutOfMemoryError: simulated backend out of memory",
    "[torch.empty(1 << 20, device=device) for _ in range(4)]": "OutOfMemoryError: ",
    "torch.empty(1, device='simulated:1')": "RuntimeError: simulated: invalid device index 1",
}
ACCEPTED = [
    "x + torch.tensor(1.0)",
    "assert ((x + 1).T @ x).sum().item() == 198",
    "assert x.T.contiguous().view(2, 3).cpu().tolist() == [[0, 3, 1], [4, 2, 5]]",
    "assert x[torch.tensor([1])].cpu().tolist() == [[3, 4, 5]]",
    "assert numpy.asarray(x.cpu()).sum() == 15",
    "y = torch.empty(0, device=device); torch.add(x, x, out=y); assert y.cpu().sum() == 30",
    "for _ in range(8): torch.empty(2 << 20, device=device)",
]


def test_what_it_refuses_and_what_it_computes(simulated: Simulated) -> None:
    expected = {**REFUSED, **dict.fromkeys(ACCEPTED, "accepted")}
    run = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        env={**os.environ, **simulated(limit_mib=LIMIT_MIB)},
        input=json.dumps(list(expected)),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    answers = dict(zip(expected, json.loads(run.stdout), strict=True))
    wrong = {each: answer for each, answer in answers.items() if not answer.startswith(expected[each])}
    assert not wrong
