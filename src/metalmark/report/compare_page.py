"""A comparison as a table: above it the answer, below it everything that keeps its figures from being misread.

Bench runs have a row per pair of cells, trainings and watched runs a row per figure of a pair, parity checks a row per
quantity that changed, explanations a row per cause, and tunings a row per figure of their best settings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from metalmark.model.run import PARITY_FAILED, Absent, RunKind
from metalmark.report.compare_answer import comparison_answer
from metalmark.report.compare_checks import PER_QUANTITY, quantity_notes, quantity_rows
from metalmark.report.compare_shares import share_rows
from metalmark.report.compare_tunings import tuned_rows
from metalmark.report.text.difference_words import factor_words, interval_words, mean_of, signed
from metalmark.report.text.tables import Table
from metalmark.report.text.units import (
    count,
    figures,
    grouped,
    joules,
    known,
    metric_value,
    percent,
    seconds,
    share,
    size,
)
from metalmark.results.comparison import CellComparison, Comparison, Ratio
from metalmark.results.pairing import MAY_LACK, shown
from metalmark.results.trained import TrainedFigures
from metalmark.stats.difference import Difference, Gap, Verdict

FIGURES = ("A step", "B step", "speed", "95%", "noise band", "verdict", "memory", "energy", "parity", "flags")
TEXTS = {"verdict", "parity", "flags", "figure", "quantity", "name", "change"}
DROP = ("energy", "parity", "memory", "noise band", "flags")
FEW = ("noise band", "95%")
PER_FIGURE = ("figure", "A", "B", "B against A", "95%", "noise band", "verdict")
HIDDEN = {*MAY_LACK, "workload file"}
ALWAYS = ("workload", "mode", "dtype", "framework", "device")
"""In the caption even where the sides do not differ in it."""
MOST_LINES = 6
NOT_LIKE = "not like for like"
SAMPLES = {
    RunKind.BENCH: "processes",
    RunKind.TRAINING: "trainings",
    RunKind.WATCH: "runs",
    RunKind.PARITY: "checks",
    RunKind.EXPLAIN: "explanations",
    RunKind.TUNE: "tunings",
}

Judged = Difference | Gap | Absent
SideValue = float | Absent | Sequence[float]


def comparison_table(found: Comparison) -> Table:
    """The table of a comparison; its caption begins with the answer."""
    keys = dict.fromkeys(key for row in found.rows for one in (row.a, row.b) for key in one.keys if key not in HIDDEN)
    varying = [key for key in keys if len({_value(row, key) for row in found.rows}) > 1]
    sides = [one for row in found.rows for one in (row.a, row.b)]
    names: tuple[str, ...] = PER_QUANTITY if found.kind is RunKind.PARITY else PER_FIGURE
    if found.kind is RunKind.BENCH:
        left_out = {"parity"} if all(one.parity is None for one in sides) else set()
        names = tuple(name for name in FIGURES if name not in left_out)
    wrong = any(PARITY_FAILED in one.flags for one in sides)
    # No window is too narrow to say that a speed is not that of the same network.
    drop = tuple(name for name in DROP if not wrong or name != "flags")
    return Table(
        headers=(*map(shown, varying), *names),
        numeric=(*(False for _ in varying), *(name not in TEXTS for name in names)),
        rows=tuple(
            (*(_value(row, key) for key in varying), *cells) for row in found.rows for cells in _rows(found, row, names)
        ),
        caption=f"{comparison_answer(found)}\n{_caption(found, varying)}",
        notes=tuple(_check_notes(found) if found.kind is RunKind.PARITY else _notes(found)),
        drop={RunKind.PARITY: ()}.get(found.kind, FEW if found.kind in (RunKind.EXPLAIN, RunKind.TUNE) else drop),
    )


def comparison_documents(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Every figure and reason, for programs; the answer in words comes first."""
    return [{"answer": comparison_answer(found), **msgspec.to_builtins(found)} for found in comparisons]


def verdict_words(verdict: Verdict, *, unlike: object) -> str:
    return f"{verdict.value}, {NOT_LIKE}" if unlike else verdict.value


