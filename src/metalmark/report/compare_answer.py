"""The answer of a comparison: what it says, in a sentence or two."""

import re
from collections.abc import Iterator, Sequence

from metalmark.errors import UsageError
from metalmark.model.run import PARITY_FAILED, Absent, RunKind
from metalmark.report.compare_checks import checks_answer
from metalmark.report.compare_shares import shares_answers
from metalmark.report.compare_tunings import tuned_answers
from metalmark.report.text.difference_words import factor_words, interval_words, mean_of, signed
from metalmark.report.text.units import count, figures, metric_value, percent, share
from metalmark.results.comparison import CellComparison, Comparison, compare_runs
from metalmark.results.pairing import Side
from metalmark.stats.difference import Difference, Gap, Verdict

MOST_SENTENCES = 6


def try_to_compare(
    sides: Sequence[Side], *, by: Sequence[str] = (), target_accuracy: float | None = None
) -> list[Comparison]:
    """How each side compares with the first; nothing where they are not like for like, which the tables say."""
    try:
        return compare_runs(sides, by=by, target_accuracy=target_accuracy)[0]
    except UsageError:
        return []


def comparison_answer(found: Comparison) -> str:
    """What the comparison says, in a sentence or two."""
    if found.kind is RunKind.PARITY:
        lines = [checks_answer(found, row) for row in found.rows]
    elif found.kind is RunKind.TRAINING:
        lines = [_training_answer(found, row) for row in found.rows]
    elif found.kind is RunKind.EXPLAIN:
        lines = [_speed_answer(found), *shares_answers(found)]
    elif found.kind is RunKind.TUNE:
        lines = [_speed_answer(found), *tuned_answers(found)]
    else:
        lines = [_speed_answer(found), *_wait_answers(found)]
    few = lines[:MOST_SENTENCES] + (
        [f"The table has {len(lines) - MOST_SENTENCES} more."] if lines[MOST_SENTENCES:] else []
    )
    few += [parity_failed_words(name) for name in _failed_sides(found)]
    if found.unlike:
        few.insert(0, "These are not like for like, so no figure says which is better.")
    return " ".join(few)


def parity_failed_words(name: str) -> str:
    """Say that the figures of a side are not those of the same network."""
    return f"{name} does not train the same network as the reference ({PARITY_FAILED})."


def _failed_sides(found: Comparison) -> list[str]:
    """The sides, and their cells where there are several, whose parity check found a difference."""
    sides = [(found.a, [row.a for row in found.rows]), (found.b, [row.b for row in found.rows])]
    wrong = {name: [one for one in every if PARITY_FAILED in one.flags] for name, every in sides}
    return [
        name if len(wrong[name]) == len(every) else f"{name} in {count(len(wrong[name]), 'cell')}"
        for name, every in sides
        if wrong[name]
    ]


def _speed_answer(found: Comparison) -> str:
    if len(found.rows) == 1:
        return _speed_sentence(found.rows[0].speed, found.a, found.b, "")
    counts = {verdict: sum(row.verdict is verdict for row in found.rows) for verdict in Verdict}
    said = ", ".join(f"{verdict.value} in {number}" for verdict, number in counts.items() if number)
    cells = count(len(found.rows), "cell")
    if found.mean is None:
        return f"Of {cells}, {found.b} is {said}." if said else ""
    told = sum(row.told for row in found.rows)
    sentence = _speed_sentence(found.mean, found.a, found.b, f"geometric mean of {told} cells; ")
    return sentence if len([number for number in counts.values() if number]) == 1 else f"{sentence} By cell: {said}."


def _speed_sentence(speed: Difference | Absent, a: str, b: str, over: str) -> str:
    if isinstance(speed, Absent):
        return f"Can't tell whether {b} is faster than {a}: {speed.reason}."
    if speed.verdict is Verdict.CANT_TELL:
        return f"Can't tell whether {b} is faster than {a} ({over}{factor_words(speed.ratio)}x): {speed.reason}."
    if speed.verdict is Verdict.SAME:
        return f"{b} is as fast as {a} ({over}95% interval of the ratio {interval_words(speed)})."
    times, interval = _times(speed)
    return f"{b} is {times}x {speed.verdict.value} than {a} ({over}95% interval {interval})."


