"""Figures of cells: throughput, scaling, energy, the share of the ceiling, and published figures beside those."""

from collections.abc import Callable, Iterator, Sequence

from metalmark.model.measurement import Completed
from metalmark.model.plan import Mode, Plan, word
from metalmark.model.run import PARITY_FAILED, Absent
from metalmark.report.charts.draw import MOST_ROWS, Bar, Drawn, Figure, Missing, bars_svg, numbers
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, lines_svg, wants_log
from metalmark.report.text.tables import device_name, plan_value, spaced
from metalmark.report.text.units import figures, grouped, joules, seconds, share
from metalmark.results.ceilings import Ceilings, share_of_ceiling
from metalmark.results.cells import Cell, varying
from metalmark.results.derived import Cost, Derived, derive
from metalmark.results.published import METRICS, STEPS, PublishedFigure, published
from metalmark.stats.summary import median
from metalmark.workloads.ceiling import COPY, MATMUL

RATE = ("cell", "device", "samples/s", "95% from", "to", "step", "over")
ENERGY = ("cell", "device", "J per sample", "mean power", "of", "source")
CEILING = ("cell", "device", "share", "GFLOP/s", "ceiling")
OVER = {"batch_size": "batch size", "seq_len": "sequence length"}
SHORT = {"batch_size": "batch", "seq_len": "length"}
OURS, THEIRS = "measured here", "published by others *"
MOST_PUBLISHED = 8
NO_RESULT = "no cell came to a result"

DerivedById = dict[str, Derived]
BarFigure = tuple[float, str, tuple[float, float] | None, tuple[str, ...]]
"""The value of a bar, as text, its interval, and what else stands in its line of numbers."""


def derive_all(cells: Sequence[Cell]) -> DerivedById:
    """Return what is derived of each run that completed: several figures ask."""
    found = {run.id: derive(run) for cell in cells for run in cell.records}
    return {name: derived for name, derived in found.items() if derived is not None}


def throughput_figures(cells: Sequence[Cell]) -> list[Drawn]:
    """Return a figure per workload and mode; bars begin at 0, so that lengths compare."""
    about = "Bars: median, over processes their geometric mean. Lines: 95% interval"
    return _bar_figures(cells, "Throughput", _rate, RATE, unit="samples per second", about=about, none=NO_RESULT)


def energy_figures(cells: Sequence[Cell], derived: DerivedById | None = None) -> list[Drawn]:
    known = derive_all(cells) if derived is None else derived
    absent = dict.fromkeys(one.energy.reason for one in known.values() if isinstance(one.energy, Absent))
    return _bar_figures(
        cells, "Energy per sample", lambda cell: _energy(cell, known), ENERGY,
        unit="joules per sample, less is better", small="mJ per sample, less is better",
        about="Median over the processes, of the device that it ran on", none=next(iter(absent), NO_RESULT),
    )  # fmt: skip


def efficiency_figures(cells: Sequence[Cell], ceilings: Ceilings) -> list[Drawn]:
    known = derive_all(cells)
    return [*energy_figures(cells, known), *ceiling_figures(cells, ceilings, known)]


def ceiling_figures(cells: Sequence[Cell], ceilings: Ceilings, derived: DerivedById | None = None) -> list[Drawn]:
    measured = [cell for cell in cells if cell.plan.workload not in (MATMUL, COPY)]
    known = derive_all(measured) if derived is None else derived
    shares = [one for cell in measured for one in _shares(cell, ceilings, known)]
    absent = dict.fromkeys(one.reason for one in shares if isinstance(one, Absent))
    return _bar_figures(
        measured, "Share of the measured ceiling", lambda cell: _ceiling(cell, ceilings, known),
        CEILING, unit="of what a matrix product reached here", percent=True,
        about="Work by an analytic count over the time of a step", none=next(iter(absent), NO_RESULT),
    )  # fmt: skip


