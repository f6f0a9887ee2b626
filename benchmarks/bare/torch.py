from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn


def make(model: Any, batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> Callable[[int], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    ring = [
        (torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))), torch.from_numpy(labels).long())
        for images, labels in batches
    ]
    loss_of = nn.CrossEntropyLoss()

    def loop(steps: int) -> None:
        for step in range(steps):
            x, y = ring[step % len(ring)]
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()

    return loop
