"""What slows a resident step as a whole: threads in each other's way, swapping, heat."""

import math
from collections.abc import Sequence

from metalmark.explain.amounts import time_words
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts
from metalmark.explain.scaling import LEAST_ERROR
from metalmark.explain.verdict import SWAPPING, THROTTLED
from metalmark.model.explanation import (
    Cause,
    Experiment,
    ExperimentKind,
)
from metalmark.model.run import Flag

FEWEST_BLOCKS = 3


def find_contention(
    findings: Findings, resident: Experiment, flags: Sequence[Flag], parts: Parts
) -> tuple[float, float]:
    """Return the seconds that threads in each other's way, swapping or heat cost, and the gain of fewer threads."""
    assert resident.seconds is not None
    slowed_s, gain = _fewer_threads(findings, resident, parts)
    names = {flag.name: flag.evidence for flag in flags}
    held = [names[name] for name in (SWAPPING, THROTTLED) if name in names]
    if held:
        beside = [each.baseline_s for each in findings.experiments if each.baseline_s and _beside_resident(each)]
        fastest_s = min([resident.seconds, *beside])
        seconds = max(0.0, resident.seconds - fastest_s - slowed_s)
        evidence = f"{held[0][:1].upper()}{held[0][1:]}; the same step once took {time_words(fastest_s)}"
        slowed_s += parts.add(Cause.CONTENTION, seconds, resident.error_s, evidence)
    return slowed_s, gain


def _beside_resident(experiment: Experiment) -> bool:
    """Whether its baseline is the resident step."""
    return experiment.kind not in (ExperimentKind.LOADER, ExperimentKind.AS_ASKED)


def _fewer_threads(findings: Findings, resident: Experiment, parts: Parts) -> tuple[float, float]:
    """More threads that would be faster are no contention: then the step has too few."""
    assert resident.seconds is not None
    opened = findings.opened
    now = findings.plan.settings.threads or (opened.threads if opened is not None else None)
    best: tuple[float, float, int] | None = None
    apart = False
    for each in findings.every(ExperimentKind.THREADS):
        count = each.change.settings.get("threads")
        if isinstance(count, int) and now is not None and count < now:
            seconds, error_s = findings.beside(each)
            best = min(best or (math.inf, 0.0, 0), (seconds, error_s, count))
            apart = apart or _apart(each, resident)
    if best is None or now is None:
        return 0.0, 1.0
    seconds, error_s, count = best
    unsure_s = math.hypot(error_s, resident.error_s, 2 * LEAST_ERROR * resident.seconds)
    lost_s = resident.seconds - seconds
    evidence = f"With {count} instead of {now} threads a step takes {time_words(seconds)}"
    if lost_s <= unsure_s and not apart:
        parts.add(Cause.CONTENTION, 0.0, unsure_s, f"{evidence}, which is not faster")
        return 0.0, 1.0
    parts.add(Cause.CONTENTION, lost_s, unsure_s, evidence)
    return lost_s, resident.seconds / max(seconds, 1e-12)


def _apart(faster: Experiment, slower: Experiment) -> bool:
    """Whether every block of one is faster than every block of the other: threads that wait for each other make times
    vary so much that no interval says so."""
    few = min(len(faster.samples), len(slower.samples)) < FEWEST_BLOCKS
    return not few and max(faster.samples) < min(slower.samples)
