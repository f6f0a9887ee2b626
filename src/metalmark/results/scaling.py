"""How well several processes train one network: efficiency against one process, communication, the slowest of them."""

from collections.abc import Iterable

from msgspec import UNSET, Struct
from msgspec.structs import replace

from metalmark.model.measurement import WorldTimes
from metalmark.model.plan import Scaling, World
from metalmark.model.run import Absent
from metalmark.model.training import Epoch, RankEpoch
from metalmark.results.cells import Cell
from metalmark.stats.difference import difference
from metalmark.stats.summary import median

NOT_ASKED = Absent(
    reason="`metalmark train` exchanges gradients in every step; `metalmark bench --nproc` tells the share"
)


class Efficiency(Struct, frozen=True, kw_only=True):
    """The speed of several processes over that of one, and over their number: 1 is perfect. Strong: of the same batch,
    t1 / (n tn). Weak: of a batch per process, t1 / tn."""

    value: float
    low: float | None
    """Lower end of the 95% interval, by the same statistics as `metalmark compare`; None: too few repeats."""
    high: float | None


class RankFigures(Struct, frozen=True, kw_only=True):
    number: int
    step_s: float
    """Median seconds per step."""
    alone_s: float | None
    """The same without the exchange of gradients: what this process computes. None: not known."""


class WorldFigures(Struct, frozen=True, kw_only=True):
    ranks: tuple[RankFigures, ...]
    slowest: int
    """The process that computes longest; where that is not known, the one whose steps are longest."""
    communication_share: float | Absent
    """The part of a step that is left when the slowest process has computed: what the exchange adds to a step, not what
    happens beside computing."""


def efficiency(cell: Cell, cells: Iterable[Cell]) -> Efficiency | None:
    """Compare a cell with that of one process of the same plan and sweep; None where there is none."""
    world, sweep = cell.plan.world, cell.records[0].sweep
    if not isinstance(world, World) or cell.failure:
        return None
    one = replace(cell.plan, world=UNSET)
    same = [each for each in cells if each.plan == one and each.records[0].sweep == sweep and not each.failure]
    if not same:
        return None
    found = difference(same[0].step_times, cell.step_times)
    over = 1 if world.scaling is Scaling.WEAK else world.size
    ends = [None if end is None else end / over for end in (found.low, found.high)]
    return Efficiency(value=found.ratio / over, low=ends[0], high=ends[1])


def world_figures(times: WorldTimes) -> WorldFigures:
    ranks = tuple(
        RankFigures(number=one.number, step_s=median(one.step_s), alone_s=median(one.alone_s) if one.alone_s else None)
        for one in times.ranks
    )
    slowest = max(ranks, key=lambda rank: rank.alone_s if rank.alone_s is not None else rank.step_s)
    share: float | Absent = Absent(reason=times.not_alone)
    if slowest.alone_s is not None:
        # Block by block, each with the one before it: what slows the machine down for a while slows both.
        together = [max(turn) for turn in zip(*(one.together_s for one in times.ranks), strict=True)]
        alone = [max(turn) for turn in zip(*(one.alone_s for one in times.ranks), strict=True)]
        share = max(0.0, 1 - median([without / both for without, both in zip(alone, together, strict=True)]))
    return WorldFigures(ranks=ranks, slowest=slowest.number, communication_share=share)


def communication_share(cell: Cell) -> float | Absent | None:
    """Return the median over the repeats of a cell; None where it is one process."""
    shares = [world_figures(run.world).communication_share for run in cell.completed if run.world]
    known = [share for share in shares if not isinstance(share, Absent)]
    return median(known) if known else shares[0] if shares else None


def slowest_rank(epochs: Iterable[Epoch]) -> RankEpoch | None:
    """Return the seconds of the process that waited and computed longest over all epochs; None of one process."""
    sums: dict[int, RankEpoch] = {}
    for epoch in epochs:
        for one in epoch.ranks or ():
            held = sums.get(one.number, RankEpoch(number=one.number, input_s=0.0, compute_s=0.0))
            sums[one.number] = replace(
                held, input_s=held.input_s + one.input_s, compute_s=held.compute_s + one.compute_s
            )
    return max(sums.values(), key=lambda rank: rank.input_s + rank.compute_s, default=None)
