"""The figures of a tuning: what each rung of the ladder gains over the baseline, and what else was tried."""

from collections import Counter
from collections.abc import Callable, Sequence

from metalmark.model.tuning import Rung, RungStatus, Tuned, TuningGoal, TuningRun
from metalmark.report.charts.draw import MOST_ROWS, Bar, Drawn, Figure, Missing, bars_svg, numbers
from metalmark.report.text.explain_page import gain_words
from metalmark.report.text.tune_page import failed_mark, parity_words, rung_name, state_word, status_words
from metalmark.report.text.units import seconds

LADDER_TITLE = "What each setting gains"
TRIED_TITLE = "What else was tried"
UNITS = {
    TuningGoal.THROUGHPUT: "times as many samples per second as the baseline",
    TuningGoal.LATENCY: "times as fast as the baseline",
    TuningGoal.ENERGY: "times less energy per sample than the baseline",
    TuningGoal.MEMORY: "times less memory than the baseline",
}
BARS = ("settings", "status", "gain", "step", "parity")


def tuning_figures(run: TuningRun) -> list[Drawn]:
    """Return the figures of a tuning, or why there are none."""
    found = run.outcome
    if not isinstance(found, Tuned):
        return [Missing(title=LADDER_TITLE, reason="nothing was tuned")]
    drawn: list[Drawn] = []
    if len(found.ladder) > 1:
        about = "Each rung has the settings of the one above it, and more. "
        drawn.append(_figure(run, LADDER_TITLE, about, found.ladder, lambda rung: rung.title))
    else:
        drawn.append(Missing(title=LADDER_TITLE, reason=run.header.ending))
    told = [one for one in found.others if one.gain is not None]
    if told:
        left = f"The first {MOST_ROWS} of {len(told)}. " if len(told) > MOST_ROWS else ""
        drawn.append(_figure(run, TRIED_TITLE, left, told[:MOST_ROWS], rung_name))
    return drawn


def _figure(run: TuningRun, title: str, about: str, rungs: Sequence[Rung], name: Callable[[Rung], str]) -> Figure:
    bars, rows = [], []
    seen: Counter[str] = Counter()
    for rung in rungs:
        gain = 1.0 if rung.status is RungStatus.BASELINE else rung.gain
        if gain is None:
            continue
        row = name(rung)
        seen[row] += 1
        # Bars of one name would be drawn over each other.
        row = row if seen[row] == 1 else f"{row} ({seen[row]})"
        step = seconds(rung.step_s) if rung.step_s is not None else "?"
        text, more = f"{gain:.2f}x{failed_mark(rung)}", f"{step} per step"
        bars.append(
            Bar(row=row, group=state_word(rung), value=gain, text=text, more=more, low=rung.low, high=rung.high)
        )
        rows.append((row, status_words(rung), gain_words(gain, rung.low, rung.high), step, parity_words(rung)))
    said = "; ".join(f"{row} {gain}" for row, _, gain, *_ in rows)
    return Figure(
        title=title,
        about=f"{about}1 is no gain. Lines: 95% intervals.",
        label=f"Bars of the gain over the baseline of {run.plan.label}: {said}.",
        svg=bars_svg(bars, unit=UNITS[run.request.goal]),
        numbers=numbers(BARS, rows, texts=2),
    )
