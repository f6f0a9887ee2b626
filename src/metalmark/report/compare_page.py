"""A comparison as a table: a row a pair of cells, and below it everything that keeps a ratio from being misread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metalmark.model.run import Absent
from metalmark.report.table import Table
from metalmark.report.units import figures, seconds
from metalmark.results.comparison import Comparison, Figures, Ratio, Row
from metalmark.results.pairing import MAY_LACK, shown
from metalmark.stats.difference import Difference, Verdict

FIGURES = ("A step", "B step", "speed", "95%", "noise band", "verdict", "memory", "energy", "flags")
TEXTS = {"verdict", "flags"}
HIDDEN = {*MAY_LACK, "workload file"}
ALWAYS = ("workload", "mode", "dtype", "framework", "device")
"""In the caption even where the sides do not differ in it."""
MOST_LINES = 6
NOT_LIKE = "not like for like"


def comparison_table(found: Comparison) -> Table:
    varying = [key for key in _keys(found.rows) if len({_value(row, key) for row in found.rows}) > 1]
    rows = tuple((*(_value(row, key) for key in varying), *_figures(row)) for row in found.rows)
    return Table(
        headers=(*map(shown, varying), *FIGURES),
        numeric=(*(False for _ in varying), *(name not in TEXTS for name in FIGURES)),
        rows=rows,
        caption=_caption(found, varying),
        notes=tuple(_notes(found)),
    )


def verdict_words(row: Row) -> str:
    return f"{row.verdict.value}, {NOT_LIKE}" if row.no_speed_up else row.verdict.value


def _figures(row: Row) -> tuple[str, ...]:
    flags = [f"{side}: {', '.join(one.flags)}" for side, one in (("A", row.a), ("B", row.b)) if one.flags]
    return (
        *(_step(one) for one in (row.a, row.b)),
        *(_speed(row.speed) if isinstance(row.speed, Difference) else ("", "", "")),
        verdict_words(row),
        _ratio(row.memory),
        _ratio(row.energy),
        "; ".join(flags),
    )


def _speed(speed: Difference) -> tuple[str, str, str]:
    return f"{_factor(speed.ratio)}x", _interval(speed), _band(speed.band)


def _band(band: float | None) -> str:
    if band is None:
        return "?"
    return f"±{band * 100:.1f}%" if band < 1 else f"{1 + band:.1f}x"


def _interval(speed: Difference) -> str:
    return "?" if speed.low is None or speed.high is None else f"{_factor(speed.low)} to {_factor(speed.high)}"


def _factor(value: float) -> str:
    """Near 1 the thousandths tell; far from it three figures do."""
    return f"{value:.3f}" if 0.1 <= value < 10 else figures(value)


def _step(one: Figures) -> str:
    if isinstance(one.step_s, Absent):
        return one.failure.partition(":")[0]
    return f"{seconds(one.step_s)}{' *' if one.published else ''}"


def _ratio(ratio: Ratio | Absent) -> str:
    return "" if isinstance(ratio, Absent) else f"{ratio.value:.2f}x"


def _caption(found: Comparison, varying: Sequence[str]) -> str:
    parts = [f"{found.b} (B) against {found.a} (A)"]
    # Sides that were split off one run have their difference in their names.
    a, b = (name.rpartition(" ")[2] for name in (found.a, found.b))
    said = {f"{a} → {b}"}
    for key in dict.fromkeys((*found.compared, *ALWAYS)):
        values = {_value(row, key) for row in found.rows}
        if key not in varying and len(values) == 1:
            value = values.pop()
            if value in said:
                continue
            parts += [value if key in ALWAYS else f"{shown(key)} {value}"] if value else []
    return ", ".join(parts)


def _notes(found: Comparison) -> Iterable[str]:
    if found.mean:
        mean = found.mean
        verdict = f"{mean.verdict.value}, {NOT_LIKE}" if found.unlike else mean.verdict.value
        counted = sum(row.told for row in found.rows)
        yield f"Geometric mean over {counted} cells: {_factor(mean.ratio)}x ({_interval(mean)}): {verdict}."
    if found.unlike:
        yield f"This is no speed-up, A and B did different things: {'; '.join(found.unlike.values())}."
    counts = sorted({row.speed.repeats for row in found.rows if isinstance(row.speed, Difference)})
    if any(row.told for row in found.rows):
        said = ", ".join(f"{a} and {b}" for a, b in counts)
        yield f"Speed: samples per second of B over A's; 95%: over processes ({said}), not over their blocks."
    yield from _cut(_reasons(found))
    yield from _cut(_flags(found))
    yield from dict.fromkeys(note for row in found.rows for one in (row.a, row.b) for note in one.notes)
    yield from _around(found)
    yield from _cut(f"{one.cell} of {one.side} has no pair: {one.reason}." for one in found.unpaired)


def _reasons(found: Comparison) -> Iterable[str]:
    for row in found.rows:
        speed = row.speed
        if row.verdict is not Verdict.CANT_TELL or row.a.published or row.b.published:
            continue
        line = f"{row.name}: can't tell: {row.reason}."
        if isinstance(speed, Difference):
            more = speed.more_repeats
            line += f" About {more} more a side would tell:" if more and speed.band else " Measure again:"
            line = f"{line} {row.command}" if row.command else f"{line[: line.rindex('.') + 1]} No number of them will."
        yield line


def _flags(found: Comparison) -> Iterable[str]:
    said: dict[str, str] = {}
    for row in found.rows:
        for side, one in (("A", row.a), ("B", row.b)):
            for name, evidence in one.flags.items():
                said.setdefault(name, f"{name}: {evidence} ({side}, {one.name}).")
    yield from said.values()


def _around(found: Comparison) -> Iterable[str]:
    changes = dict.fromkeys(change for row in found.rows for change in row.changes)
    if changes:
        yield f"A → B differ also in: {'; '.join(changes)}."
    measured = [row for row in found.rows if not (row.a.published or row.b.published)]
    if measured and not found.one_sweep:
        yield "A and B were measured in different sweeps: what the machine did in between is in the ratio too."
    for what in ("memory", "energy"):
        absent = dict.fromkeys(ratio.reason for row in measured if isinstance(ratio := getattr(row, what), Absent))
        if absent:
            yield f"{what}: not compared where {'; '.join(absent)}."
    metered = dict.fromkeys(
        f"energy: A's is of {row.a.energy_of}, B's of {row.b.energy_of}."
        for row in measured
        if isinstance(row.energy, Ratio) and row.a.energy_of != row.b.energy_of
    )
    yield from metered
    sources = dict.fromkeys(one.published for row in found.rows for one in (row.a, row.b) if one.published)
    yield from (f"* Published, not measured by us, and once: nothing tells its noise. {source}." for source in sources)


def _cut(lines: Iterable[str]) -> Iterable[str]:
    every = list(dict.fromkeys(lines))
    yield from every[:MOST_LINES]
    if len(every) > MOST_LINES:
        yield f"... and {len(every) - MOST_LINES} more such lines; --json has them all."


def _keys(rows: Sequence[Row]) -> list[str]:
    keys = dict.fromkeys(key for row in rows for one in (row.a, row.b) for key in one.keys)
    return [key for key in keys if key not in HIDDEN]


def _value(row: Row, key: str) -> str:
    """One word where the two agree or only one knows, else both."""
    a, b = row.a.keys.get(key), row.b.keys.get(key)
    if a is None or b is None or a == b:
        return (a if b is None else b) or ""
    return f"{a or '-'} → {b or '-'}"
