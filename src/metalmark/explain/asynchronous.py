"""The parts of a resident step on a device with a queue: what the device did, and why it did nothing."""

import math
from collections.abc import Sequence

from msgspec import Struct

from metalmark.explain.amounts import capital, time_words
from metalmark.explain.device_work import DEVICE_TIMES, divide_work, find_fallback, work_floor
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts
from metalmark.explain.roofline import UPDATE, WorkFloor, floor_of
from metalmark.explain.scaling import LEAST_ERROR
from metalmark.explain.update_time import update_time
from metalmark.model.explanation import (
    Cause,
    Experiment,
    ExperimentKind,
    Profile,
)
from metalmark.model.run import Absent

WELL_BELOW = 0.8
"""A host that is done in this share of a step does not limit it, without a wait in it."""
WAITS = 0.02
"""Waits inside a step that are a smaller share of it are the cost of looking."""
HIDES = 1.15
"""A part of a step that takes less than so many times what the host needs to enqueue a step may be the host's."""


class DeviceTime(Struct, frozen=True):
    """How long the device itself needs for a resident step, where that is known."""

    seconds: float
    error_s: float
    evidence: str
    launches: bool = False
    """Whether what it is compared with is the same step without launches, so that the rest is launching."""


def split_asynchronous(
    findings: Findings,
    resident: Experiment,
    fallbacks: Sequence[str],
    slowed_s: float,
    parts: Parts,
) -> None:
    """What the device did, and why it did nothing."""
    assert resident.seconds is not None
    whole_s = resident.seconds
    left = (whole_s - slowed_s) / whole_s
    waits = findings.of(ExperimentKind.SYNCS)
    waits_s = waits.seconds if waits is not None and waits.seconds else 0.0
    floor = work_floor(findings)
    if waits_s > WAITS * whole_s:
        busy_s, known, error_s = _with_waits(findings, resident, waits_s, left, parts)
    else:
        if waits is not None:
            parts.add(
                Cause.SYNC,
                0.0,
                LEAST_ERROR * whole_s,
                "No call inside a step waits for the device",
            )
        busy_s, known, error_s = _without_waits(findings, resident, left, parts)
    update_s, update_error_s, evidence = _update_on_device(findings, resident, busy_s, floor, parts)
    if evidence:
        error_s = math.hypot(error_s, update_error_s)
        parts.add(Cause.OPTIMIZER, update_s * left, update_error_s * left, evidence)
    fallen_s = find_fallback(findings, fallbacks, busy_s - update_s, parts) * left
    work_s = max(0.0, (busy_s - update_s) * left - fallen_s)
    divide_work(findings, floor, work_s, parts, whole=known, error_s=error_s * left)


def _update_on_device(
    findings: Findings, resident: Experiment, busy_s: float, floor: WorkFloor | None, parts: Parts
) -> tuple[float, float, str]:
    """The optimiser's part of what the device does.

    What a step takes longer by is that part only while the device is the limit with the update and without it. Else the
    counted work of the update says how much of the device's time is its; without that, it has its share of the step's.
    """
    assert resident.seconds is not None
    whole_s = resident.seconds
    update_s, error_s, evidence = update_time(findings, resident, parts)
    if not evidence:
        return 0.0, 0.0, ""
    enqueue = findings.of(ExperimentKind.ENQUEUE)
    host_s = enqueue.seconds if enqueue is not None and enqueue.seconds else 0.0
    idle = busy_s < (1 - 2 * LEAST_ERROR) * whole_s
    if not idle and whole_s - update_s > HIDES * host_s:
        return update_s, error_s, evidence
    counted_s = _update_floor_s(findings)
    if counted_s is None or floor is None or counted_s + floor.total_s <= 0:
        seconds = update_s * busy_s / whole_s
        return seconds, math.hypot(error_s, seconds / 2) if idle else error_s, evidence
    seconds = busy_s * counted_s / (counted_s + floor.total_s)
    if not idle:
        seconds = max(seconds, update_s)
    evidence += f"; by its counted work the update is {time_words(seconds)} of what the device does"
    return seconds, math.hypot(error_s * busy_s / whole_s, seconds / 4), evidence


def _update_floor_s(findings: Findings) -> float | None:
    """The least time that the update's counted work needs; None where that is not counted apart."""
    work, ceiling = findings.counted, findings.ceiling
    if isinstance(work, Absent) or ceiling is None:
        return None
    rows = [each for each in work if each.part == UPDATE]
    return floor_of(rows, ceiling, cached=False).total_s if rows else None


def device_time(findings: Findings, resident: Experiment) -> DeviceTime | None:
    """How long the device needs: captured, by its profiler, or by how the step grows with the batch."""
    assert resident.seconds is not None
    captured = findings.of(ExperimentKind.CAPTURED)
    if captured is not None:
        seconds, error_s = findings.beside(captured)
        seconds = min(seconds, resident.seconds)
        evidence = f"captured, so that nothing is launched one by one, a step takes {time_words(seconds)}"
        return DeviceTime(seconds, error_s, evidence, launches=True)
    profile = findings.profile
    if isinstance(profile, Profile) and profile.source in DEVICE_TIMES and profile.total_s > 0:
        seconds = min(profile.total_s, resident.seconds)
        evidence = f"by its profiler the device works for {time_words(seconds)} in a step"
        return DeviceTime(seconds, 0.05 * seconds, evidence)
    cost = findings.cost
    if cost is None or not cost.sloped:
        return None
    seconds = min(resident.seconds, max(0.0, cost.line_s(cost.batch)))
    sizes = ", ".join(f"{point.batch:g}" for point in cost.points)
    evidence = f"by how steps grow with the batch ({sizes}), the device needs {time_words(seconds)}"
    return DeviceTime(seconds, min(cost.error_s, resident.seconds), evidence)


