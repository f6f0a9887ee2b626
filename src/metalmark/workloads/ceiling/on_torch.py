from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.ceiling import PRODUCTS, SCALE


class Scaled(nn.Module):
    """By a plain number: with one that lies on the device, an array of another shape, an H200 reached 3.0 TB/s instead
    of 4.2. The parameter is there to tell where the model is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(SCALE))
        self._product: torch.Tensor | None = None

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        # Into the same memory in every step: new memory of this size is mapped page by page on a CPU, which took ten
        # times as long as writing to it.
        if self._product is None:
            self._product = torch.empty_like(numbers)
        return torch.mul(numbers, SCALE, out=self._product)


def matmul(params: Params) -> Recipe:
    width = params["width"]
    return _recipe(nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(PRODUCTS))))


def copy(_: Params) -> Recipe:
    return _recipe(Scaled())


def _recipe(model: nn.Module) -> Recipe:
    return Recipe(model=model, loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=0.0))
