"""Variables that are set and do nothing here, or hide a fault, or were for one hour of debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from metalmark.doctor.mps_fallback import FALLBACK, is_on
from metalmark.doctor.scene import Scene

_OFF = ("", "0", "false", "off", "no")


def _on(value: str) -> bool:
    return value.strip().lower() not in _OFF


@dataclass(frozen=True, kw_only=True)
class Leftover:
    names: tuple[str, ...]
    when: Callable[[Scene, str], bool]
    """Whether it is one, on that machine, with that value."""
    why: str


LEFTOVERS = (
    Leftover(
        names=("PYTORCH_ENABLE_NNPACK",),
        when=lambda _, __: True,
        why="No PyTorch reads it; torch.backends.nnpack.set_flags(False) is the real switch.",
    ),
    Leftover(
        names=(FALLBACK,),
        when=lambda scene, value: scene.mac and is_on(value) is None,
        why="PyTorch reads it as a number, and aborts while it is imported where it is not one: 1 or 0, or unset.",
    ),
    Leftover(
        names=(FALLBACK,),
        when=lambda scene, value: scene.mac and is_on(value) is True,
        why="It lets operations that Metal lacks run on the CPU, with a copy there and back in each step; "
        "without it they stop by name. Keep it if you know which they are.",
    ),
    Leftover(
        names=(
            FALLBACK,
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
            "PYTORCH_MPS_LOW_WATERMARK_RATIO",
            "PYTORCH_MPS_FAST_MATH",
            "PYTORCH_MPS_PREFER_METAL",
            "PYTORCH_DEBUG_MPS_ALLOCATOR",
        ),
        when=lambda scene, _: not scene.mac,
        why="It steers Metal, and this is not a Mac: it does nothing here.",
    ),
    Leftover(
        names=("PYTORCH_DEBUG_MPS_ALLOCATOR",),
        when=lambda scene, value: scene.mac and _on(value),
        why="It prints every allocation, which takes time: for debugging only.",
    ),
    Leftover(
        names=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_LAUNCH_BLOCKING"),
        when=lambda scene, _: scene.mac,
        why="It steers CUDA, which no Mac has: it does nothing here.",
    ),
    Leftover(
        names=("CUDA_LAUNCH_BLOCKING",),
        when=lambda scene, value: not scene.mac and _on(value),
        why="It makes the host wait for each kernel, so training is slower: for debugging only.",
    ),
    Leftover(
        names=("PYTORCH_NO_CUDA_MEMORY_CACHING",),
        when=lambda scene, _: not scene.mac,
        why="It sends each allocation to the driver, so training is slower: for debugging only.",
    ),
    Leftover(
        names=("KMP_DUPLICATE_LIB_OK",),
        when=lambda _, value: _on(value),
        why="It hides that two OpenMP runtimes are loaded, which can crash or compute wrongly in silence.",
    ),
    Leftover(
        names=("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",),
        when=lambda _, value: value.strip() == "python",
        why="It hides that a package does not fit the installed protobuf, and parses slowly; `pip check` names it.",
    ),
    Leftover(
        names=("TF_CPP_MIN_LOG_LEVEL",),
        when=lambda _, value: value.strip() == "3",
        why="It hides TensorFlow's errors, such as why it found no GPU; 2 hides only its warnings.",
    ),
    Leftover(
        names=("TF_ENABLE_ONEDNN_OPTS",),
        when=lambda scene, value: scene.architecture == "x86_64" and not scene.mac and not _on(value),
        why="0 silences a line of TensorFlow's log by turning its faster CPU kernels off.",
    ),
    Leftover(
        names=("TF_XLA_FLAGS",),
        when=lambda scene, value: scene.mac and "auto_jit" in value and scene.has("tensorflow-metal"),
        why="XLA has no compiler for Metal, so what it is asked to compile fails.",
    ),
)


def leftovers(scene: Scene) -> Iterator[tuple[str, str]]:
    """Name and reason, each name once."""
    for leftover in LEFTOVERS:
        for name in leftover.names:
            value = scene.environment.get(name)
            if value is not None and leftover.when(scene, value):
                yield name, leftover.why
