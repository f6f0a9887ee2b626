from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn


def make(images: np.ndarray, labels: np.ndarray) -> Callable[[int], None]:
    side = (images.shape[1] - 2) // 2
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * side * side, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    y = torch.from_numpy(labels).long()
    loss_of = nn.CrossEntropyLoss()

    def loop(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()

    return loop
