"""Several processes in PyTorch: DistributedDataParallel over NCCL on NVIDIA GPUs, over Gloo elsewhere."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from metalmark.backends.ranks import ONE, Ranks
from metalmark.backends.torch_devices import resolve
from metalmark.errors import UnsupportedError
from metalmark.feeds.share import local_rank, share_here
from metalmark.model.plan import Plan, World
from metalmark.model.workload import Recipe

MOST_WAIT = timedelta(days=1)
"""Who waits for the others may wait for a long validation. A process that has ended is noticed by the launcher."""
OWN_STATISTICS = "Each process normalises by the statistics of its own part of the batch (BatchNorm)."


class TorchRanks:
    def __init__(self, device: torch.device) -> None:
        self.number, self.count, self._device = dist.get_rank(), dist.get_world_size(), device

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64, device=self._device)
        rows = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def apart(self, session: Any) -> AbstractContextManager[Any]:
        kept: AbstractContextManager[Any] = session.parallel.no_sync()
        return kept

    def leave(self) -> None:
        dist.destroy_process_group()


def join(plan: Plan) -> Ranks:
    """Meet the other processes, at the address that torchrun has put into the environment."""
    if share_here(plan) is None:
        return ONE
    device = device_of_rank(plan)
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    options: dict[str, Any] = {"device_id": device} if on_cuda else {}
    dist.init_process_group("nccl" if on_cuda else "gloo", timeout=MOST_WAIT, **options)
    return TorchRanks(device)


def device_of_rank(plan: Plan) -> torch.device:
    """Return the device of this process: on CUDA each has its own, elsewhere all have the CPU."""
    device, kind = resolve(plan.device)
    if not isinstance(plan.world, World) or device.type == "cpu":
        return device
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if plan.world.nproc > count:
        raise UnsupportedError(
            f"--nproc {plan.world.nproc} on torch, {kind.type}: each process needs a device, and there is {count}.",
            hint=f"Use --nproc {count}, or --device cpu.",
        )
    return torch.device(device.type, local_rank()) if device.type == "cuda" else device


def parallel(model: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Return the model as one whose gradients are the mean over all processes, from the first one's weights on."""
    if recipe.step is not None:
        raise UnsupportedError(
            "--nproc does not reach into a step of your own, which runs forward, backward and update itself.",
            hint="Give the recipe a model, a loss and an optimiser instead of a step, or leave --nproc out.",
        )
    return torch.nn.parallel.DistributedDataParallel(model)


def notes_on(model: torch.nn.Module) -> tuple[str, ...]:
    counts = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return (OWN_STATISTICS,) if counts else ()


def mean_loss(loss: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the loss over the whole batch, of each process's loss over its part."""
    shared = loss * (weight / dist.get_world_size())
    dist.all_reduce(shared)
    return shared
