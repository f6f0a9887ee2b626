"""A recipe's parts in PyTorch: its models as one module, and its optimiser."""

import re
from typing import Any

import torch

from metalmark.errors import UnsupportedError
from metalmark.model.nest import flatten

SETTING_OF = {"fused": "fused", "capturable": "graph"}
MAKE_IT_FUSED = "Give the recipe a class or function (functools.partial(torch.optim.AdamW, lr=1e-3)), or leave it out."


def module_of(model: Any) -> torch.nn.Module:
    """Return the model, or one module that holds all models of a nest."""
    if isinstance(model, torch.nn.Module):
        return model
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise UnsupportedError(
            f"Recipe(model={model.__name__}) is a class, not a model.", hint=f"Make one: model={model.__name__}(...)."
        )
    modules, layout = flatten(model)
    for name, module in zip(layout.names, modules, strict=True):
        if not isinstance(module, torch.nn.Module):
            where = f"model{name} of the recipe" if name else "The recipe's model"
            raise UnsupportedError(
                f"{where} is a {type(module).__name__}, not a torch.nn.Module.",
                hint="Give one module, or a dict or list of modules.",
            )
    names = [re.sub(r"\W+", "_", name).strip("_") for name in layout.names]
    return torch.nn.ModuleDict(dict(zip(names, modules, strict=True)))


def make_optimizer(given: Any, trainable: list[torch.nn.Parameter], options: dict[str, bool]) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe, which is one, or a class or a function that makes one."""
    if isinstance(given, torch.optim.Optimizer):
        if options:
            asked = ", ".join(f"--{SETTING_OF[option]}" for option in options)
            raise UnsupportedError(f"{asked} does not reach an optimiser that is made already.", hint=MAKE_IT_FUSED)
        mine = set(map(id, trainable))
        if not any(id(parameter) in mine for group in given.param_groups for parameter in group["params"]):
            raise UnsupportedError(
                f"The {type(given).__name__} of the recipe holds no trainable parameter of its model.",
                hint="Make it from this model's own: torch.optim.Adam(model.parameters()).",
            )
        return given
    if not callable(given):
        what = "none" if given is None else f"a {type(given).__name__}"
        raise UnsupportedError(
            f"The recipe needs an optimiser and has {what}.", hint="Recipe(..., optimizer=torch.optim.Adam)"
        )
    try:
        made = given(trainable, **options)
    except (TypeError, RuntimeError, ValueError) as error:
        if not options:
            raise
        raise UnsupportedError(f"The optimiser refuses {', '.join(options)}: {error}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise UnsupportedError(
            f"The recipe's optimizer(parameters) returned a {type(made).__name__}, not a torch optimiser.",
            hint="Return torch.optim.Adam(parameters, ...).",
        )
    return made
