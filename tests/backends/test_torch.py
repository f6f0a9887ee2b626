"""What is PyTorch's own: weights cast once in inference, a rate that falls, uncounted norms, and Metal, as far as it
can be acted here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache

import pytest

from metalmark.backends.catalog import FRAMEWORKS

pytestmark = pytest.mark.skipif(bool(FRAMEWORKS["torch"].missing()), reason="torch is not installed")

CAST_ONCE = """
import torch
from metalmark.backends import torch as backend
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4))
model.eval()
images = torch.randn(2, 3, 8, 8)
def infer():
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        return model(images)
before = infer()
backend._cast_once(model, None)
assert {p.dtype for p in model.parameters()} == {torch.float32}
backend._cast_once(model, torch.bfloat16)
assert {p.dtype for p in model[0].parameters()} == {torch.bfloat16}
assert {p.dtype for p in model[1].parameters()} == {torch.float32}, "autocast leaves norms in float32"
assert torch.equal(before, infer())
"""

FALLING = """
import torch
from metalmark.workloads.vision.on_torch import decaying_adam
weight = torch.nn.Parameter(torch.ones(3))
optimizer = decaying_adam(5e-4, 0.96 ** (1 / 10), iter([weight]))
for _ in range(10):
    weight.grad = torch.ones(3)
    optimizer.step()
rate = optimizer.param_groups[0]["lr"]
assert abs(rate / (5e-4 * 0.96) - 1) < 1e-6, rate
captured = decaying_adam(5e-4, 0.96, [weight], capturable=True)
assert isinstance(captured.param_groups[0]["lr"], torch.Tensor), "a captured step reads it from the device"
"""

NORM = """
import torch
from metalmark.workloads.vision.on_torch import Norm
ours, theirs = Norm(4), torch.nn.BatchNorm2d(4)
ours.load_state_dict(theirs.state_dict())
images = torch.randn(2, 4, 5, 5)
for mode in (True, False):
    assert torch.equal(ours.train(mode)(images), theirs.train(mode)(images))
for name, value in theirs.state_dict().items():
    counts = name == "num_batches_tracked"
    assert torch.equal(ours.state_dict()[name], torch.tensor(0) if counts else value), name
# As a checkpoint has it: arrays by name, and nothing of what PyTorch notes beside them.
Norm(4).load_state_dict(dict(ours.state_dict()))
"""

HELPERS = """
import psutil, time
from torch._inductor.async_compile import AsyncCompile
from metalmark.backends.torch import BACKEND
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
from metalmark.runner.loop import Clock
from metalmark.workloads.catalog import load
plan = Plan(
    workload="mnist-mlp", params={"batch_size": 2}, mode=Mode.INFERENCE, framework="torch",
    device=Device(kind=DeviceKind.CPU), settings=Settings(compile=True),
)
with BACKEND.open(plan, load("mnist-mlp")) as session:
    AsyncCompile.process_pool()  # as compiling for a GPU does; on the CPU it may have none
    assert psutil.Process().children()
    Clock(session, Budget(), origin_s=time.monotonic(), tell=lambda *_: None).first_step()
    assert not psutil.Process().children(recursive=True)
print("same")
"""

METAL = """
import torch
from metalmark.backends import torch_devices as devices
from metalmark.errors import UnsupportedError
from metalmark.kit import on_torch
from metalmark.machine import apple
from metalmark.model.plan import Device, DeviceKind
said = "MPS backend out of memory (MPS allocated: 0 bytes). Tried to allocate 256 bytes.\\nUse less"
fails = True
def ones(*_, **options):
    assert options["device"] == "mps"
    if fails:
        raise RuntimeError(said)
waited = []
torch.ones = ones
torch.mps.synchronize = lambda: waited.append(1)
torch.backends.mps.is_available = lambda: True
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda: torch.device("mps")
torch.accelerator.device_count = lambda: 1
apple.read_sysctl = lambda: {"kern.hv_vmm_present": "1"}
report = devices.Mps().report()
assert not report.present and "virtual machine" in report.reason and report.fix, report
assert devices.accelerator() is None
device, kind = devices.resolve(Device(kind=DeviceKind.ANY))
assert (device.type, kind.type) == ("cpu", "cpu")
for word in (DeviceKind.GPU, DeviceKind.MPS):
    try:
        devices.resolve(Device(kind=word))
    except UnsupportedError as error:
        assert "virtual machine" in error.message, error.message
    else:
        raise AssertionError(word)
