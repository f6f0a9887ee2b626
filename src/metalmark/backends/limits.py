"""Which setting each framework lacks on which device, and why: read by the worker before it builds
anything, and by `metalmark list frameworks`."""

from __future__ import annotations

from dataclasses import dataclass

from metalmark.plan import Settings

NOWHERE: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limit:
    """`setting` at `value` works only on the device types of `only`. A value of None means any that is set."""

    setting: str
    value: object = True
    only: tuple[str, ...] = NOWHERE
    reason: str

    @property
    def flag(self) -> str:
        name = f"--{self.setting.replace('_', '-')}"
        return name if self.value in (True, None) else f"{name} {self.value}"

    def forbids(self, settings: Settings, device_type: str) -> bool:
        asked = getattr(settings, self.setting)
        wanted = asked not in (None, False) if self.value in (True, None) else asked == self.value
        return bool(wanted) and device_type not in self.only


_TF32 = "TensorFloat-32 is a mode of NVIDIA's matrix units (Ampere and newer); nothing else has it."
_GRAPH = "only PyTorch captures whole-step CUDA graphs here."
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
    ),
    "tensorflow": (
        Limit(setting="dtype", value="tf32", only=("cuda",), reason=_TF32),
        Limit(setting="graph", reason=_GRAPH),
        Limit(
            setting="compile",
            only=("cpu", "cuda"),
            reason="--compile is XLA here (the step is a tf.function already), and tensorflow-metal has no XLA.",
        ),
        Limit(setting="fused", reason="Keras optimisers have no fused implementation."),
        Limit(setting="threads", only=("cpu",), reason=_THREADS),
    ),
    "jax": (
        Limit(setting="dtype", value="tf32", only=("cuda",), reason=_TF32),
        Limit(setting="graph", reason=_GRAPH),
        Limit(setting="fused", reason="Keras optimisers have no fused implementation."),
        Limit(setting="threads", only=("cpu",), reason=_THREADS),
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
    ),
    "fake": (Limit(setting="graph", reason=_GRAPH),),
}
