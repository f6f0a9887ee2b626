"""What the device works on: arithmetic, memory traffic, and what the CPU does in its place."""

import math
from collections.abc import Sequence

from metalmark.explain.amounts import share_words, time_words
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts
from metalmark.explain.roofline import UPDATE, WorkFloor, floor_of, profiled_split
from metalmark.model.explanation import (
    Cause,
    ExperimentKind,
)
from metalmark.model.run import Absent

DEVICE_TIMES = frozenset({"torch.profiler"})
"""Profilers that time each operation where it runs, so that their total is the device's time."""


def work_floor(findings: Findings) -> WorkFloor | None:
    """The least time that the passes' work needs; with the update's, where that is not told apart."""
    work, ceiling = findings.counted, findings.ceiling
    if isinstance(work, Absent) or ceiling is None or not ceiling.flops_per_s or not ceiling.bytes_per_s:
        return None
    apart = findings.of(ExperimentKind.BACKWARD) is not None or not findings.training
    rows = [each for each in work if not apart or each.part != UPDATE]
    return floor_of(rows, ceiling, cached=not findings.asynchronous)


def find_fallback(findings: Findings, fallbacks: Sequence[str], most_s: float, parts: Parts) -> float:
    """Operations that ran on the CPU for want of a kernel, by the profile's times of them."""
    if not fallbacks:
        return 0.0
    named = ", ".join(fallbacks[:5])
    profile = findings.profile
    if isinstance(profile, Absent):
        parts.reasons.append(f"{named} ran on the CPU for want of a kernel; how long is not known: {profile.reason}")
        return 0.0
    wanted = {_bare(name) for name in fallbacks}
    seconds = sum(cost.seconds for cost in profile.operations if _bare(cost.name) in wanted)
    seconds = min(max(0.0, most_s), seconds)
    if seconds <= 0:
        parts.reasons.append(f"{named} ran on the CPU for want of a kernel, and is not among the slowest operations")
        return 0.0
    return parts.add(
        Cause.FALLBACK,
        seconds,
        0.2 * seconds,
        f"{named} ran on the CPU, by {profile.source}",
    )


def _bare(name: str) -> str:
    """aten::foo.out as foo."""
    return name.rpartition("::")[2].partition(".")[0]


def divide_work(
    findings: Findings,
    floor: WorkFloor | None,
    seconds: float,
    parts: Parts,
    *,
    whole: bool,
    error_s: float,
) -> None:
    """Divide what the device works into arithmetic and memory traffic. `whole`: whether all of it is the device's work;
    else only what the counted work needs at least is."""
    if seconds <= 0:
        return
    work, ceiling = findings.counted, findings.ceiling
    if floor is None or floor.total_s <= 0 or isinstance(work, Absent) or ceiling is None:
        _arithmetic_alone(findings, seconds, parts, error_s)
        return
    cached = not findings.asynchronous
    explained_s = min(seconds, floor.total_s)
    excess = 1 - explained_s / seconds
    compute = floor.compute_share
    source = "at the rates of a large product and a large copy"
    profiled = profiled_split(findings.profile, work, ceiling, cached=cached)
    unsure = excess * min(compute, 1 - compute)
    if profiled is not None:
        unsure = min(unsure, abs(profiled.compute_share - compute))
        compute = profiled.compute_share
        source += ", divided by the profiler's times of each kind"
    given_s = seconds if whole else explained_s
    if excess > 0.05 and whole:
        source += f"; the {share_words(excess)} above that are divided alike"
    for cause, share, least_s, word in (
        (Cause.COMPUTE, compute, floor.compute_s, "arithmetic is the limit of"),
        (Cause.MEMORY, 1 - compute, floor.memory_s, "memory is the limit of"),
    ):
        evidence = f"Operations that {word} need {time_words(least_s)} {source}"
        parts.add(
            cause,
            given_s * share,
            math.hypot(error_s * share, unsure * given_s),
            evidence,
        )


def _arithmetic_alone(findings: Findings, seconds: float, parts: Parts, error_s: float) -> None:
    """Without a count of all operations: what the workload's own arithmetic needs at least, and nothing more."""
    opened, ceiling, counted = findings.opened, findings.ceiling, findings.counted
    why = counted.reason if isinstance(counted, Absent) else "the ceilings were not measured"
    parts.reasons.append(f"Whether arithmetic or memory limits the device is not known: {why.rstrip('.')}")
    if opened is None or not opened.flops_per_step or ceiling is None or not ceiling.flops_per_s:
        return
    least_s = min(seconds, opened.flops_per_step / ceiling.flops_per_s)
    evidence = f"The network's arithmetic needs {time_words(least_s)} at least, at the rate of a large product"
    parts.add(Cause.COMPUTE, least_s, error_s * least_s / seconds, evidence)
