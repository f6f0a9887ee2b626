"""PyTorch on a Mac: Metal is the simulated accelerator of tests/simulated, which can't itself be called mps.

A user's own script has the real PyTorch, so the calls that take a device learn the word mps there too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pretend_mac import machine
from pretend_mac.stand_ins import SIMULATED, StandIn

FACTORIES = ("arange", "as_tensor", "empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")


def changed(real: Any) -> dict[str, Any]:
    # A hosted runner's virtual machine says that it has Metal, and then can't allocate a single element.
    has_metal = machine.has_metal("torch") or machine.virtual()

    class Device(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real.device)

        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return real.device(*(_mapped(real, value) for value in arguments), **options)

    for owner, names in ((real, FACTORIES), (real.Tensor, ("to",)), (real.nn.Module, ("to",))):
        for name in names:
            setattr(owner, name, _knowing_mps(real, getattr(owner, name)))
    mps = {
        "synchronize": lambda: real.accelerator.synchronize(),
        "current_allocated_memory": _held,
        "driver_allocated_memory": lambda: _held() + (32 << 20),
        "recommended_max_memory": lambda: machine.memory_bytes() * 3 // 4,
        "get_rng_state": lambda *_: real.get_rng_state(),
        "set_rng_state": lambda state, *_: real.set_rng_state(state),
        "is_available": lambda: has_metal,
        "device_count": lambda: int(has_metal),
    }
    backend = {"is_available": lambda: has_metal, "is_built": lambda: True}
    accelerator = {} if has_metal else {"is_available": lambda: False, "current_accelerator": lambda *_: None}
    return {
        "device": Device("device", (), {}),
        "mps": StandIn(real.mps, mps, set()),
        "backends": StandIn(real.backends, {"mps": StandIn(real.backends.mps, backend, set())}, set()),
        "accelerator": StandIn(real.accelerator, accelerator, set()),
    }


def _knowing_mps(real: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if "device" in options:
            options["device"] = _mapped(real, options["device"])
        return function(*(_mapped(real, value) for value in arguments), **options)

    return call


def _mapped(real: Any, value: Any) -> Any:
    """The word mps, or PyTorch's device of that name, as the simulated device."""
    if isinstance(value, str) and value.partition(":")[0] == "mps":
        return value.replace("mps", SIMULATED)
    if isinstance(value, real.device) and value.type == "mps":
        return real.device(SIMULATED, value.index or 0)
    return value


def _held() -> int:
    """What the simulated device holds. Only a process that has the device asks."""
    from simulated_plugin import held_bytes  # type: ignore[import-not-found]

    return int(held_bytes())
