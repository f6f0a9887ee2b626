"""Several processes that train one network, in words: what was asked for, the times of each, and how well it scales."""

from collections.abc import Sequence

from metalmark.model.measurement import WorldTimes
from metalmark.model.plan import Scaling, World
from metalmark.model.run import Absent
from metalmark.model.training import TrainingRun
from metalmark.report.text.units import known, seconds, share
from metalmark.results.cells import Cell
from metalmark.results.scaling import (
    NOT_ASKED,
    Efficiency,
    communication_share,
    efficiency,
    slowest_rank,
    world_figures,
)

WORLD = (
    "ranks", "nodes", "scaling", "efficiency", "efficiency_low", "efficiency_high", "communication_share",
    "slowest_rank",
)  # fmt: skip
"""Of sweeps in which several processes train one network."""
EFFICIENCY_NOTE = (
    "efficiency: the speed of several processes over that of one, and over their number. On one CPU they share the "
    "cores that one process has alone, unless --threads is the same for both."
)
COMMUNICATION_NOTE = (
    "communication: the part of a step that exchanging gradients adds, by steps with the exchange and steps without in "
    "turn."
)


def world_words(world: World) -> str:
    where = f"{world.nproc} on each of {world.nnodes} machines" if world.nnodes > 1 else "on one machine"
    how = "each has a batch" if world.scaling is Scaling.WEAK else "they split the batch"
    return f"{world.size}, {where}; {how} ({world.scaling.value} scaling)"


def rank_facts(times: WorldTimes) -> list[tuple[str, str]]:
    """The steps of each process, which of them is the slowest, and what the exchange adds."""
    found = world_figures(times)
    parts = [
        f"{rank.number}: {seconds(rank.step_s)}"
        f"{f' ({seconds(rank.alone_s)} without the exchange)' if rank.alone_s is not None else ''}"
        for rank in found.ranks
    ]
    share_words = known(found.communication_share, lambda part: f"{share(part)} of a step", "")
    reason = found.communication_share.reason if isinstance(found.communication_share, Absent) else ""
    return [
        ("step of each rank", "; ".join(parts)),
        ("slowest rank", str(found.slowest)),
        ("communication", share_words or f"unknown: {reason}"),
    ]


def epoch_rank_facts(run: TrainingRun) -> list[tuple[str, str]]:
    """What each process spent with training, and which of them is the slowest."""
    slowest = slowest_rank(run.epochs)
    if slowest is None:
        return []
    last = [f"{one.number}: {seconds(one.input_s + one.compute_s)}" for one in run.epochs[-1].ranks or ()]
    return [
        ("last epoch of each rank", "; ".join(last)),
        ("slowest rank", f"{slowest.number}, {seconds(slowest.input_s + slowest.compute_s)} in all"),
        ("communication", f"unknown: {NOT_ASKED.reason}"),
    ]


def efficiency_words(found: Efficiency | None) -> str:
    if found is None:
        return ""
    ends = "" if found.low is None or found.high is None else f" ({found.low * 100:.0f}–{found.high * 100:.0f}%)"
    return f"{found.value * 100:.0f}%{ends}"


def world_notes(cells: Sequence[Cell]) -> list[str]:
    """What the columns of several processes mean, where a table has them, and why one is missing."""
    lines = [EFFICIENCY_NOTE] if any(efficiency(cell, cells) for cell in cells) else []
    shares = [communication_share(cell) for cell in cells if not cell.failure]
    lines += [COMMUNICATION_NOTE] if any(isinstance(found, float) for found in shares) else []
    unknown = [f"communication unknown: {found.reason}." for found in shares if isinstance(found, Absent)]
    return [*lines, *dict.fromkeys(unknown)]


def world_row(cell: Cell, cells: Sequence[Cell]) -> list[object]:
    world, found, spent = cell.plan.world, efficiency(cell, cells), communication_share(cell)
    slowest = [world_figures(run.world).slowest for run in cell.completed if run.world]
    return [
        cell.plan.processes, world.nnodes if world else 1, world.scaling.value if world else None,
        found and found.value, found and found.low, found and found.high, spent if isinstance(spent, float) else None,
        slowest[-1] if slowest else None,
    ]  # fmt: skip
