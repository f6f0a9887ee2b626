"""What trackers are told of an explanation: each share of a step, the gains, and the verdict."""

import re

from metalmark.model.explanation import Explained, ExplanationRun, Roofline
from metalmark.report.text.explain_page import explanation_sentence

MOST_PROPOSALS = 10


def explanation_metrics(outcome: Explained) -> dict[str, float | None]:
    """Return the step, the share and the milliseconds of each cause, and what the proposals should gain and did."""
    values: dict[str, float | None] = {"explain/step_ms": outcome.step_s * 1000}
    for one in outcome.shares:
        name = re.sub(r"\W+", "_", one.cause.value.lower())
        values[f"explain/share/{name}"] = outcome.share(one.cause)
        values[f"explain/ms/{name}"] = one.seconds * 1000
    for number, proposal in enumerate(outcome.proposals[:MOST_PROPOSALS], start=1):
        measured = proposal.measured.gain if proposal.measured is not None else None
        values |= {f"explain/gain/{number}_expected": proposal.gain, f"explain/gain/{number}_measured": measured}
    if isinstance(outcome.roofline, Roofline):
        line = outcome.roofline
        values["explain/roofline_share"] = line.achieved_flops_per_s / line.reachable_flops_per_s
        values["explain/flop_per_byte"] = line.intensity
    return values


def explanation_tags(run: ExplanationRun, outcome: Explained) -> dict[str, str]:
    """Return the verdict, what it says in a sentence, and the proposals by their rank."""
    proposals = enumerate(outcome.proposals[:MOST_PROPOSALS], start=1)
    return {
        "verdict": outcome.bottleneck.value,
        "report": explanation_sentence(run),
        **({"placed_on": outcome.placed_on} if outcome.placed_on else {}),
        **({"device_name": outcome.device_name} if outcome.device_name else {}),
        **{f"proposal{number}": one.title for number, one in proposals},
    }
