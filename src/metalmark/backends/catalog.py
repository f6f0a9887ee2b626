"""The frameworks by name, known without importing one: how to find them, and what they can't do where."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from metalmark.backends.limits import LIMITS, Limit
from metalmark.errors import NotInstalledError, UnsupportedError, UsageError
from metalmark.model.plan import Dtype, Loader, Settings

if TYPE_CHECKING:
    from metalmark.backends.base import Backend

Environment = dict[str, str]


def _nothing(_: Settings) -> Environment:
    return {}


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


@dataclass(frozen=True, kw_only=True)
class Framework:
    name: str
    title: str
    family: str
    packages: tuple[str, ...]
    """Import names: all must be found for the framework to be installed."""
    environment: Callable[[Settings], Environment] = _nothing
    """Variables that must stand before the framework is imported."""
    hidden: bool = False

    @property
    def limits(self) -> tuple[Limit, ...]:
        return LIMITS[self.name]

    def missing(self) -> list[str]:
        return [package for package in self.packages if find_spec(package) is None]

    def backend(self) -> Backend:
        """Imports the framework: for workers and probes only."""
        return import_module(f"metalmark.backends.{self.name}").BACKEND  # type: ignore[no-any-return]

    def check(self, settings: Settings, device_type: str, loader: Loader | None = None) -> None:
        """Raise for a setting this framework does not have on this device; nothing asked for is ignored."""
        for limit in self.limits:
            if limit.forbids(settings, device_type, loader):
                raise UnsupportedError(f"{limit.flag} on {self.name}, {device_type}: {limit.reason}")


FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework(name="torch", title="PyTorch", family="torch", packages=("torch",)),
        Framework(
            name="tensorflow",
            title="TensorFlow (Keras 3, tf.function)",
            family="keras",
            packages=("tensorflow", "keras"),
            environment=_keras("tensorflow"),
        ),
        Framework(
            name="jax",
            title="JAX (Keras 3, jit)",
            family="keras",
            packages=("jax", "keras"),
            environment=_keras("jax"),
        ),
        Framework(name="mlx", title="MLX", family="mlx", packages=("mlx",), environment=_mlx),
        Framework(name="fake", title="a device in software, for tests", family="fake", packages=(), hidden=True),
    )
}


def visible() -> list[Framework]:
    return [framework for framework in FRAMEWORKS.values() if not framework.hidden]


def installed() -> list[Framework]:
    return [framework for framework in visible() if not framework.missing()]


def find(name: str) -> Framework:
    """The framework of that name, which must be installed."""
    framework = FRAMEWORKS.get(name)
    if framework is None:
        near = difflib.get_close_matches(name, FRAMEWORKS, n=1)
        raise UsageError(
            f"There is no framework {name!r}{f'; did you mean {near[0]}?' if near else '.'}",
            hint=f"Frameworks: {', '.join(f.name for f in visible())}, or all.",
        )
    missing = framework.missing()
    if missing:
        raise NotInstalledError(
            f"{framework.title} is not installed: Python finds no package {missing[0]!r}.",
            hint=f'Install it: pip install "metalmark[{name}]"',
        )
    return framework