def _times(speed: Difference) -> tuple[str, str]:
    """How many times faster or slower, and the interval of that."""
    assert speed.low is not None
    assert speed.high is not None
    times = [speed.ratio, speed.low, speed.high]
    times = [1 / speed.ratio, 1 / speed.high, 1 / speed.low] if speed.ratio < 1 else times
    most, low, high = (f"{value:.2f}" if value < 10 else figures(value) for value in times)
    return most, f"{low} to {high}"


def _wait_answers(found: Comparison) -> Iterator[str]:
    """Whether B, a watched run, waits less for its input."""
    for row in found.rows:
        wait = row.input_wait
        if isinstance(wait, Gap) and wait.verdict in (Verdict.BETTER, Verdict.WORSE):
            word = "less" if wait.verdict is Verdict.BETTER else "more"
            a, b = mean_of(row.a.input_waits), mean_of(row.b.input_waits)
            yield f"It waits {word} for its input: {share(b)} of the time, not {share(a)}{_points_interval(wait)}."


def _training_answer(found: Comparison, row: CellComparison) -> str:
    trained = row.trained
    assert trained is not None
    lead = f"{row.name}: " if len(found.rows) > 1 else ""
    parts = []
    if not isinstance(trained.accuracy, Absent) or trained.monitored is None:
        parts.append(_accuracy_sentence(trained.accuracy, row, found.a, found.b))
    if trained.monitored is not None:
        parts.append(_monitored_sentence(trained.monitored, row, found.a, found.b))
    if isinstance(row.speed, Difference) and row.speed.low is not None:
        parts.append(_speed_sentence(row.speed, found.a, found.b, "samples per second; "))
    if found.target_accuracy is not None:
        parts.append(_target_sentence(trained.to_target, found))
    return lead + " ".join(part for part in parts if part)


def _accuracy_sentence(accuracy: Gap | Absent, row: CellComparison, a: str, b: str) -> str:
    if isinstance(accuracy, Absent):
        return f"Which of {a} and {b} is more accurate can't be told: {accuracy.reason}."
    ours, theirs = (mean_of(one.trained.accuracies if one.trained else ()) for one in (row.a, row.b))
    values = f"{percent(theirs)} against {percent(ours)}"
    if accuracy.verdict is Verdict.CANT_TELL:
        more = re.search(r"--repeat \d+$", row.command)
        again = f"; train with {more[0]}" if more else ""
        return f"Can't tell whether {b} is more accurate than {a} ({values}): {accuracy.reason}{again}."
    if accuracy.verdict is Verdict.SAME:
        return f"{b} is as accurate as {a}: {values}{_points_interval(accuracy)}."
    word = "more" if accuracy.verdict is Verdict.BETTER else "less"
    return f"{b} is {word} accurate than {a}: {values}, {signed(accuracy.value)} points{_points_interval(accuracy)}."


def _monitored_sentence(gap: Gap, row: CellComparison, a: str, b: str) -> str:
    """How the figure compares that the best epochs were chosen by."""
    ours, theirs = row.a.trained, row.b.trained
    assert ours is not None
    assert theirs is not None
    assert ours.metric is not None
    name, lower = ours.metric.name, ours.metric.falls
    values = f"{metric_value(name, mean_of(theirs.values))} against {metric_value(name, mean_of(ours.values))}"
    better = "lower" if lower else "higher"
    if gap.verdict is Verdict.CANT_TELL:
        return f"Can't tell whether {b} has a {better} {name} than {a} ({values}): {gap.reason}."
    if gap.verdict is Verdict.SAME:
        return f"{b} has the same {name} as {a}: {values}."
    word = better if gap.verdict is Verdict.BETTER else "higher" if lower else "lower"
    return f"{b} has a {word} {name} than {a}: {values}."


def _target_sentence(to_target: Difference | Absent, found: Comparison) -> str:
    target = percent(found.target_accuracy or 0.0)
    if isinstance(to_target, Absent):
        return f"The times to {target} can't be compared: {to_target.reason}."
    if to_target.verdict is Verdict.CANT_TELL:
        return f"Can't tell which reaches {target} sooner ({factor_words(to_target.ratio)}x): {to_target.reason}."
    if to_target.verdict is Verdict.SAME:
        return f"It takes as long to reach {target} (95% interval of the ratio {interval_words(to_target)})."
    times, interval = _times(to_target)
    word = "sooner" if to_target.verdict is Verdict.FASTER else "later"
    return f"It reaches {target} {times}x {word} (95% interval {interval})."


def _points_interval(found: Gap) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" (95% interval {signed(found.low)} to {signed(found.high)} points)"
