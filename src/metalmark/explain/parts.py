"""Shares of a step that add up to it."""

import math
from collections.abc import Sequence

from msgspec import Struct

from metalmark.model.explanation import Cause, StepShare

NOTHING_LEFT = "What the other causes leave over"
ORDER = tuple(Cause)


class SharePart(Struct, frozen=True):
    """One cause before it is made to fit beside the others."""

    cause: Cause
    seconds: float
    error_s: float
    evidence: str


def added_up(
    step_s: float, error_s: float, parts: Sequence[SharePart], reasons: Sequence[str] = ()
) -> tuple[StepShare, ...]:
    """Return the parts as shares whose sum is the step: what is left is unexplained, and what is too much is taken from
    all alike, which their errors show. `reasons`: why something is unexplained."""
    merged = _merged([part for part in parts if part.cause is not Cause.UNEXPLAINED])
    total_s = sum(part.seconds for part in merged)
    factor = step_s / total_s if total_s > step_s else 1.0
    shares = [
        StepShare(
            cause=part.cause,
            seconds=part.seconds * factor,
            error_s=min(step_s, math.hypot(part.error_s, part.seconds * (1 - factor))),
            evidence=part.evidence,
        )
        for part in merged
    ]
    left_s = max(0.0, step_s - sum(share.seconds for share in shares))
    if left_s < 1e-12 * step_s:
        left_s = 0.0
    unsure_s = min(step_s, math.hypot(error_s, *(part.error_s for part in merged)))
    told = [part.evidence for part in parts if part.cause is Cause.UNEXPLAINED]
    evidence = "; ".join(dict.fromkeys([*told, *reasons])) or NOTHING_LEFT
    return (*shares, StepShare(cause=Cause.UNEXPLAINED, seconds=left_s, error_s=unsure_s, evidence=evidence))


def _merged(parts: Sequence[SharePart]) -> list[SharePart]:
    """One part for each cause, in the order in which causes are shown."""
    found: dict[Cause, SharePart] = {}
    for part in parts:
        seconds, error_s, evidence = max(0.0, part.seconds), max(0.0, part.error_s), part.evidence
        before = found.get(part.cause)
        if before is not None:
            evidence = "; ".join(dict.fromkeys([before.evidence, evidence]))
            seconds, error_s = before.seconds + seconds, math.hypot(before.error_s, error_s)
        found[part.cause] = SharePart(part.cause, seconds, error_s, evidence)
    return sorted(found.values(), key=lambda part: ORDER.index(part.cause))


class Parts:
    """Collects the parts of a step, and why something is unexplained."""

    def __init__(self) -> None:
        self.found: list[SharePart] = []
        self.reasons: list[str] = []

    def add(self, cause: Cause, seconds: float, error_s: float, evidence: str) -> float:
        seconds = max(0.0, seconds)
        self.found.append(SharePart(cause, seconds, max(0.0, error_s), evidence))
        return seconds

    def scaled(self, factor: float) -> list[SharePart]:
        """The parts as they are in a step that has only this share of what they were measured in."""
        return [SharePart(p.cause, p.seconds * factor, p.error_s * factor, p.evidence) for p in self.found]
