"""Settings that a device does not have, known without a framework."""

from __future__ import annotations

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Dtype, Loader, Settings

PLAIN = Settings()


@pytest.mark.parametrize("device_type", ["mps", "cpu", "simulated"])
def test_memory_is_pinned_for_cuda_alone(device_type: str) -> None:
    torch = FRAMEWORKS["torch"]
    with pytest.raises(UnsupportedError, match=rf"--pin on torch, {device_type}: .*pytorch#139550"):
        torch.check(PLAIN, device_type, Loader(pin=True))
    torch.check(PLAIN, device_type, Loader())
    torch.check(PLAIN, device_type)
    torch.check(PLAIN, "cuda", Loader(pin=True))


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "mlx"])
def test_others_do_not_pass_over_it_in_silence(framework: str) -> None:
    with pytest.raises(UnsupportedError, match="only PyTorch's loader"):
        FRAMEWORKS[framework].check(PLAIN, "cuda", Loader(pin=True))


def test_tensorflow_metal_is_not_asked_for_bfloat16() -> None:
    tensorflow = FRAMEWORKS["tensorflow"]
    with pytest.raises(UnsupportedError, match="--dtype bfloat16 on tensorflow, mps"):
        tensorflow.check(Settings(dtype=Dtype.BFLOAT16), "mps")
    for device_type in ("cpu", "cuda"):
        tensorflow.check(Settings(dtype=Dtype.BFLOAT16), device_type)
    tensorflow.check(Settings(dtype=Dtype.FLOAT16), "mps")