def scaling_figures(cells: Sequence[Cell]) -> list[Drawn]:
    """Return how throughput grows with batch size and sequence length, a line per framework, device and setting."""
    drawn: list[Drawn] = []
    for param, title in OVER.items():
        groups = by_workload([cell for cell in cells if not cell.failure])
        found = [
            figure
            for (workload, mode), group in groups.items()
            for figure in _scaling(f"{workload}, {mode.value}", group, param)
        ]
        none = f"no workload here ran at two values of its {title}"
        drawn += found or [Missing(title=f"Scaling over {title}", reason=none)]
    return drawn


def published_figures(cells: Sequence[Cell]) -> list[Drawn]:
    """Return a figure for each set of parameters that was both measured here and published."""
    drawn: list[Drawn] = []
    for (workload, mode), group in by_workload(cells).items():
        theirs = [one for one in published() if one.workload == workload and one.mode is mode and one.metric in METRICS]
        settings = dict.fromkeys(tuple(one.params.items()) for one in theirs)
        for params in settings:
            ours = [cell for cell in group if not cell.failure]
            ours = [cell for cell in ours if all(plan_value(cell.plan, name) == value for name, value in params)]
            there = [one for one in theirs if tuple(one.params.items()) == params and one.value is not None]
            if ours and there:
                drawn.append(_published(f"{workload}, {mode.value}", dict(params), ours, there))
    none = "nothing was published in this layout for these workloads and parameters"
    return drawn[:MOST_PUBLISHED] or [Missing(title="Published figures", reason=none)]


def by_workload(cells: Sequence[Cell]) -> dict[tuple[str, Mode], list[Cell]]:
    return grouped(((cell.plan.workload, cell.plan.mode), cell) for cell in cells)


def _where(cell: Cell, cells: Sequence[Cell]) -> str:
    """The device, and the machine where there are several."""
    chips = {other.records[0].machine.chip for other in cells}
    names = {other.completed[0].device_name for other in cells if other.completed}
    several_gpus = cell.records[0].machine.gpus and len(names) > len({str(other.plan.device) for other in cells})
    return f"{cell.device}: {device_name(cell)}" if len(chips) > 1 or several_gpus else cell.device


def _extras(plan: Plan, plans: Sequence[Plan], *, without: str = "") -> str:
    """No more words than tell a plan from the others, its parameters and settings: "batch 8, bfloat16"."""
    params, settings = varying(plans)
    parts = [_param(plan, name) for name in params if name != without and name in plan.params]
    for name in settings:
        value = plan_value(plan, name)
        parts.append(value if name in ("dtype", "data", "feed") or not value else f"{spaced(name)} {value}")
    return ", ".join(part for part in parts if part)


def _common(cells: Sequence[Cell]) -> str:
    """What all of these share, for the line below a title: the parameters that do not vary, and the dtype."""
    params, settings = varying([cell.plan for cell in cells])
    plan = cells[0].plan
    parts = [_param(plan, name) for name in plan.params if name not in params]
    return ", ".join([*parts, *([] if "dtype" in settings else [plan.settings.dtype.value])])


def _param(plan: Plan, name: str) -> str:
    return f"{SHORT.get(name, spaced(name))} {word(plan.params[name])}"


