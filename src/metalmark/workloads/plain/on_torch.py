from typing import Any

import torch

from metalmark.model.nest import flatten, is_number
from metalmark.model.workload import Recipe


def recipe(model: torch.nn.Module, *, with_targets: bool) -> Recipe:  # noqa: ARG001  only Keras models bring a loss
    """Targets of an example stay unused: which loss they belong to is not known."""
    return Recipe(model=model, loss=stand_in, optimizer=torch.optim.Adam)


def stand_in(outputs: Any, _: Any) -> torch.Tensor:
    """Return the model's own loss where it has one, else the mean square distance from 1, -1, 1, ..."""
    own = outputs if is_number(outputs) else getattr(outputs, "loss", None)
    if own is not None:
        return own
    floats = [leaf for leaf in flatten(outputs)[0] if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return torch.stack([(leaf.float() - _pattern(leaf)).square().mean() for leaf in floats]).sum()


def _pattern(leaf: torch.Tensor) -> torch.Tensor:
    return 1.0 - 2.0 * (torch.arange(leaf.shape[-1], device=leaf.device) % 2)
