"""Several processes in JAX: one computation over all of their devices, with the batch split and the weights on each."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from metalmark.backends.ranks import ONE, Ranks
from metalmark.errors import UnsupportedError
from metalmark.feeds.share import Share, local_rank, share_here
from metalmark.model.plan import DeviceKind, Plan, World
from metalmark.model.workload import Recipe

ADDRESSES = "METALMARK_ADDRESSES"
AXIS = "batch"
MOST_WAIT_S = 120


class JaxRanks:
    def __init__(self) -> None:
        self.number, self.count = jax.process_index(), jax.process_count()

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        # As halves of whole numbers: JAX has no float64 unless it is asked for everywhere.
        halves = multihost_utils.process_allgather(np.array(values, np.float64).view(np.uint32))
        return [np.ascontiguousarray(row).view(np.float64).tolist() for row in np.asarray(halves)]

    def apart(self, session: Any) -> AbstractContextManager[Any]:
        kept: AbstractContextManager[Any] = session.apart()
        return kept

    def leave(self) -> None:
        jax.distributed.shutdown()


class SharedPlacing:
    """Where the arrays of one of several processes go: batches split over all, everything else on each."""

    def __init__(self, share: Share, device: Any) -> None:
        devices = [each for each in jax.devices() if each.platform == device.platform]
        mesh = Mesh(np.array(devices), (AXIS,))
        self._share, self._device = share, device
        self._whole, self._split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def state(self, tree: Any) -> Any:
        """Put what every process has alike on each of them."""
        return jax.tree.map(lambda leaf: self._made(self._whole, np.asarray(leaf)), tree)

    def part(self, arrays: Any) -> tuple[Any, ...]:
        """Put the parts that the processes have of a batch together as the batch."""
        return tuple(self._made(self._split if array.ndim else self._whole, array) for array in arrays)

    def batch(self, arrays: Any) -> tuple[Any, ...]:
        """Split a whole batch. One that can't be split equally is on each, and computed by each."""
        if any(array.ndim and len(array) % self._share.count for array in arrays):
            return tuple(self._made(self._whole, array) for array in arrays)
        return self.part(self._share.part(arrays)[0])

    def here(self, tree: Any) -> Any:
        """Return copies on this process's device alone of arrays, or of this process's parts of them."""
        return jax.tree.map(lambda leaf: jax.device_put(np.array(leaf.addressable_data(0)), self._device), tree)

    def _made(self, sharding: NamedSharding, array: Any) -> Any:
        return jax.make_array_from_process_local_data(sharding, array)


def join(plan: Plan) -> Ranks:
    """Meet the other processes at the first one's address. It must be the first that is asked of JAX."""
    share = share_here(plan)
    if share is None:
        return ONE
    assert isinstance(plan.world, World)
    address = os.environ[ADDRESSES].split(",")[0]
    options: dict[str, Any] = {"coordinator_bind_address": address} if plan.world.nnodes == 1 else {}
    if plan.device.kind is DeviceKind.CPU:
        jax.config.update("jax_platforms", "cpu")
    else:
        options["local_device_ids"] = local_rank()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, share.count, share.number, initialization_timeout=MOST_WAIT_S, **options)
    return JaxRanks()


def shared_placing(plan: Plan, recipe: Recipe, device: Any | None) -> SharedPlacing | None:
    share = share_here(plan)
    if share is None:
        return None
    if recipe.step is not None:
        raise UnsupportedError(
            "--nproc does not reach into a step of your own.",
            hint="Give the recipe a model, a loss and an optimiser instead of a step, or leave --nproc out.",
        )
    return SharedPlacing(share, device or jax.local_devices()[0])