def _bar_figures(
    cells: Sequence[Cell], title: str, figure_of: Callable[[Cell], BarFigure | None], headers: tuple[str, ...], *,
    unit: str, small: str = "", about: str, none: str, percent: bool = False,
) -> list[Drawn]:  # fmt: skip
    """A figure per workload and mode. `small`: the unit in thousandths, for bars of which none reaches 1."""
    drawn: list[Drawn] = []
    # What failed would lengthen the names of the others by settings that only it had.
    for (workload, mode), group in by_workload([cell for cell in cells if not cell.failure]).items():
        found = [(cell, one) for cell in group if (one := figure_of(cell)) is not None]
        plans = [cell.plan for cell in group]
        parts = [found[at : at + MOST_ROWS] for at in range(0, len(found), MOST_ROWS)]
        for number, part in enumerate(parts):
            factor = 1000 if small and max(value for _, (value, *_) in part) < 1 else 1
            bars, rows = [], []
            for cell, (value, text, interval, others) in part:
                row = ", ".join(filter(None, (cell.plan.framework, _extras(cell.plan, plans))))
                text += _mark(cell)
                low, high = interval or (None, None)
                where = _where(cell, group)
                bars.append(Bar(row=row, group=where, value=value * factor, low=low, high=high, text=text))
                rows.append((row, where, text, *others))
            longest = max(bars, key=lambda bar: bar.value)
            which = f", {number + 1} of {len(parts)}" if len(parts) > 1 else ""
            drawn.append(
                Figure(
                    title=f"{title}: {workload}, {mode.value}{which}",
                    about=f"{about}. With {_common(group)}.",
                    label=f"Bar chart: {title.lower()} of {workload} {mode.value}; the longest is {longest.row} on "
                    f"{longest.group}, {longest.text}.",
                    svg=bars_svg(bars, unit=unit if factor == 1 else small, percent=percent),
                    numbers=numbers(headers, rows, texts=2),
                )
            )
    return drawn or [Missing(title=title, reason=none)]


def _rate_interval(cell: Cell) -> tuple[float, float] | None:
    """The 95% interval of the step, as samples per second."""
    interval, samples = cell.interval, cell.completed[0].samples_per_step
    return (samples / interval.high, samples / interval.low) if interval and interval.low > 0 else None


def _rate(cell: Cell) -> BarFigure:
    interval = _rate_interval(cell)
    ends = map(figures, interval) if interval else ("?", "?")
    over = cell.interval.over if cell.interval else "too few blocks"
    return cell.samples_s, figures(cell.samples_s), interval, (*ends, seconds(cell.step_s), over)


def _energy(cell: Cell, derived: DerivedById) -> BarFigure | None:
    energies = [derived[run.id].energy for run in cell.records if run.id in derived]
    costs = [cost for cost in energies if isinstance(cost, Cost)]
    if not costs:
        return None
    used = median([cost.joules_per_sample for cost in costs])
    watts = f"{figures(median([cost.average_w for cost in costs]))} W"
    sources = " ".join(dict.fromkeys(cost.source for cost in costs))
    return used, joules(used), None, (watts, costs[0].part, sources)


def _ceiling(cell: Cell, ceilings: Ceilings, derived: DerivedById) -> BarFigure | None:
    known = [one for one in _shares(cell, ceilings, derived) if not isinstance(one, Absent)]
    if not known:
        return None
    part = median([share for _, share, _ in known])
    reached, ceiling = median([flops for _, _, flops in known]), known[0][0]
    return part, share(part), None, (figures(reached / 1e9), figures(ceiling / 1e9))


def _shares(cell: Cell, ceilings: Ceilings, derived: DerivedById) -> Iterator[tuple[float, float, float] | Absent]:
    """Yield the ceiling, the share of it, and the FLOP/s of each run."""
    for run in cell.records:
        if isinstance(run.outcome, Completed):
            flops = derived[run.id].flops_per_s
            if isinstance(flops, Absent):
                yield flops
                continue
            found = share_of_ceiling(run, flops, ceilings)
            yield found if isinstance(found, Absent) else (*found, flops)


def _scaling(name: str, cells: Sequence[Cell], param: str) -> list[Figure]:
    """Return one figure where its lines can be told apart, else one per combination of the other settings."""
    sized = [cell for cell in cells if isinstance(cell.plan.params.get(param), int)]
    plans = [cell.plan for cell in sized]
    groups = grouped(
        ((f"{cell.plan.framework}, {_where(cell, sized)}", _extras(cell.plan, plans, without=param)), cell)
        for cell in sized
    )
    several = {key: group for key, group in groups.items() if len({_at(cell, param) for cell in group}) > 1}
    if not several:
        return []
    if len(several) <= MOST_LINES:
        lines = {", ".join(filter(None, key)): group for key, group in several.items()}
        return [_scaling_figure(name, lines, param)]
    apart = grouped((more, (line, group)) for (line, more), group in several.items())
    return [
        _scaling_figure(", ".join(filter(None, (name, more))), dict(found[at : at + MOST_LINES]), param)
        for more, found in apart.items()
        for at in range(0, len(found), MOST_LINES)
    ]


