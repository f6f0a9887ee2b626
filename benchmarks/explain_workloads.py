"""Networks of which it is known what a step of theirs waits for; benchmarks/explain_cases.py explains them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from metalmark import Batch, Param, Recipe, Workload
from metalmark.model.workload import Params


def tiny_batch(params: Params, rng: np.random.Generator) -> Batch:
    size = params["batch_size"], 8
    return Batch(inputs=(rng.standard_normal(size, np.float32),), targets=rng.standard_normal(size, np.float32))


def on_torch_tiny(params: Params) -> Recipe:
    import torch
    from torch import nn

    layers = [layer for _ in range(params["layers"]) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return Recipe(model=nn.Sequential(*layers), loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=1e-3))


tiny_kernels = Workload(
    name="tiny-kernels", title="Many layers of eight numbers each",
    params=(Param("batch_size", 1), Param("layers", 60)), build={"torch": on_torch_tiny}, batch=tiny_batch,
)  # fmt: skip


def square_batch(params: Params, rng: np.random.Generator) -> Batch:
    size = params["batch_size"], params["width"]
    return Batch(inputs=(rng.standard_normal(size, np.float32),), targets=rng.standard_normal(size, np.float32))


def on_torch_products(params: Params) -> Recipe:
    import torch
    from torch import nn

    width = params["width"]
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(params["layers"])))
    return Recipe(model=model, loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=1e-3))


large_products = Workload(
    name="large-products", title="Products of large matrices",
    params=(Param("batch_size", 512), Param("width", 768), Param("layers", 3)), build={"torch": on_torch_products},
    batch=square_batch,
)  # fmt: skip


def on_torch_elements(params: Params) -> Recipe:
    import torch
    from torch import nn

    class Elements(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.Parameter(torch.linspace(0.9, 1.1, params["layers"]))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for scale in self.scales:
                inputs = torch.relu(inputs * scale)
            return inputs

    return Recipe(model=Elements(), loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=1e-3))


element_wise = Workload(
    name="element-wise", title="Products and maxima of the elements of long vectors",
    params=(Param("batch_size", 8), Param("width", 1 << 19), Param("layers", 3)), build={"torch": on_torch_elements},
    batch=square_batch,
)  # fmt: skip


def rows_batch(params: Params, rng: np.random.Generator) -> Batch:
    size = params["batch_size"]
    return Batch(inputs=(rng.integers(0, params["rows"], (size, 4)),), targets=rng.integers(0, 10, size))


def on_torch_embedding(params: Params) -> Recipe:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(params["rows"], 64), nn.Flatten(), nn.Linear(256, 10))
    return Recipe(model=model, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adam, lr=1e-3))


huge_embedding = Workload(
    name="huge-embedding", title="A few rows of a huge embedding, trained by Adam",
    params=(Param("batch_size", 8), Param("rows", 200_000)), build={"torch": on_torch_embedding}, batch=rows_batch,
)  # fmt: skip


def on_torch_waiting(params: Params) -> Recipe:
    import torch
    from torch import nn

    width = params["width"]

    class Waiting(nn.Module):  # type: ignore[misc]
        """Looks at a number on the host in the middle of each forward pass."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(*(nn.Linear(width, width) for _ in range(params["layers"])))
            self.small = nn.Sequential(*(nn.Linear(8, 8) for _ in range(params["small_layers"])))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: Any = self.first(inputs)
            if outputs.abs().mean().item() > 1e6:
                raise ValueError("the outputs grow")
            small: Any = self.small(outputs[:, :8])
            return outputs + small.mean()

    return Recipe(model=Waiting(), loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=1e-6))


item_in_step = Workload(
    name="item-in-step", title="A network that reads a number on the host in every step",
    params=(Param("batch_size", 2048), Param("width", 2048), Param("layers", 6), Param("small_layers", 40)),
    build={"torch": on_torch_waiting}, batch=square_batch,
)  # fmt: skip
