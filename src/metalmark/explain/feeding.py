"""What a step takes beyond one with resident batches: waiting for input, and copying it."""

import math

from metalmark.explain.amounts import time_words
from metalmark.explain.asynchronous import WELL_BELOW, device_time
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts
from metalmark.explain.scaling import LEAST_ERROR
from metalmark.model.explanation import (
    Cause,
    Experiment,
    ExperimentKind,
)
from metalmark.model.plan import Loader


def add_input_alone(findings: Findings, asked: Experiment, parts: Parts) -> None:
    if findings.pipeline and asked.waited_s is not None:
        evidence = f"The step as asked waits {time_words(asked.waited_s)} for its batch"
        parts.add(
            Cause.INPUT,
            min(asked.waited_s, asked.seconds or 0.0),
            asked.error_s,
            evidence,
        )


def add_feeding(findings: Findings, asked: Experiment, resident: Experiment, parts: Parts) -> None:
    """Input wait and transfers: what the step as asked takes beyond the resident one."""
    assert asked.seconds is not None
    assert resident.seconds is not None
    beyond_s = max(0.0, asked.seconds - resident.seconds)
    error_s = math.hypot(asked.error_s, resident.error_s, LEAST_ERROR * asked.seconds)
    place = findings.of(ExperimentKind.PLACE)
    placing_s = place.seconds if place is not None and place.seconds else 0.0
    waited_s = asked.waited_s
    against = f"a step takes {time_words(asked.seconds)} with its loader and {time_words(resident.seconds)} without"
    if waited_s is None:
        seconds = max(0.0, beyond_s - placing_s)
        parts.add(
            Cause.INPUT,
            seconds,
            error_s,
            f"{against[:1].upper()}{against[1:]}, of which copying is taken off",
        )
    else:
        seconds = waited_s
        if findings.asynchronous:
            # While the host waits for a batch, the device may still compute or copy: only the rest of what the step is
            # longer by is lost. Copies may be hidden as well, while the device waits for the host.
            exposed_s = max(0.0, placing_s - _idle_s(findings, resident))
            seconds = min(waited_s, max(0.0, beyond_s - exposed_s))
        evidence = f"The host waits {time_words(waited_s)} per step for its batch, and {against}"
        parts.add(Cause.INPUT, min(seconds, asked.seconds), error_s, evidence)
    left_s = max(0.0, beyond_s - seconds)
    if place is None:
        parts.reasons.append(f"Copying a batch was not timed: {findings.why_absent(ExperimentKind.PLACE)}")
    else:
        copied = f"Copying a batch to the device takes {time_words(placing_s)} by itself"
        parts.add(
            Cause.TRANSFER,
            min(left_s, placing_s),
            math.hypot(place.error_s, error_s),
            copied,
        )
        left_s -= min(left_s, placing_s)
    loader = findings.plan.loader or Loader()
    if not findings.asynchronous and loader.workers and left_s > 2 * error_s:
        evidence = f"Beside its loader's workers the step computes {time_words(left_s)} longer"
        parts.add(Cause.CONTENTION, left_s, error_s, evidence)


def _idle_s(findings: Findings, resident: Experiment) -> float:
    """How long the device has nothing to do in a resident step, because the host is slower."""
    device, enqueue = device_time(findings, resident), findings.of(ExperimentKind.ENQUEUE)
    if device is None or enqueue is None or not enqueue.seconds or not resident.seconds:
        return 0.0
    limits = enqueue.seconds >= WELL_BELOW * resident.seconds
    return max(0.0, resident.seconds - device.seconds) if limits else 0.0