best = on_torch.best_device()
assert best == "cpu" and "virtual machine" in best.why, best.why
devices.metal_refusal.cache_clear()
apple.read_sysctl = lambda: {"kern.hv_vmm_present": "0"}
reason = devices.Mps().report().reason
assert reason.endswith("Tried to allocate 256 bytes.") and "virtual" not in reason, reason
devices.metal_refusal.cache_clear()
fails = False
assert devices.Mps().report().present and devices.accelerator() == "mps"
assert devices.resolve(Device(kind=DeviceKind.ANY))[1].type == "mps"
assert waited == [1], "asked once, and waited for"
"""

SCALING = """
import torch
from metalmark.backends import torch as backend
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Dtype, Settings
from metalmark.model.workload import Recipe
session = object.__new__(backend.TorchSession)
session._trainable = [torch.nn.Parameter(torch.ones(2))]
recipe = Recipe(model=None, optimizer=lambda weights, **_: torch.optim.SGD(weights))
def refusal(version, device, **settings):
    torch.__version__ = version
    session._device = torch.device(device)
    try:
        session._updater(recipe, Settings(**settings))
    except UnsupportedError as error:
        return error.message
    return ""
half = {"dtype": Dtype.FLOAT16}
assert "can't scale the loss" in refusal("2.7.1", "mps", **half)
assert "ignore the scale" in refusal("2.13.0", "mps", fused=True, **half)
for version in ("2.8.0", "2.13.0+cpu", "2.14.0a0+git1234567", "3.0.0"):
    assert refusal(version, "mps", **half) == "", version
assert refusal("2.7.1", "cpu", **half) == ""
assert refusal("2.7.1", "mps", dtype=Dtype.BFLOAT16) == ""
"""

PINNED = """
import torch
from metalmark.backends import torch as backend
from metalmark.backends.torch_devices import Cpu
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Plan
from metalmark.workloads.catalog import load
waits = []
def mover(device, layout, *, wait):
    waits.append(wait)
    return made(device, layout, wait=wait)
made, backend._mover = backend._mover, mover
plan = Plan(
    workload="mnist-mlp", params={"batch_size": 2}, mode=Mode.TRAINING, framework="torch",
    device=Device(kind=DeviceKind.MPS), feed=Feed.PIPELINE, loader=Loader(pin=True),
)
backend.TorchSession(plan, load("mnist-mlp"), torch.device("cpu"), Cpu())
assert waits and all(waits), "copies to what is not CUDA are waited for, whatever was asked"
"""

FULL = """
from metalmark.backends.torch import BACKEND
for said in ("Invalid buffer size: 24.00 GiB", "MPS backend out of memory (MPS allocated: 9 GB)", "CUDA out of memory"):
    assert BACKEND.is_out_of_memory(RuntimeError(said)), said
assert not BACKEND.is_out_of_memory(RuntimeError("shape '[2, 3]' is invalid for input of size 5"))
"""

PARTS = {
    "cast_once": CAST_ONCE, "falling_rate": FALLING, "norm": NORM, "out_of_memory": FULL,
    "copies_are_waited_for": PINNED, "scaled_losses_on_metal": SCALING, "metal_in_a_virtual_machine": METAL,
}  # fmt: skip
"""Run one after the other in one process; those that leave PyTorch changed are the last."""

TOGETHER = """
import json, sys, traceback
results = {}
for name, code in json.load(sys.stdin).items():
    try:
        exec(code, {"__name__": name})
        results[name] = "same"
    except BaseException:
        results[name] = traceback.format_exc()
print(json.dumps(results))
"""


def run(code: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=False)


@cache
def results() -> dict[str, str]:
    done = run(TOGETHER, json.dumps(PARTS))
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", PARTS)
def test_in_pytorch(name: str) -> None:
    assert results()[name] == "same"


def test_a_compilers_helpers_end_with_the_first_step() -> None:
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs g++ on the CPU")
    done = run(HELPERS)
    assert done.stdout.strip() == "same", done.stderr[-2000:]
