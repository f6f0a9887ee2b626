"""What trackers are told of parity checks: the figures and tags of a check, and the tags of a run that carries one."""

from metalmark.model.measurement import BenchRun
from metalmark.model.parity import Checked, ParityRun, ParityVerdict, Quantity
from metalmark.model.training import TrainingRun
from metalmark.report.text.parity_page import parity_sentence
from metalmark.results.derived import flags_of


def check_metrics(outcome: Checked) -> dict[str, float]:
    """Return, for each kind of quantity, how many sigmas its worst is off; the attached file has all."""
    totals: dict[str, float] = {
        "parity/compared": len(outcome.compared),
        "parity/differ": len(outcome.differences),
    }
    for quantity in Quantity:
        rows = [row for row in outcome.compared if row.quantity is quantity]
        finite = [row.sigmas for row in rows if row.distance is not None]
        if finite:
            name = quantity.name.lower()
            totals[f"parity/{name}_sigmas"] = max(finite)
            totals[f"parity/{name}_limit"] = max(rows, key=lambda row: row.sigmas).limit
    return totals


def check_tags(run: ParityRun, outcome: Checked) -> dict[str, str]:
    """Return the verdict of a check, where it was made and what it says in a sentence."""
    return {
        "parity": run.verdict.value,
        "placed_on": outcome.placed_on,
        "device_name": outcome.device_name,
        "truth": outcome.truth,
        "report": parity_sentence(run),
    }


def parity_tags(run: BenchRun | TrainingRun) -> dict[str, str]:
    """What a measured or trained run says of the parity check that it carries."""
    mark = run.parity
    if mark is None:
        return {}
    said = {"parity": mark.verdict.value, "parity.check": mark.run, "parity.report": mark.sentence}
    return (
        said
        if mark.verdict is not ParityVerdict.DIFFERS
        else {**said, "flags": ", ".join(f.name for f in flags_of(run))}
    )
