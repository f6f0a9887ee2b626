"""How throughput grows with batch size and sequence length: a line for each of what else differs."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.report.charts.figures import Drawn, Figure, Missing, numbers
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, lines_svg, wants_log
from metalmark.report.charts.naming import by_workload, extras, where
from metalmark.report.units import figures, seconds
from metalmark.results.cells import Cell

OVER = {"batch_size": "batch size", "seq_len": "sequence length"}


def scaling_figures(cells: Sequence[Cell]) -> list[Drawn]:
    drawn: list[Drawn] = []
    for param, words in OVER.items():
        found = [
            figure
            for (workload, mode), group in by_workload([cell for cell in cells if not cell.failure]).items()
            for figure in _figures(f"{workload}, {mode.value}", group, param, words)
        ]
        drawn += found or [
            Missing(title=f"Scaling over {words}", reason=f"no workload here ran at two values of its {words}")
        ]
    return drawn


def _figures(name: str, cells: Sequence[Cell], param: str, words: str) -> list[Figure]:
    """All lines in one figure where they can be told apart, else a figure for each of what differs besides."""
    sized = [cell for cell in cells if isinstance(cell.plan.params.get(param), int)]
    plans = [cell.plan for cell in sized]
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in sized:
        key = (f"{cell.plan.framework}, {where(cell, sized)}", extras(cell.plan, plans, without=[param]))
        groups.setdefault(key, []).append(cell)
    several = {key: group for key, group in groups.items() if len({_at(cell, param) for cell in group}) > 1}
    if not several:
        return []
    if len(several) <= MOST_LINES:
        return [_figure(name, {", ".join(filter(None, key)): group for key, group in several.items()}, param, words)]
    apart: dict[str, dict[str, list[Cell]]] = {}
    for (line, more), group in several.items():
        apart.setdefault(more, {})[line] = group
    return [_figure(", ".join(filter(None, (name, more))), part, param, words)
            for more, lines in apart.items() for part in _parts(lines)]  # fmt: skip


def _parts(lines: dict[str, list[Cell]]) -> list[dict[str, list[Cell]]]:
    keys = list(lines)
    return [{key: lines[key] for key in keys[at : at + MOST_LINES]} for at in range(0, len(keys), MOST_LINES)]


def _figure(name: str, groups: dict[str, list[Cell]], param: str, words: str) -> Figure:
    lines, rows = [], []
    for key, group in groups.items():
        ordered = sorted(group, key=lambda cell: _at(cell, param))
        points = tuple((_at(cell, param), cell.samples_s) for cell in ordered)
        spans = tuple(_interval(cell) for cell in ordered)
        lines.append(Line(name=key, points=points, intervals=spans))
        for cell, span in zip(ordered, spans, strict=True):
            ends = ("?", "?") if span is None else (figures(span[0]), figures(span[1]))
            rows.append((key, f"{_at(cell, param):g}", figures(cell.samples_s), *ends, seconds(cell.step_s)))
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x = Axis(words, log=wants_log(xs), whole=True)
    y = Axis("samples a second", log=wants_log(ys), zero=True)
    fastest = max(lines, key=lambda line: max(y for _, y in line.points))
    which = [name for name, axis in ((words, x), ("throughput", y)) if axis.log]
    scales = f" Logarithmic: {' and '.join(which)}." if which else ""
    return Figure(
        title=f"Scaling over {words}: {name}",
        about=f"Points: median. Lines across: 95% interval.{scales}",
        label=f"Line chart: samples a second of {name} over {words}; {fastest.name} reaches the most.",
        svg=lines_svg(lines, x, y, points=True),
        numbers=numbers(("line", words, "samples/s", "95% from", "to", "step"), rows),
    )


def _interval(cell: Cell) -> tuple[float, float] | None:
    interval, samples = cell.interval, cell.completed[0].samples_per_step
    return (samples / interval.high, samples / interval.low) if interval and interval.low > 0 else None


def _at(cell: Cell, param: str) -> float:
    value = cell.plan.params[param]
    assert isinstance(value, int)
    return float(value)
