"""What is PyTorch's own: weights cast once in inference, a rate that falls, logits without a mask, uncounted norms."""

from __future__ import annotations

import shutil
import subprocess
import sys

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
print("same")
"""

FALLING = """
import torch
from metalmark.workloads.mobilenet_cifar10.on_torch import _decaying_adam
from metalmark.workloads.mobilenet_cifar10 import DECAY_RATE, LEARNING_RATE
weight = torch.nn.Parameter(torch.ones(3))
optimizer = _decaying_adam(10, iter([weight]))
for _ in range(10):
    weight.grad = torch.ones(3)
    optimizer.step()
rate = optimizer.param_groups[0]["lr"]
assert abs(rate / (LEARNING_RATE * DECAY_RATE) - 1) < 1e-6, rate
captured = _decaying_adam(10, [weight], capturable=True)
assert isinstance(captured.param_groups[0]["lr"], torch.Tensor), "a captured step reads it from the device"
print("same")
"""

NO_MASK = """
import torch
from metalmark.workloads.bert.on_torch import build
model = build({"batch_size": 2, "seq_len": 9, "size": "tiny", "attention": "sdpa"}).model.eval()
tokens = torch.randint(0, 1000, (2, 9))
with torch.no_grad():
    assert torch.equal(model(tokens), model.model(input_ids=tokens).logits)
print("same")
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
print("same")
"""

HELPERS = """
import psutil, time
from torch._inductor.async_compile import AsyncCompile
from metalmark.backends.torch import BACKEND
from metalmark.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
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

PARTS = {"cast_once": CAST_ONCE, "falling_rate": FALLING, "no_mask": NO_MASK, "norm": NORM, "helpers": HELPERS}


@pytest.mark.parametrize("name", PARTS)
def test_in_pytorch(name: str) -> None:
    code = PARTS[name]
    if "compile=True" in code and not shutil.which("g++"):
        pytest.skip("torch.compile needs g++ on the CPU")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "same", run.stderr[-2000:]
