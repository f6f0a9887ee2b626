"""Two tunings compared: the best settings of each side, and what they gain over the baseline of the same side."""

from collections.abc import Iterator

from metalmark.model.parity import ParityVerdict
from metalmark.model.run import PARITY_FAILED
from metalmark.report.text.explain_page import gain_words
from metalmark.report.text.tune_page import settings_words
from metalmark.report.text.units import known, seconds
from metalmark.results.comparison import CellComparison, Comparison, SideFigures

NOTHING = "the baseline"


def tuned_answers(found: Comparison) -> Iterator[str]:
    """Say which settings are best on each side."""
    for row in found.rows:
        if row.a.tuned is None or row.b.tuned is None:
            continue
        lead = f"{row.name}: " if len(found.rows) > 1 else ""
        ours, theirs = _settings(row.a), _settings(row.b)
        if ours == theirs:
            gains = f"{found.b} gains {_gain(row.b)}, {found.a} {_gain(row.a)}"
            yield f"{lead}Both are best with {ours}: {gains} over the baseline of its own tuning."
        else:
            yield f"{lead}{found.b} is best with {theirs} ({_gain(row.b)}), {found.a} with {ours} ({_gain(row.a)})."


def tuned_rows(row: CellComparison) -> Iterator[tuple[str, ...]]:
    """Yield the best settings, the time of a step with them, and the gain of each side over its own baseline."""
    for name, show in (("best settings", _settings), ("step", _step), ("gain", _gain)):
        yield (name, show(row.a), show(row.b), "", "", "", "")


def _settings(side: SideFigures) -> str:
    return "-" if side.tuned is None else settings_words(side.tuned.change) or NOTHING


def _step(side: SideFigures) -> str:
    return known(side.step_s, seconds)


def _gain(side: SideFigures) -> str:
    tuned = side.tuned
    if tuned is None or tuned.gain is None:
        return "-"
    mark = f", {PARITY_FAILED}" if side.parity is ParityVerdict.DIFFERS else ""
    return f"{gain_words(tuned.gain, tuned.low, tuned.high)}{mark}"
