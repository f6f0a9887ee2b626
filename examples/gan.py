"""A GAN: two networks, two optimisers, and a step that only you could write.

metalmark bench examples/gan.py:gan
metalmark train examples/gan.py:gan --epochs 5
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from metalmark import Param, Recipe, Workload


def on_torch(params):
    maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    judge = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))

    def verdict(points, real):
        scores = judge(points)
        return binary_cross_entropy_with_logits(scores, torch.full_like(scores, real))

    def step(inputs, targets):
        """One step of each: the judge learns to tell points from made ones, the maker to deceive it."""
        made = maker(torch.randn(len(inputs), 8, device=inputs.device))
        of_judge.zero_grad()
        judged = verdict(inputs, 1.0) + verdict(made.detach(), 0.0)
        judged.backward()
        of_judge.step()
        of_maker.zero_grad()
        deceived = verdict(made, 1.0)
        deceived.backward()
        of_maker.step()
        return {"judge": judged, "maker": deceived}

    def validate(inputs, targets):
        """How sure the judge is of points that it has not seen."""
        return verdict(inputs, 1.0)

    return Recipe(model={"maker": maker, "judge": judge}, optimizer={"maker": of_maker, "judge": of_judge},
                  step=step, validate=validate)  # fmt: skip


def ring(params):
    """Points on a circle."""
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 2000)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


gan = Workload(
    name="gan",
    title="A small GAN on points of a circle",
    params=(Param("batch_size", 64, "samples per step", minimum=1),),
    build={"torch": on_torch},
    data=ring,
)
