"""Several processes in MLX: its ring of connections between them, over which gradients are averaged."""

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from mlx import core as mx
from mlx import nn
from mlx.utils import tree_map

from metalmark.backends.ranks import ONE, Ranks
from metalmark.errors import UnsupportedError
from metalmark.feeds.share import share_here
from metalmark.model.plan import Plan
from metalmark.model.workload import Recipe

ADDRESSES, FOLDER = "METALMARK_ADDRESSES", "METALMARK_RANKS"
OWN_STATISTICS = "Each process normalises by the statistics of its own part of the batch (BatchNorm)."


class MlxRanks:
    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        # As halves of whole numbers: MLX has no float64 on a GPU.
        halves = mx.array(np.array([values], np.float64).view(np.uint32))
        rows = np.array(mx.distributed.all_gather(halves, stream=mx.cpu))
        return [row.view(np.float64).tolist() for row in rows]

    def apart(self, session: Any) -> AbstractContextManager[Any]:
        kept: AbstractContextManager[Any] = session.apart()
        return kept

    def leave(self) -> None:
        """Its connections end with the process. Who is first must not go before the others have had all."""
        self.gather([0.0])


def join(plan: Plan) -> Ranks:
    """Connect to the two neighbours in the ring."""
    share = share_here(plan)
    if share is None:
        return ONE
    if not mx.distributed.is_available("ring"):
        raise UnsupportedError("This build of MLX has no ring of processes.", hint="Install MLX's own wheel.")
    hosts = Path(os.environ[FOLDER]) / f"hosts-{share.number}.json"
    hosts.write_text(json.dumps([[address] for address in os.environ[ADDRESSES].split(",")]), encoding="utf-8")
    os.environ |= {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(share.number)}
    mx.distributed.init(strict=True, backend="ring")
    return MlxRanks(share.number, share.count)


def refuse(recipe: Recipe) -> None:
    if recipe.step is not None:
        raise UnsupportedError(
            "--nproc does not reach into a step of your own, which runs forward, backward and update itself.",
            hint="Give the recipe a model, a loss and an optimiser instead of a step, or leave --nproc out.",
        )


def notes_on(model: nn.Module) -> tuple[str, ...]:
    return (OWN_STATISTICS,) if any(isinstance(module, nn.BatchNorm) for module in model.modules()) else ()


def mean_gradients(gradients: Any, weight: float) -> Any:
    """Return the gradients over the whole batch, of each process's over its part."""
    return nn.average_gradients(gradients if weight == 1.0 else tree_map(lambda array: array * weight, gradients))


def mean_loss(loss: Any, weight: float) -> Any:
    """Return the loss over the whole batch, of each process's loss over its part."""
    return mx.distributed.all_sum(loss * weight) / mx.distributed.init().size()
