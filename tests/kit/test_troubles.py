"""The three published troubles: each in a plain script, and gone with the library."""

from __future__ import annotations

import sys

import pytest

from tests.kit.conftest import Script
from tests.simulated.conftest import Simulated

MODEL = """
import sys, torch
import metalmark as mm
def fails(plain):
    try:
        plain()
    except (RuntimeError, TypeError) as error:
        print(error, file=sys.stderr)
    else:
        raise AssertionError("what a plain script does works")
device = mm.device()
assert device == "simulated" and "No mps" in device.why and "No cuda" in device.why, device.why
model = torch.nn.Linear(3, 2).to(device)
batch = {"x": torch.ones(4, 3), "more": [torch.zeros(4, dtype=torch.int64)]}
"""


def test_a_tensor_left_on_the_wrong_device(script: Script, simulated: Simulated) -> None:
    done = script(
        MODEL
        + "fails(lambda: model(batch['x']))\n"
        + "batch = mm.to_device(batch, device)\n"
        + "assert batch['more'][0].device.type == 'simulated'\n"
        + "print(model(batch['x']).shape)",
        needs="torch",
        **simulated(),
    )
    assert done.stdout == "torch.Size([4, 2])\n", done.stderr
    assert "Expected all tensors to be on the same device" in done.stderr


def test_an_accelerators_tensor_that_numpy_refuses(script: Script, simulated: Simulated) -> None:
    done = script(
        MODEL
        + "import numpy\n"
        + "loss = model(torch.ones(4, 3).to(device)).mean()\n"
        + "fails(lambda: numpy.asarray(loss.detach()))\n"
        + "array = mm.to_numpy(loss); print(type(array).__name__, array.shape, array.dtype)\n"
        + "print(mm.to_numpy({'w': torch.ones(2).to(device).bfloat16()}))",
        needs="torch",
        **simulated(),
    )
    assert done.stdout == "ndarray () float32\n{'w': array([1., 1.], dtype=float32)}\n", done.stderr
    assert "can't convert simulated:0 device type tensor to numpy" in done.stderr


def test_float64_becomes_float32_with_one_warning(script: Script, simulated: Simulated) -> None:
    done = script(
        MODEL
        + "import numpy\n"
        + "batch = {'a': torch.ones(2, dtype=torch.float64), 'b': [torch.ones(2, dtype=torch.complex128)]}\n"
        + "fails(lambda: batch['a'].to(device))\n"
        + "moved = mm.to_device(batch, device)\n"
        + "mm.to_device(batch, device)\n"
        + "print(moved['a'].dtype, moved['b'][0].dtype, mm.to_device(numpy.ones(2), device).dtype)\n"
        + "module = mm.to_device(torch.nn.Linear(2, 2).double(), device)\n"
        + "print(module(moved['a']).dtype, batch['a'].dtype)",
        needs="torch",
        **simulated(),
    )
    assert done.stdout == "torch.float32 torch.complex64 torch.float32\ntorch.float32 torch.float64\n", done.stderr
    assert "Cannot convert a simulated Tensor to float64" in done.stderr
    assert done.stderr.count("has no float64") == 1


LOADING = """
import torch, torch.utils.data
import metalmark as mm

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return torch.full((4,), float(index)), index

if __name__ == "__main__":
    loader = {loader}
    kept = [batch for batch in loader]  # as a script does that collects its predictions
    print(int(sum(numbers.sum() for _, numbers in kept)))
    print(getattr(loader, "why", {{}}).get("sharing"))
"""
PLAIN = LOADING.format(loader="torch.utils.data.DataLoader(Images(), batch_size=2, num_workers=2)")
OURS = LOADING.format(loader="mm.loader(Images(), batch_size=2, num_workers=2)")


@pytest.mark.skipif(sys.platform != "linux", reason="macOS shares by name, and 64 files do not start its workers")
@pytest.mark.parametrize(("limit", "strategy"), [("-n 64", "file_system"), ("-S -n 64", "file_descriptor")])
def test_too_many_open_files(script: Script, limit: str, strategy: str) -> None:
    """64 for good, where only another way to share helps; and 64 for now, as macOS does with 256."""
    plain = script(PLAIN, needs="torch", files=limit)
    assert plain.returncode != 0
    assert "Too many open files" in plain.stderr or "too many open files" in plain.stderr.lower(), plain.stderr
    ours = script(OURS, needs="torch", files=limit)
    assert ours.returncode == 0, ours.stderr
    total, sharing = ours.stdout.splitlines()
    assert total == "19900"
    assert sharing.startswith(strategy)
