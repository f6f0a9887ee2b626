"""What two frameworks do differently without a fault of either, and how a comparison takes account of it."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.parity import Quantity
from metalmark.model.workload import FAMILIES

KERAS = FAMILIES["keras"]
VARIANCE = (
    "PyTorch divides a running variance by n - 1, Keras by n, and so did MLX until 2026 "
    "(https://github.com/ml-explore/mlx/pull/3817): n is the number of values per channel in a batch."
)
EPSILON = (
    "Keras' Adam adds its epsilon before the bias correction, so that at step t it counts as epsilon / "
    "sqrt(1 - beta2^t); its default is 1e-7, where PyTorch's and MLX's is 1e-8. PyTorch's, where it is the reference, "
    "is made to count its own likewise."
)
BIAS_CORRECTION = (
    "Keras and MLX compute Adam's bias correction in float32, PyTorch in float64: their first steps are about 1e-5 "
    "of themselves apart. PyTorch's, where it is the reference, is made to do likewise."
)


def adam_epsilon(epsilon: float, *, beta2: float, step: int) -> float:
    """Return the epsilon with which PyTorch's or MLX's Adam does at this step, counted from 1, what Keras' does with
    `epsilon`.

    Keras: rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).
    PyTorch: rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).
    """
    return epsilon / math.sqrt(1 - beta2**step)


def bias_correction_factor(betas: tuple[float, float], step: int) -> float:
    """Return by what an Adam's step is longer that computes its bias correction in float32, as Keras and MLX do: of
    1 - 0.999 few digits are left."""
    exact, rounded = ([1 - kind(beta) ** kind(step) for beta in betas] for kind in (np.float64, np.float32))
    return float(exact[0] / np.float64(rounded[0]) * np.sqrt(np.float64(rounded[1]) / exact[1]))


def follow_adam(optimizers: Iterable[Any], framework: str) -> None:
    """Let PyTorch's Adam and AdamW, which are the reference, keep the conventions of the candidate's framework. Other
    frameworks' optimisers stay as they are."""
    if framework not in (*KERAS, "mlx"):
        return
    for optimizer in optimizers:
        kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(optimizer).__mro__}
        if kinds & {"torch.Adam", "torch.AdamW"}:
            convention = _AdamConvention(optimizer, is_keras=framework in KERAS)
            optimizer.register_step_pre_hook(convention.begin)
            optimizer.register_step_post_hook(convention.end)


class _AdamConvention:
    """Changes rate and epsilon for the time of a step. How many were taken is asked of the optimiser, which may have
    begun anew."""

    def __init__(self, optimizer: Any, *, is_keras: bool) -> None:
        self._epsilons = [group["eps"] for group in optimizer.param_groups]
        self._is_keras = is_keras
        self._factors: list[float] = []

    def begin(self, optimizer: Any, *_: object) -> None:
        self._factors = []
        for group, epsilon in zip(optimizer.param_groups, self._epsilons, strict=True):
            states = (optimizer.state[each] for each in group["params"] if each in optimizer.state)
            step = 1 + max((int(state["step"]) for state in states if "step" in state), default=0)
            self._factors.append(bias_correction_factor(group["betas"], step))
            group["lr"] *= self._factors[-1]
            if self._is_keras:
                group["eps"] = adam_epsilon(epsilon, beta2=group["betas"][1], step=step)

    def end(self, optimizer: Any, *_: object) -> None:
        # Not the rate from before: a schedule may have changed it within the step.
        for group, epsilon, factor in zip(optimizer.param_groups, self._epsilons, self._factors, strict=True):
            group["lr"] /= factor
            group["eps"] = epsilon


def notes_on(frameworks: tuple[str, ...], *, has_statistics: bool) -> tuple[str, ...]:
    has_keras = not frameworks or any(each in KERAS for each in frameworks)
    notes = [VARIANCE] if has_statistics else []
    if has_keras:
        notes.append(EPSILON)
    return (*notes, BIAS_CORRECTION)


def convention(reference: str, candidate: str, quantity: Quantity, name: str) -> str:
    """Return why a quantity may differ between two frameworks without a fault of either; empty where it may not."""
    theirs, mine = FRAMEWORKS[reference].family, FRAMEWORKS[candidate].family
    if theirs == mine:
        return ""
    variance = quantity is Quantity.STATISTIC and "var" in name.rpartition(".")[2].rpartition("/")[2]
    if variance and (reference in KERAS) != (candidate in KERAS):
        return "Keras' running variance divides by the number of samples, that of PyTorch and MLX by one less."
    if theirs != "torch" and quantity in (Quantity.OPTIMIZER, Quantity.UPDATE):
        return "The optimisers of two frameworks add epsilon in different places; only PyTorch's can follow another's."
    return ""
