"""From experiments to an answer: shares, a verdict, a roofline and proposals. A pure function over a worker's lines."""

from collections.abc import Sequence

from metalmark.explain.amounts import time_words
from metalmark.explain.findings import Findings
from metalmark.explain.job import Line
from metalmark.explain.proposals import proposals_of
from metalmark.explain.published_notes import published_notes
from metalmark.explain.roofline import roofline_of
from metalmark.explain.shares import split_step
from metalmark.explain.verdict import verdict_of
from metalmark.model.explanation import Bottleneck, ExperimentKind, Explained
from metalmark.model.plan import Plan
from metalmark.model.run import NOTES, Absent, Flag, Telemetry


def explain_lines(
    lines: Sequence[Line], plan: Plan, telemetry: Telemetry, flags: Sequence[Flag], fallbacks: Sequence[str]
) -> Explained:
    """Return what the step is made of, what it is bound by, and what would make it faster."""
    findings = Findings(lines, plan)
    opened, asked = findings.opened, findings.as_asked
    step_s = asked.seconds if asked is not None and asked.seconds else 0.0
    split = split_step(findings, flags, fallbacks)
    bottleneck = verdict_of(split.shares, flags, telemetry, split.threads_gain)
    return Explained(
        bottleneck=bottleneck,
        step_s=step_s,
        error_s=asked.error_s if asked is not None else 0.0,
        shares=split.shares,
        proposals=proposals_of(findings, split.shares, step_s, fallbacks, swapping=bottleneck is Bottleneck.SWAP),
        experiments=findings.experiments,
        work=() if isinstance(findings.counted, Absent) else findings.counted,
        profile=findings.profile,
        roofline=roofline_of(findings),
        placed_on=opened.placed_on if opened is not None else "",
        device_name=opened.device_name if opened is not None else "",
        samples_per_step=opened.samples_per_step if opened is not None else None,
        parts=passes_of(findings),
        fallbacks=tuple(fallbacks),
        complete=findings.complete,
        notes=_notes(findings, flags),
    )


def passes_of(findings: Findings) -> dict[str, float]:
    """Forward, backward and optimiser, each by itself, where they were timed."""
    resident = findings.resident
    if resident is None or not resident.seconds:
        return {}
    forward, backward = findings.of(ExperimentKind.FORWARD), findings.of(ExperimentKind.BACKWARD)
    found = {}
    if forward is not None:
        found["forward"] = findings.beside(forward)[0]
    if backward is not None:
        until_s = findings.beside(backward)[0]
        if forward is not None:
            found["backward"] = max(0.0, until_s - found["forward"])
        found["optimiser"] = max(0.0, resident.seconds - until_s)
    return found


def _notes(findings: Findings, flags: Sequence[Flag]) -> tuple[str, ...]:
    opened, cost = findings.opened, findings.cost
    notes = [*(opened.notes if opened is not None else ())]
    if cost is not None and cost.sloped:
        batch = f"{time_words(cost.fixed_s)} + {time_words(cost.marginal_s)} per sample"
        notes.append(f"A step with resident batches costs {batch}.")
    notes += [f"{flag.evidence[:1].upper()}{flag.evidence[1:]}." for flag in flags if flag.name not in NOTES]
    if not findings.complete:
        notes.append(
            "It was stopped before every experiment was done; the shares are those that could be told by then."
        )
    return (*dict.fromkeys(notes), *published_notes(findings.plan.workload))