def _rows(found: Comparison, row: CellComparison, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of one pair of cells."""
    if found.kind is RunKind.PARITY:
        yield from quantity_rows(row)
    elif found.kind is RunKind.BENCH:
        cells = _bench_cells(row)
        yield tuple(cells[name] for name in names)
    else:
        yield from _figure_rows(found, row)


def _bench_cells(row: CellComparison) -> dict[str, str]:
    flags = [f"{side}: {', '.join(one.flags)}" for side, one in (("A", row.a), ("B", row.b)) if one.flags]
    steps = [known(one.step_s, seconds, one.failure.partition(":")[0]) for one in (row.a, row.b)]
    verdicts = [one.parity.value if one.parity is not None else "-" for one in (row.a, row.b)]
    cells = (
        *(f"{step}{' *' if one.published else ''}" for step, one in zip(steps, (row.a, row.b), strict=True)),
        *_judged(row.speed)[:3],
        verdict_words(row.verdict, unlike=row.no_speed_up),
        _ratio(row.memory),
        _ratio(row.energy),
        verdicts[0] if verdicts[0] == verdicts[1] else f"A: {verdicts[0]}; B: {verdicts[1]}",
        "; ".join(flags),
    )
    return dict(zip(FIGURES, cells, strict=True))


def _figure_rows(found: Comparison, row: CellComparison) -> Iterator[tuple[str, ...]]:
    a, b, trained = row.a, row.b, row.trained
    if trained is not None and a.trained is not None and b.trained is not None:
        ours, theirs = a.trained, b.trained
        if ours.accuracies or theirs.accuracies or trained.monitored is None:
            yield _figure_row("best accuracy", ours.accuracies, theirs.accuracies, percent, trained.accuracy, row)
            finals = ours.final_accuracies, theirs.final_accuracies
            yield _figure_row("final accuracy", *finals, percent, trained.final_accuracy, row)
        if trained.monitored is not None and ours.metric is not None:
            yield _metric_row(ours.metric.name, ours.values, theirs.values, trained.monitored, row)
        yield _figure_row("samples/s", a.samples_per_s, b.samples_per_s, figures, row.speed, row)
        if found.target_accuracy is not None:
            name = f"time to {percent(found.target_accuracy)}"
            cells = _figure_row(name, ours.target_s, theirs.target_s, seconds, trained.to_target, row)
            yield (name, _reached(ours, cells[1]), _reached(theirs, cells[2]), *cells[3:])
    elif found.kind is RunKind.TUNE:
        # The best settings of two tunings may have other batch sizes: what compares is the rate.
        yield _figure_row("samples/s", a.samples_per_s, b.samples_per_s, figures, row.speed, row)
        yield from tuned_rows(row)
    else:
        yield _figure_row("step", a.step_s, b.step_s, seconds, row.speed, row)
        if found.kind is RunKind.EXPLAIN:
            yield from share_rows(row)
        if row.input_wait is not None:
            yield _figure_row("input wait", a.input_waits, b.input_waits, share, row.input_wait, row)
    if a.parity is not None or b.parity is not None:
        yield ("parity", *(one.parity.value if one.parity is not None else "-" for one in (a, b)), "", "", "", "")
    per = "per sample" if trained is not None or found.kind is RunKind.TUNE else "per step"
    for name, ours_used, theirs_used, show, ratio in (
        ("memory", a.memory_bytes, b.memory_bytes, size, row.memory),
        (f"energy {per}", a.joules_per_sample, b.joules_per_sample, joules, row.energy),
    ):
        # Where neither side has the figure, the notes give the reason.
        if not isinstance(ours_used, Absent) or not isinstance(theirs_used, Absent):
            low_high = "" if isinstance(ratio, Absent) or ratio.low is None else interval_words(ratio)
            yield (name, known(ours_used, show), known(theirs_used, show), _ratio(ratio), low_high, "", "")


def _figure_row(
    name: str, a: SideValue, b: SideValue, show: Callable[[float], str], found: Judged, row: CellComparison
) -> tuple[str, ...]:
    verdict = Verdict.CANT_TELL if isinstance(found, Absent) else found.verdict
    return (
        name,
        *(_side(one, show) for one in (a, b)),
        *_judged(found),
        verdict_words(verdict, unlike=row.no_speed_up),
    )


def _metric_row(name: str, a: Sequence[float], b: Sequence[float], found: Gap, row: CellComparison) -> tuple[str, ...]:
    """A figure in its own unit, whose gap is no share."""
    low_high = "?" if found.low is None or found.high is None else f"{found.low:+.3g} to {found.high:+.3g}"
    return (
        f"best {name}", *(metric_value(name, mean_of(one)) for one in (a, b)), f"{found.value:+.3g}", low_high,
        "?" if found.band is None else f"±{found.band:.3g}", verdict_words(found.verdict, unlike=row.no_speed_up),
    )  # fmt: skip


def _side(value: SideValue, show: Callable[[float], str]) -> str:
    """One value, or the mean of several."""
    if isinstance(value, float | int | Absent):
        return known(value, show)
    return show(mean_of(value)) if value else "-"


def _reached(side: TrainedFigures, time: str) -> str:
    reached = len(side.target_s)
    return f"{time} ({reached} of {reached + side.missed} reached it)" if side.missed else time


def _judged(found: Judged) -> tuple[str, str, str]:
    """The difference, its interval and its noise band."""
    if isinstance(found, Absent):
        return "", "", ""
    if isinstance(found, Gap):
        low_high = "?" if found.low is None or found.high is None else f"{signed(found.low)} to {signed(found.high)}"
        return f"{signed(found.value)} points", low_high, "?" if found.band is None else f"±{found.band * 100:.2f}"
    band = "?" if found.band is None else f"±{found.band * 100:.1f}%" if found.band < 1 else f"{1 + found.band:.1f}x"
    return f"{factor_words(found.ratio)}x", interval_words(found), band


def _ratio(ratio: Ratio | Absent) -> str:
    return known(ratio, lambda ratio: f"{ratio.value:.2f}x", "")


def _caption(found: Comparison, varying: Sequence[str]) -> str:
    parts = [f"{found.b} (B) against {found.a} (A)"]
    # Sides that were split off one run have their difference in their names.
    a, b = (name.rpartition(" ")[2] for name in (found.a, found.b))
    for key in dict.fromkeys((*found.compared, *ALWAYS)):
        values = {_value(row, key) for row in found.rows}
        if key not in varying and len(values) == 1 and not values & {"", f"{a} → {b}"}:
            parts.append(values.pop() if key in ALWAYS else f"{shown(key)} {values.pop()}")
    return ", ".join(parts)


def _notes(found: Comparison) -> Iterable[str]:
    if found.mean:
        mean = found.mean
        verdict = verdict_words(mean.verdict, unlike=found.unlike)
        counted = sum(row.told for row in found.rows)
        yield f"Geometric mean over {counted} cells: {factor_words(mean.ratio)}x ({interval_words(mean)}): {verdict}."
    if found.unlike:
        yield f"A and B did different things: {'; '.join(found.unlike.values())}."
    yield from _sample_notes(found)
    yield from _cut(_reasons(found))
    sides = [(side, one) for row in found.rows for side, one in (("A", row.a), ("B", row.b))]
    flags = grouped(
        (name, f"{evidence} ({side}, {one.name}).") for side, one in sides for name, evidence in one.flags.items()
    )
    yield from _cut(f"{name}: {said[0]}" for name, said in flags.items())
    yield from dict.fromkeys(note for _, one in sides for note in one.notes)
    yield from _around(found)
    yield from _unpaired(found)


def _check_notes(found: Comparison) -> Iterable[str]:
    yield from quantity_notes(found)
    yield from _unpaired(found)
    yield from _changes(found)


def _unpaired(found: Comparison) -> Iterable[str]:
    return _cut(f"{one.cell} of {one.side} has no pair: {one.reason}." for one in found.unpaired)


def _changes(found: Comparison) -> Iterable[str]:
    changes = dict.fromkeys(change for row in found.rows for change in row.changes)
    if changes:
        yield f"A → B differ also in: {'; '.join(changes)}."


def _sample_notes(found: Comparison) -> Iterable[str]:
    """What the intervals are over."""
    counts = sorted({row.speed.repeats for row in found.rows if isinstance(row.speed, Difference)})
    said, told = ", ".join(f"{a} and {b}" for a, b in counts), any(row.told for row in found.rows)
    sample = SAMPLES[found.kind]
    if found.kind is RunKind.TRAINING:
        pairs = [(row.a.trained, row.b.trained) for row in found.rows]
        seeds = sorted({(len(a.seeds), len(b.seeds)) for a, b in pairs if a is not None and b is not None})
        over = ", ".join(f"{a} and {b}" for a, b in seeds)
        by_seed = any(row.trained is not None and row.trained.paired for row in found.rows)
        each = "; each seed has samples of its own, so it is compared with the same seed" if by_seed else ""
        names = dict.fromkeys(a.metric.name for a, _ in pairs if a is not None and a.metric is not None)
        accurate = any(a is not None and a.accuracies for a, _ in pairs)
        what = "Accuracy" if accurate or not names else " and ".join(names)
        yield (
            f"{what} is of the validation samples; its 95% interval is over seeds ({over}{each}), that of times and "
            f"samples/s over {sample} ({said})."
        )
        if found.target_accuracy is not None:
            yield "Time to a target ends with the epoch that reached it; a training that never did counts as no time."
    elif told:
        unit = "steps" if found.kind is RunKind.WATCH else "samples"
        inside = {RunKind.WATCH: "the steps of each", RunKind.TUNE: "their trials"}.get(found.kind, "their blocks")
        yield f"Speed: {unit} per second of B over A's; 95%: over {sample} ({said}), not over {inside}."
    slowed = [row.speed.disturbed for row in found.rows if isinstance(row.speed, Difference)]
    of_a, of_b = sum(a for a, _ in slowed), sum(b for _, b in slowed)
    if of_a or of_b:
        yield (
            f"Something else slowed a part of some processes ({of_a} of A, {of_b} of B): they count by "
            "their other blocks."
        )
    if found.kind is RunKind.WATCH:
        yield "Times of watched loops are the host's. Whether A and B do the same work in a step is not recorded."


def _reasons(found: Comparison) -> Iterable[str]:
    for row in found.rows:
        judged = row.trained.judged if row.trained is not None else row.speed
        told = not isinstance(judged, Absent) and judged.verdict is not Verdict.CANT_TELL
        if told or row.a.published or row.b.published:
            continue
        how = ""
        if isinstance(judged, Absent):
            pass
        elif judged.more_repeats is None:
            how = " More repeats would not tell either."
        elif found.kind is RunKind.EXPLAIN:
            how = f" Explain each side again: about {count(judged.more_repeats, 'more time')} would tell."
        elif found.kind is RunKind.TUNE:
            how = f" To tell, measure the best settings and compare those runs: {row.command}"
        elif found.kind is RunKind.WATCH:
            more = count(judged.more_repeats, "more time")
            how = f" Run each side again, under the same name: about {more} would tell."
        elif judged.band is not None:
            command = f": {row.command}" if row.command else "."
            how = f" About {judged.more_repeats:,} more per side would tell{command}"
        else:
            how = f" {'Train' if found.kind is RunKind.TRAINING else 'Measure'} again: {row.command}"
        yield f"{row.name}: can't tell: {judged.reason}.{how}"


def _around(found: Comparison) -> Iterable[str]:
    yield from _changes(found)
    measured = [row for row in found.rows if not (row.a.published or row.b.published)]
    if found.kind is RunKind.EXPLAIN:
        yield "Times of causes are those of the newest explanation of each side; 95%: from their error bars."
        return
    if measured and not found.one_sweep and found.kind is not RunKind.WATCH:
        yield "A and B were measured in different sweeps: what the machine did in between is in the ratio too."
    for what in ("memory", "energy"):
        absent = dict.fromkeys(ratio.reason for row in measured if isinstance(ratio := getattr(row, what), Absent))
        if absent:
            yield f"{what}: not compared where {'; '.join(absent)}."
    metered = [(row.a.energy_of, row.b.energy_of) for row in measured if isinstance(row.energy, Ratio)]
    yield from dict.fromkeys(f"energy: A's is of {a}, B's of {b}." for a, b in metered if a != b)
    sources = dict.fromkeys(one.published for row in found.rows for one in (row.a, row.b) if one.published)
    yield from (f"* Published, not measured by us, and once: nothing shows its noise. {source}." for source in sources)


def _cut(lines: Iterable[str]) -> Iterable[str]:
    every = list(dict.fromkeys(lines))
    yield from every[:MOST_LINES]
    if len(every) > MOST_LINES:
        yield f"... and {len(every) - MOST_LINES} more such lines; --json has them all."


def _value(row: CellComparison, key: str) -> str:
    """One word where the two agree or only one knows, else both."""
    a, b = row.a.keys.get(key), row.b.keys.get(key)
    if a is None or b is None or a == b:
        return (a if b is None else b) or ""
    return f"{a or '-'} → {b or '-'}"
