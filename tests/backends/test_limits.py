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


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "mlx", "fake"])
@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        (Settings(compile_mode="max-autotune"), "--compile-mode"),
        (Settings(attention_kernel="math"), "--attention-kernel"),
        (Settings(accumulate=2), "--accumulate"),
        (Settings(recompute=True), "--recompute"),
        (Settings(conv_search=True), "--conv-search"),
    ],
)
def test_settings_of_pytorch_are_refused_elsewhere(framework: str, settings: Settings, flag: str) -> None:
    if framework == "fake" and settings.accumulate > 1:
        FRAMEWORKS[framework].check(settings, "gpu")  # the software device runs batches in parts for tests of the tuner
        return
    for device_type in ("cpu", "cuda", "mps"):
        with pytest.raises(UnsupportedError, match=rf"^{flag} on {framework}, {device_type}: .*PyTorch"):
            FRAMEWORKS[framework].check(settings, device_type)


@pytest.mark.parametrize(
    ("settings", "works_on"),
    [
        (Settings(compile=True, compile_mode="reduce-overhead"), {"cuda"}),
        (Settings(compile=True, compile_mode="max-autotune"), {"cuda"}),
        (Settings(compile=True, compile_mode="max-autotune-no-cudagraphs"), {"cpu", "cuda"}),
        (Settings(compile=True, compile_mode="combo-kernels"), {"cuda"}),
        (Settings(attention_kernel="math"), {"cpu", "cuda", "mps"}),
        (Settings(attention_kernel="flash"), {"cpu", "cuda"}),
        (Settings(attention_kernel="efficient"), {"cuda"}),
        (Settings(attention_kernel="cudnn"), {"cuda"}),
        (Settings(accumulate=4), {"cpu", "cuda", "mps"}),
        (Settings(recompute=True), {"cpu", "cuda"}),
        (Settings(conv_search=True), {"cuda"}),
        (Settings(compile_mode="max-autotune-no-cudagraphs"), set()),
    ],
)
def test_settings_of_pytorch_by_device(settings: Settings, works_on: set[str]) -> None:
    for device_type in ("cpu", "cuda", "mps"):
        if device_type in works_on:
            FRAMEWORKS["torch"].check(settings, device_type)
        else:
            with pytest.raises(UnsupportedError, match=r"^--.*\."):
                FRAMEWORKS["torch"].check(settings, device_type)