def _without_waits(findings: Findings, resident: Experiment, left: float, parts: Parts) -> tuple[float, bool, float]:
    """Return how long the device is busy, whether that is known, and its error; add the host's part."""
    assert resident.seconds is not None
    whole_s = resident.seconds
    enqueue = findings.of(ExperimentKind.ENQUEUE)
    device = device_time(findings, resident)
    if enqueue is None or not enqueue.seconds:
        if device is None:
            parts.reasons.append(
                "Whether the device waits for the host is not known: enqueueing a step was not timed "
                f"({findings.why_absent(ExperimentKind.ENQUEUE)})"
            )
            return whole_s, False, whole_s / 2
        if not device.launches and isinstance(findings.profile, Absent):
            # What is fixed may be the host's or the device's own.
            parts.reasons.append(f"{device.evidence[:1].upper()}{device.evidence[1:]}; who needs the rest is not known")
            return device.seconds, True, device.error_s
        parts.add(
            Cause.HOST,
            (whole_s - device.seconds) * left,
            device.error_s,
            capital(device.evidence),
        )
        return device.seconds, True, device.error_s
    host_s, _ = findings.beside(enqueue)
    enqueues = f"The host enqueues a step in {time_words(host_s)} of {time_words(whole_s)}"
    limits = host_s + enqueue.error_s >= WELL_BELOW * whole_s
    error_s = math.hypot(resident.error_s, LEAST_ERROR * whole_s)
    if not limits and (device is None or not device.launches):
        parts.add(Cause.HOST, 0.0, error_s, f"{enqueues}, so the device never waits for it")
        return whole_s, True, error_s
    if device is None:
        why = findings.why_absent(ExperimentKind.BATCH)
        parts.reasons.append(f"{enqueues}; how long the device itself needs is not known: {why}")
        return whole_s, False, whole_s / 2
    idle_s = min(whole_s - device.seconds, host_s)
    error_s = math.hypot(error_s, device.error_s)
    parts.add(Cause.HOST, idle_s * left, error_s, f"{enqueues}; {device.evidence}")
    return whole_s - idle_s, True, error_s


def _with_waits(
    findings: Findings, resident: Experiment, waits_s: float, left: float, parts: Parts
) -> tuple[float, bool, float]:
    """A step in which the host waits for the device: without that it would take the longer of what the two need."""
    assert resident.seconds is not None
    whole_s = resident.seconds
    waits_s = min(waits_s, whole_s)
    enqueue = findings.of(ExperimentKind.ENQUEUE)
    host_s = (
        min(
            whole_s,
            enqueue.seconds if enqueue is not None and enqueue.seconds else whole_s,
        )
        - waits_s
    )
    host_s = max(0.0, host_s)
    places = ", ".join(f"{sync.where} {sync.call}" for sync in findings.syncs[:3])
    at = f" ({places})" if places else ""
    evidence = f"The host waits {time_words(waits_s)} per step for the device{at} and works for {time_words(host_s)}"
    device = device_time(findings, resident)
    cost = findings.cost
    known = True
    if device is not None and (device.launches or not isinstance(findings.profile, Absent)):
        busy_s, error_s = device.seconds, device.error_s
        evidence += f"; {device.evidence}"
    elif cost is not None and cost.sloped:
        # What is fixed is the host's first. The more of the host's time is in it, the less of the device's work went on
        # meanwhile, and the more of that is what the host then waited for.
        busy_s = cost.marginal_s * cost.batch + max(0.0, cost.intercept_s - host_s)
        apart = min(1.0, cost.intercept_s / host_s) if host_s > 0 else 0.0
        busy_s = apart * waits_s + (1 - apart) * busy_s
        error_s = cost.error_s
    else:
        busy_s, error_s, known = (waits_s + whole_s) / 2, (whole_s - waits_s) / 2, False
        parts.reasons.append(
            f"How long the device itself needs is not known: {findings.why_absent(ExperimentKind.BATCH)}"
        )
    busy_s = min(whole_s, max(busy_s, waits_s))
    error_s = math.hypot(min(error_s, whole_s), resident.error_s, 2 * LEAST_ERROR * whole_s)
    lost_s = max(0.0, whole_s - max(host_s, busy_s))
    parts.add(Cause.SYNC, lost_s * left, error_s * left, evidence)
    idle_s = max(0.0, whole_s - lost_s - busy_s)
    parts.add(
        Cause.HOST,
        idle_s * left,
        error_s * left,
        "What the host needs longer than the device, without waiting",
    )
    return busy_s, known, error_s
