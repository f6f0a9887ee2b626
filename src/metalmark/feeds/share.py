"""Share: the part of each batch that one of several processes trains on."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from metalmark.errors import UnsupportedError
from metalmark.model.plan import Plan, Scaling, World

if TYPE_CHECKING:  # it imports NumPy, which the launcher of ranks does without
    from metalmark.feeds.leaves import Arrays

RANK, LOCAL_RANK, WORLD_SIZE = "RANK", "LOCAL_RANK", "WORLD_SIZE"
"""Environment variables that say which of the processes this one is: the names are torchrun's."""


@dataclass(frozen=True)
class Share:
    """Process `number` of `count`."""

    number: int
    count: int

    def part(self, arrays: "Arrays") -> tuple["Arrays", float]:
        """Return this process's part of a batch, and the weight that makes the mean over all processes the mean over
        the batch. Parts are equal but for the last batch of an epoch, of which a process may get nothing: it takes one
        sample then, with the weight 0, since every process has to take every step."""
        rows = _rows(arrays)
        begin, end = rows * self.number // self.count, rows * (self.number + 1) // self.count
        weight = (end - begin) * self.count / rows
        if begin == end:
            begin, end = 0, 1
        return tuple(array[begin:end] if array.ndim else array for array in arrays), weight


def share_here(plan: Plan) -> Share | None:
    """Return which process of the plan's world this one is; None of a plan for one process."""
    if not isinstance(plan.world, World):
        return None
    number, count = os.environ.get(RANK, ""), os.environ.get(WORLD_SIZE, "")
    if not (number.isdecimal() and count.isdecimal() and int(count) == plan.world.size):
        raise UnsupportedError(
            f"This plan is for {plan.world.label}, and here is one.",
            hint="Only `metalmark bench` and `metalmark train` start several processes.",
        )
    return Share(int(number), int(count))


def local_rank() -> int:
    return int(os.environ.get(LOCAL_RANK, "0"))


def for_all(plan: Plan) -> Plan:
    """Return the plan with the batch size of all processes together, from which each takes its part."""
    if isinstance(plan.world, World) and plan.world.scaling is Scaling.WEAK:
        params = {**plan.params, "batch_size": plan.samples_per_step}
        return replace(plan, params=params, world=replace(plan.world, scaling=Scaling.STRONG))
    return plan


def for_one(plan: Plan) -> Plan:
    """Return a plan of `for_all` with the batch size of each process."""
    if not isinstance(plan.world, World) or "batch_size" not in plan.params:
        return plan
    return replace(plan, params={**plan.params, "batch_size": plan.samples_per_step // plan.processes})


def _rows(arrays: "Arrays") -> int:
    lengths = {len(array) for array in arrays if array.ndim}
    if len(lengths) != 1:
        raise UnsupportedError(
            f"--nproc can't split this batch, whose arrays are of the lengths {sorted(lengths)}.",
            hint="Give every array of a batch its samples along the first dimension, or leave --nproc out.",
        )
    return lengths.pop()
