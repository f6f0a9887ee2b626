"""From experiments to the shares of a step: one small function for each cause.

T, the step as asked, is what waits for input and copies a batch, and R, the resident step. On a device that computes at
once (the CPU) the parts of R follow each other. On one that is asynchronous, R is the longer of what the host needs to
enqueue a step and what the device needs for it; the shares say what the device did, and why it did nothing.
A share that no experiment tells stays unexplained, with the reason.
"""

from collections.abc import Sequence

from msgspec import Struct

from metalmark.explain.asynchronous import split_asynchronous
from metalmark.explain.contention import find_contention
from metalmark.explain.feeding import add_feeding, add_input_alone
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts, added_up
from metalmark.explain.synchronous import split_synchronous
from metalmark.model.explanation import (
    ExperimentKind,
    StepShare,
)
from metalmark.model.run import Flag


class StepSplit(Struct, frozen=True):
    """The shares, and what a verdict needs beside them."""

    shares: tuple[StepShare, ...]
    threads_gain: float = 1.0
    """How many times as fast the step is with fewer threads."""


def split_step(findings: Findings, flags: Sequence[Flag] = (), fallbacks: Sequence[str] = ()) -> StepSplit:
    """Divide the step as asked."""
    asked, resident = findings.as_asked, findings.resident
    if asked is None or not asked.seconds:
        return StepSplit(())
    step_s = asked.seconds
    outside = Parts()
    inside = Parts()
    threads_gain = 1.0
    if resident is None or not resident.seconds:
        add_input_alone(findings, asked, outside)
        outside.reasons.append(
            f"The step with resident batches was not timed: {findings.why_absent(ExperimentKind.RESIDENT)}"
        )
        return StepSplit(added_up(step_s, asked.error_s, outside.found, outside.reasons))
    resident_s = resident.seconds
    if findings.pipeline:
        add_feeding(findings, asked, resident, outside)
    slowed_s, threads_gain = find_contention(findings, resident, flags, inside)
    if findings.asynchronous:
        split_asynchronous(findings, resident, fallbacks, slowed_s, inside)
    else:
        split_synchronous(findings, resident, fallbacks, slowed_s, inside)
    room_s = max(0.0, step_s - sum(part.seconds for part in outside.found))
    factor = min(1.0, room_s / resident_s)
    parts = [*outside.found, *inside.scaled(factor)]
    return StepSplit(
        added_up(step_s, asked.error_s, parts, [*outside.reasons, *inside.reasons]),
        threads_gain,
    )
