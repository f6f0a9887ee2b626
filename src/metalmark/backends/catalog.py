"""The frameworks by name, known without importing one: how to find them, and which settings they lack where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from metalmark.errors import NotInstalledError, UnsupportedError, UsageError, did_you_mean
from metalmark.model.plan import Dtype, Loader, Settings

if TYPE_CHECKING:
    from metalmark.backends.base import Backend

Environment = dict[str, str]
UNKNOWN = "unknown"
"""The version of a package whose description is damaged: it may still be imported and used."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A setting that works only on some types of device, and why. A value of None means any that is set."""

    setting: str
    value: object = True
    only: tuple[str, ...] = ()
    loader: bool = False
    """Whether it is one of the loader's settings, which only a plan with a pipeline has."""
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


@dataclass(frozen=True, kw_only=True)
class Framework:
    name: str
    title: str
    family: str
    """Frameworks of one family share the builders of each workload."""
    packages: tuple[str, ...]
    """Import names: all must be found for the framework to be installed."""
    environment: Callable[[Settings], Environment] = lambda _: {}
    """Variables that must be set before the framework is imported."""
    limits: tuple[Limit, ...] = ()
    """Settings it lacks, read by the worker before it builds anything, and by `metalmark list frameworks`."""
    hidden: bool = False

    def missing(self) -> list[str]:
        return [package for package in self.packages if find_spec(package) is None]

    def backend(self) -> Backend:
        """Import the framework: for workers and probes only."""
        return import_module(f"metalmark.backends.{self.name}").BACKEND  # type: ignore[no-any-return]

    def check(self, settings: Settings, device_type: str, loader: Loader | None = None) -> None:
        """Raise for a setting this framework does not have on this device; nothing asked for is ignored."""
        for limit in self.limits:
            if limit.forbids(settings, device_type, loader):
                raise UnsupportedError(f"{limit.flag} on {self.name}, {device_type}: {limit.reason}")


def _keras(backend: str) -> Callable[[Settings], Environment]:
    def environment(settings: Settings) -> Environment:
        variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
        if backend == "jax" and settings.threads is not None:
            # XLA's CPU client sizes its thread pool from this when it starts, and has no later switch.
            variables["PJRT_NPROC"] = str(settings.threads)
        return variables

    return environment


def _mlx(settings: Settings) -> Environment:
    # On NVIDIA and on the M5, MLX computes float32 in TensorFloat-32 unless told not to: float32 here means float32.
    return {"MLX_ENABLE_TF32": "1" if settings.dtype is Dtype.TF32 else "0"}


_TF32 = Limit(
    setting="dtype",
    value="tf32",
    only=("cuda",),
    reason="TensorFloat-32 is a mode of NVIDIA's matrix units (Ampere and newer); nothing else has it.",
)
_GRAPH = Limit(setting="graph", reason="only PyTorch captures whole-step CUDA graphs here.")
_FUSED = Limit(setting="fused", reason="Keras optimisers have no fused implementation.")
_THREADS = Limit(
    setting="threads",
    only=("cpu",),
    reason="the number of CPU threads decides nothing when the work is on an accelerator.",
)
_PIN = Limit(setting="pin", loader=True, reason="only PyTorch's loader pins memory.")

_FRAMEWORKS = (
    Framework(
        name="torch",
        title="PyTorch",
        family="torch",
        packages=("torch",),
        limits=(
            _TF32,
            Limit(
                setting="graph",
                only=("cuda",),
                reason="a CUDA graph needs an NVIDIA GPU; Metal and the CPU have nothing to capture into.",
            ),
            _THREADS,
            Limit(
                setting="pin",
                loader=True,
                only=("cuda",),
                reason="pinned memory is for copies to an NVIDIA GPU. Apple's GPU shares the CPU's memory: PyTorch "
                "drops the setting there, and copies that nobody waits for gave wrong data (pytorch#139550).",
            ),
        ),
    ),
    Framework(
        name="tensorflow",
        title="TensorFlow (Keras 3, tf.function)",
        family="keras",
        packages=("tensorflow", "keras"),
        environment=_keras("tensorflow"),
        limits=(
            _TF32,
            Limit(
                setting="dtype",
                value="bfloat16",
                only=("cpu", "cuda"),
                reason="nothing says that tensorflow-metal computes in bfloat16, and TensorFlow runs what a GPU lacks "
                "on the CPU without a word. Use float16.",
            ),
            _GRAPH,
            Limit(
                setting="compile",
                only=("cpu", "cuda"),
                reason="--compile is XLA here (the step is a tf.function already), and tensorflow-metal has no XLA.",
            ),
            _FUSED,
            _THREADS,
            _PIN,
        ),
    ),
    Framework(
        name="jax",
        title="JAX (Keras 3, jit)",
        family="keras",
        packages=("jax", "keras"),
        environment=_keras("jax"),
        limits=(_TF32, _GRAPH, _FUSED, _THREADS, _PIN),
    ),
    Framework(
        name="mlx",
        title="MLX",
        family="mlx",
        packages=("mlx",),
        environment=_mlx,
        limits=(
            Limit(
                setting="dtype",
                value="tf32",
                only=("cuda",),
                reason="it is NVIDIA's; of other GPUs only the M5's has it, and MLX does not say whether it was used.",
            ),
            _GRAPH,
            Limit(setting="fused", reason="MLX optimisers have no fused implementation; --compile fuses the update."),
            Limit(setting="threads", value=None, reason="MLX has no switch for its CPU threads."),
            _PIN,
        ),
    ),
    Framework(
        name="fake",
        title="a device in software, for tests",
        family="fake",
        packages=(),
        hidden=True,
        limits=(_GRAPH,),
    ),
)
FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in _FRAMEWORKS}


def visible() -> list[Framework]:
    return [framework for framework in FRAMEWORKS.values() if not framework.hidden]


def installed() -> list[Framework]:
    return [framework for framework in visible() if not framework.missing()]


def find(name: str) -> Framework:
    """Return the framework of that name, which must be installed."""
    framework = FRAMEWORKS.get(name)
    if framework is None:
        raise UsageError(
            f"There is no framework {name!r}{did_you_mean(name, FRAMEWORKS)}",
            hint=f"Frameworks: {', '.join(f.name for f in visible())}, or all.",
        )
    missing = framework.missing()
    if missing:
        raise NotInstalledError(
            f"{framework.title} is not installed: Python finds no package {missing[0]!r}.",
            hint=f'Install it: pip install "metalmark[{name}]"',
        )
    return framework


def version_of(package: str, module: Any = None) -> str | None:
    """Return the version that `module` has in `__version__`, else its package's; None where it is not installed."""
    told = getattr(module, "__version__", None)
    if isinstance(told, str) and told:
        return str(told)
    try:
        described = metadata.distribution(package).metadata
        # Asked first: from Python 3.12 on, a missing field is a warning, and later an error.
        return (described["Version"] or UNKNOWN) if "Version" in described else UNKNOWN
    except metadata.PackageNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):  # newer Pythons, where the description is missing as a whole
        return UNKNOWN
