"""Which setting each framework lacks on which device, and why: read by the worker before it builds
anything, and by `metalmark list frameworks`."""

from __future__ import annotations

from dataclasses import dataclass

from metalmark.model.plan import Loader, Settings

NOWHERE: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limit:
    """`setting` at `value` works only on the device types of `only`. A value of None means any that is set."""

    setting: str
    value: object = True
    only: tuple[str, ...] = NOWHERE
    loader: bool = False
    """It is one of the loader's settings, which only a plan with a pipeline has."""
    reason: str

    @property
    def flag(self) -> str:
        name = f"--{self.setting.replace('_', '-')}"
        return name if self.value in (True, None) else f"{name} {self.value}"

    def forbids(self, settings: Settings, device_type: str, loader: Loader | None = None) -> bool:
        holder = (loader or Loader()) if self.loader else settings
        asked = getattr(holder, self.setting)
        wanted = asked not in (None, False) if self.value in (True, None) else asked == self.value
        return bool(wanted) and device_type not in self.only


_TF32 = "TensorFloat-32 is a mode of NVIDIA's matrix units (Ampere and newer); nothing else has it."
_GRAPH = "only PyTorch captures whole-step CUDA graphs here."
_PIN = "only PyTorch's loader pins memory."
_THREADS = "the number of CPU threads decides nothing when the work is on an accelerator."

LIMITS: dict[str, tuple[Limit, ...]] = {
    "torch": (
        Limit(setting="dtype", value="tf32", only=("cuda",), reason=_TF32),
        Limit(
            setting="graph",
            only=("cuda",),
            reason="a CUDA graph needs an NVIDIA GPU; Metal and the CPU have nothing to capture into.",
        ),
        Limit(setting="threads", only=("cpu",), reason=_THREADS),
        Limit(
            setting="pin",
            loader=True,
            only=("cuda",),
            reason="pinned memory is for copies to an NVIDIA GPU. Apple's GPU shares the CPU's memory: PyTorch drops "
            "the setting there, and copies that nobody waits for gave wrong data (pytorch#139550).",
        ),
    ),
    "tensorflow": (
        Limit(setting="dtype", value="tf32", only=("cuda",), reason=_TF32),
        Limit(
            setting="dtype",
            value="bfloat16",
            only=("cpu", "cuda"),
            reason="nothing says that tensorflow-metal computes in bfloat16, and TensorFlow runs what a GPU lacks on "
            "the CPU without a word. Use float16.",
        ),
        Limit(setting="graph", reason=_GRAPH),
        Limit(
            setting="compile",
            only=("cpu", "cuda"),
            reason="--compile is XLA here (the step is a tf.function already), and tensorflow-metal has no XLA.",
        ),
        Limit(setting="fused", reason="Keras optimisers have no fused implementation."),
        Limit(setting="threads", only=("cpu",), reason=_THREADS),
        Limit(setting="pin", loader=True, reason=_PIN),
    ),
    "jax": (
        Limit(setting="dtype", value="tf32", only=("cuda",), reason=_TF32),
        Limit(setting="graph", reason=_GRAPH),
        Limit(setting="fused", reason="Keras optimisers have no fused implementation."),
        Limit(setting="threads", only=("cpu",), reason=_THREADS),
        Limit(setting="pin", loader=True, reason=_PIN),
    ),
    "mlx": (
        Limit(
            setting="dtype",
            value="tf32",
            only=("cuda",),
            reason="it is NVIDIA's; of other GPUs only the M5's has it, and MLX does not say whether it was used.",
        ),
        Limit(setting="graph", reason=_GRAPH),
        Limit(setting="fused", reason="MLX optimisers have no fused implementation; --compile fuses the update."),
        Limit(setting="threads", value=None, reason="MLX has no switch for its CPU threads."),
        Limit(setting="pin", loader=True, reason=_PIN),
    ),
    "fake": (Limit(setting="graph", reason=_GRAPH),),
}
