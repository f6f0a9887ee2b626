"""How long the optimiser's update takes in a resident step."""

import math

from metalmark.explain.amounts import time_words
from metalmark.explain.findings import Findings
from metalmark.explain.parts import Parts
from metalmark.explain.scaling import LEAST_ERROR
from metalmark.model.explanation import (
    Experiment,
    ExperimentKind,
)


def update_time(findings: Findings, resident: Experiment, parts: Parts) -> tuple[float, float, str]:
    """The optimiser: the whole step without forward and backward."""
    if not findings.training:
        return 0.0, 0.0, ""
    backward = findings.of(ExperimentKind.BACKWARD)
    if backward is None:
        why = findings.why_absent(ExperimentKind.BACKWARD)
        parts.reasons.append(f"The optimiser was not timed apart and is in the device's work: {why}")
        return 0.0, 0.0, ""
    assert resident.seconds is not None
    without_s, error_s = findings.beside(backward)
    seconds = min(resident.seconds, max(0.0, resident.seconds - without_s))
    evidence = f"Without the update a step takes {time_words(without_s)} instead of {time_words(resident.seconds)}"
    return (
        seconds,
        math.hypot(error_s, resident.error_s, LEAST_ERROR * resident.seconds),
        evidence,
    )