def _scaling_figure(name: str, groups: dict[str, list[Cell]], param: str) -> Figure:
    title = OVER[param]
    lines, rows = [], []
    wrong: list[str] = []
    for key, group in groups.items():
        ordered = sorted(group, key=lambda cell: _at(cell, param))
        points = tuple((_at(cell, param), cell.samples_s) for cell in ordered)
        spans = tuple(_rate_interval(cell) for cell in ordered)
        lines.append(Line(name=key, points=points, intervals=spans))
        wrong += [f"{key} at {_at(cell, param):g}" for cell in ordered if PARITY_FAILED in cell.flags]
        for cell, span in zip(ordered, spans, strict=True):
            ends = ("?", "?") if span is None else (figures(span[0]), figures(span[1]))
            rate = f"{figures(cell.samples_s)}{_mark(cell)}"
            rows.append((key, f"{_at(cell, param):g}", rate, *ends, seconds(cell.step_s)))
    x = Axis(title, log=wants_log([x for line in lines for x, _ in line.points]), whole=True)
    y = Axis("samples per second", log=wants_log([y for line in lines for _, y in line.points]), zero=True)
    fastest = max(lines, key=lambda line: max(y for _, y in line.points))
    which = [what for what, axis in ((title, x), ("throughput", y)) if axis.log]
    scales = f" Logarithmic: {' and '.join(which)}." if which else ""
    scales += f" {PARITY_FAILED}: {'; '.join(wrong)}." if wrong else ""
    return Figure(
        title=f"Scaling over {title}: {name}",
        about=f"Points: median, over processes their geometric mean. Lines across: 95% interval.{scales}",
        label=f"Line chart: samples per second of {name} over {title}; {fastest.name} reaches the most.",
        svg=lines_svg(lines, x, y, points=True),
        numbers=numbers(("line", title, "samples/s", "95% from", "to", "step"), rows),
    )


def _mark(cell: Cell) -> str:
    """What stands behind a speed that is not that of the same network."""
    return f", {PARITY_FAILED}" if PARITY_FAILED in cell.flags else ""


def _at(cell: Cell, param: str) -> float:
    value = cell.plan.params[param]
    assert isinstance(value, int)
    return float(value)


def _published(name: str, params: dict[str, str], ours: Sequence[Cell], theirs: Sequence[PublishedFigure]) -> Figure:
    bars, rows = [], []
    for cell in ours:
        where, dtype = f"{cell.plan.framework} {cell.plan.device}", cell.plan.settings.dtype.value
        value = cell.step_s * STEPS
        bars.append(Bar(row=f"{where}, {dtype}", group=OURS, value=value, text=f"{figures(value)} s{_mark(cell)}"))
        rows.append((f"{where}, {device_name(cell)}", OURS, dtype, figures(value), _mark(cell).lstrip(", ")))
    for one in theirs:
        assert one.value is not None
        bars.append(Bar(row=f"{one.device} *", group=THEIRS, value=one.value, text=f"{one.value:,g} s", hollow=True))
        rows.append((one.device, f"published: {one.source}", one.dtype, f"{one.value:,g}", one.note))
    with_params = ", ".join(f"{spaced(key)} {value}" for key, value in params.items())
    return Figure(
        title=f"Published figures: {name}",
        about=f"With {with_params}. * Published, not measured by us, once and without an interval: {theirs[0].note}.",
        label=f"Bar chart: seconds for {STEPS} steps of {name}, {with_params}, measured here and published by others.",
        svg=bars_svg(bars, unit=f"seconds for {STEPS} steps, less is better"),
        numbers=numbers(("device", "from", "dtype", f"s for {STEPS} steps", "its faults"), rows, texts=3),
    )
