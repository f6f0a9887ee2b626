"""The parts of a resident step on a device that computes at once, the CPU: they follow each other."""

from collections.abc import Sequence

from metalmark.explain.amounts import time_words
from metalmark.explain.device_work import DEVICE_TIMES, divide_work, find_fallback, work_floor
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts, SharePart
from metalmark.explain.roofline import UPDATE, WorkFloor
from metalmark.explain.update_time import update_time
from metalmark.model.explanation import (
    Cause,
    Experiment,
    ExperimentKind,
)
from metalmark.model.run import Absent

LONGEST_CALL_S = 100e-6
"""Python and dispatch need no longer for one operation that does some work, with all views and checks around it."""


def split_synchronous(
    findings: Findings,
    resident: Experiment,
    fallbacks: Sequence[str],
    slowed_s: float,
    parts: Parts,
) -> None:
    """The update, the fixed cost and the work follow each other."""
    assert resident.seconds is not None
    # What slows the step as a whole slows all its parts, so they share what is left alike.
    left = (resident.seconds - slowed_s) / resident.seconds
    update_s, update_error_s, update_evidence = update_time(findings, resident, parts)
    if findings.training and not update_evidence and findings.cost is not None:
        _fixed_or_update(findings, resident, left, parts)
        return
    floor = work_floor(findings)
    hosts = _fixed_cost(findings, resident, update_s, floor)
    host_s = hosts.seconds if hosts is not None else 0.0
    in_update_s = _update_overhead(findings, host_s, update_s)
    if update_evidence:
        parts.add(
            Cause.OPTIMIZER,
            (update_s - in_update_s) * left,
            update_error_s * left,
            update_evidence,
        )
    if hosts is not None:
        parts.add(
            Cause.HOST,
            (host_s + in_update_s) * left,
            hosts.error_s * left,
            hosts.evidence,
        )
    fallen_s = find_fallback(findings, fallbacks, resident.seconds - update_s - host_s, parts) * left
    work_s = (resident.seconds - update_s - host_s) * left - fallen_s
    if hosts is None:
        why = findings.why_absent(ExperimentKind.BATCH)
        parts.reasons.append(f"What a step costs without samples is not known, since other batch sizes are not: {why}")
    divide_work(
        findings,
        floor,
        max(0.0, work_s),
        parts,
        whole=hosts is not None,
        error_s=hosts.error_s if hosts else 0.0,
    )


def _fixed_or_update(findings: Findings, resident: Experiment, left: float, parts: Parts) -> None:
    """The update is fixed as well, so without its own time what is fixed may be the host's or the optimiser's."""
    cost = findings.cost
    assert cost is not None
    assert resident.seconds is not None
    fixed_s = min(resident.seconds, cost.intercept_s)
    parts.reasons.append(f"{time_words(fixed_s)} of a step do not depend on its samples: the host's or the optimiser's")
    work_s = (resident.seconds - fixed_s) * left
    divide_work(
        findings,
        work_floor(findings),
        work_s,
        parts,
        whole=True,
        error_s=cost.intercept_error_s,
    )


def _fixed_cost(findings: Findings, resident: Experiment, update_s: float, floor: WorkFloor | None) -> SharePart | None:
    """The host's part on a CPU: what a step costs however few samples it has, without the update.

    Weights that are read once in a step are fixed as well and not the host's, so it is no more than what the counted
    work leaves over, nor than so many operations can need.
    """
    cost = findings.cost
    if cost is None:
        return None
    assert resident.seconds is not None
    passes_s = max(0.0, resident.seconds - update_s)
    fixed_s = min(max(0.0, cost.intercept_s - update_s), passes_s)
    seconds = fixed_s
    evidence = (
        f"A step costs {time_words(cost.intercept_s)} and {time_words(cost.marginal_s)} more per sample, "
        f"by batches of {', '.join(f'{point.batch:g}' for point in cost.points)}"
    )
    error_s = cost.intercept_error_s
    if floor is not None and seconds > passes_s - floor.total_s:
        seconds = max(0.0, passes_s - floor.total_s)
        evidence += "; some of it is memory that every step reads"
    calls = _calls(findings)
    if calls is not None and seconds > calls * LONGEST_CALL_S:
        seconds = calls * LONGEST_CALL_S
        evidence += f"; {calls:,} operations need no more than this of the host"
    # The profile was made at another time, so it may say no more than what is fixed.
    outside_s = min(_outside_operations(findings, resident) or 0.0, fixed_s)
    if outside_s > seconds:
        seconds = outside_s
        evidence += f"; by the profiler {time_words(outside_s)} of a step are in no operation"
    return SharePart(Cause.HOST, seconds, min(error_s, resident.seconds), evidence)


def _calls(findings: Findings, part: str = "") -> int | None:
    if isinstance(findings.counted, Absent):
        return None
    return sum(each.calls for each in findings.counted if (each.part == UPDATE) == (part == UPDATE)) or None


def _outside_operations(findings: Findings, resident: Experiment) -> float | None:
    """What a step on the CPU takes beyond the time in its operations, at least: profiling lengthens those."""
    profile = findings.profile
    if isinstance(profile, Absent) or profile.source not in DEVICE_TIMES or not resident.seconds:
        return None
    return max(0.0, resident.seconds - profile.total_s)


def _update_overhead(findings: Findings, host_s: float, update_s: float) -> float:
    """Of the update, what is Python and dispatch: as much per operation as in the passes before it."""
    calls, updates = _calls(findings), _calls(findings, UPDATE)
    if not calls or not updates or isinstance(findings.counted, Absent):
        return 0.0
    return min(update_s, updates * min(host_s / calls, LONGEST_CALL_S))
