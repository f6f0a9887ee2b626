"""The work of a step against the ceilings measured beside it: a roofline, and the least time that each kind needs."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from metalmark.explain.findings import Findings
from metalmark.explain.job import Ceiling
from metalmark.model.explanation import OperationWork, Profile, Roofline
from metalmark.model.run import Absent

UPDATE = "optimizer"
"""The part of the counted work that is the optimiser's."""
CACHED_BYTES, CACHED_GAIN = 2 << 20, 4.0
"""A core's own cache holds what an operation of so few bytes moves, and is several times as fast as the memory that a
large copy measures."""
COUNTED = "counted from the shapes of its operations"
LEAST_MATCHED = 0.3
"""The share of a profile's time that must be of operations whose work is known, before it tells how time is divided."""


class WorkFloor(Struct, frozen=True):
    """The least time that arithmetic and memory traffic need at the ceilings."""

    compute_s: float
    memory_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.memory_s

    @property
    def compute_share(self) -> float:
        return self.compute_s / self.total_s if self.total_s > 0 else 0.0


def roofline_of(findings: Findings) -> Roofline | Absent:
    """Return the roofline of the resident step; Absent with the reason where work or ceilings are not known."""
    work, ceiling, resident = findings.counted, findings.ceiling, findings.resident
    if resident is None or not resident.seconds:
        return Absent(reason="the resident step was not timed")
    if isinstance(work, Absent):
        return work
    if ceiling is None or not ceiling.flops_per_s or not ceiling.bytes_per_s:
        why = ceiling.absent if ceiling is not None else ""
        return Absent(reason=why or "the ceilings of this device were not measured")
    flops, moved = sum(each.flops for each in work), sum(each.bytes for each in work)
    if moved <= 0:
        return Absent(reason="its operations move no bytes that could be counted")
    return Roofline(
        flops=flops, bytes=moved, step_s=resident.seconds, peak_flops_per_s=ceiling.flops_per_s,
        peak_bytes_per_s=ceiling.bytes_per_s, source=COUNTED,
    )  # fmt: skip


def arithmetic_s(work: OperationWork, ceiling: Ceiling) -> float:
    return work.flops / ceiling.flops_per_s if ceiling.flops_per_s else 0.0


def traffic_s(work: OperationWork, ceiling: Ceiling, *, cached: bool) -> float:
    """`cached`: whether small operations are faster than memory, as on a CPU."""
    if not ceiling.bytes_per_s:
        return 0.0
    small = cached and work.bytes < CACHED_BYTES * max(1, work.calls)
    return work.bytes / (ceiling.bytes_per_s * (CACHED_GAIN if small else 1.0))


def floor_of(work: Iterable[OperationWork], ceiling: Ceiling, *, cached: bool) -> WorkFloor:
    """Add up the least time of each kind of operation, under what limits it."""
    compute_s = memory_s = 0.0
    for each in work:
        computes_s, moves_s = arithmetic_s(each, ceiling), traffic_s(each, ceiling, cached=cached)
        if computes_s >= moves_s:
            compute_s += computes_s
        else:
            memory_s += moves_s
    return WorkFloor(compute_s, memory_s)


def profiled_split(
    profile: Profile | Absent, work: Sequence[OperationWork], ceiling: Ceiling, *, cached: bool
) -> WorkFloor | None:
    """Divide the profile's own times by what limits each kind of operation; None where too few kinds are known.

    Of an operation that both the passes and the optimiser use, the passes' share of its bytes counts.
    """
    if isinstance(profile, Absent):
        return None
    compute_s = memory_s = known_s = 0.0
    for cost in profile.operations:
        rows = [each for each in work if each.name == cost.name]
        known_s += cost.seconds if rows else 0.0
        passes = [each for each in rows if each.part != UPDATE]
        moved = sum(each.bytes for each in rows)
        share = sum(each.bytes for each in passes) / moved if moved else float(bool(passes))
        floor = floor_of(passes, ceiling, cached=cached)
        if floor.compute_s >= floor.memory_s:
            compute_s += cost.seconds * share
        else:
            memory_s += cost.seconds * share
    listed_s = sum(cost.seconds for cost in profile.operations)
    if listed_s <= 0 or known_s < LEAST_MATCHED * listed_s or compute_s + memory_s <= 0:
        return None
    return WorkFloor(compute_s, memory_s)
