"""Tables as data, for a terminal, a page and Markdown: of a sweep, of ceilings, and of published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metalmark.model.plan import Feed, Mode, Plan, word
from metalmark.model.run import Failed, FailureKind
from metalmark.report.text.units import figures, seconds, share, size
from metalmark.results.cells import Cell, varying
from metalmark.results.published import METRICS, OTHER_METRICS, STEPS, PublishedFigure, published
from metalmark.workloads.ceiling import COPY, copied_bytes


@dataclass(frozen=True, kw_only=True)
class Table:
    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    notes: tuple[str, ...]
    lines: tuple[str, ...] = ()
    """What is drawn with characters below the notes, in a terminal."""


FIGURES = ("step", "±95%", "samples/s", "input wait", "first step", "memory", "proof", "flags")
WITHOUT_WAIT = tuple(name for name in FIGURES if name != "input wait")
HEADERS = {"feed": "data from"}
TEXTS = {"proof", "flags"}
CEILING_HEADERS = ("framework", "device", "dtype", "matrix product", "±95%", "copy", "±95%", "flags")


def sweep_table(cells: Sequence[Cell], *, plans: Sequence[Plan] = ()) -> Table:
    """Return a row per cell, with a column for each parameter and setting that differs. `plans` may name cells that
    have no run yet: they are empty rows of a table that fills."""
    every = list(plans) or [cell.plan for cell in cells]
    params, settings = varying(every)
    workloads = len({plan.workload for plan in every}) > 1
    modes = len({plan.mode for plan in every}) > 1
    names = [*(["workload"] if workloads else []), *(["mode"] if modes else []), *params, *settings]
    figures_shown = FIGURES if any(plan.feed is Feed.PIPELINE for plan in every) else WITHOUT_WAIT
    headers = (*(HEADERS.get(name, spaced(name)) for name in names), "framework", "device", *figures_shown)
    cells_by_plan = {repr(cell.plan): cell for cell in cells}
    # Cells of two sweeps may have the same plan: without a list of plans, each cell is a row of its own.
    shown = (
        [(plan, cells_by_plan.get(repr(plan))) for plan in plans] if plans else [(cell.plan, cell) for cell in cells]
    )
    rows = []
    for plan, cell in shown:
        lead = [plan_value(plan, name) for name in names]
        values = _figures(cell)
        device = cell.device if cell else str(plan.device)
        rows.append((*lead, plan.framework, device, *(values[name] for name in figures_shown)))
    numbers = {name for name in params if all(isinstance(plan.params.get(name, 0), int | float) for plan in every)}
    numeric = (*(name in numbers for name in names), False, False, *(name not in TEXTS for name in figures_shown))
    return Table(headers=headers, numeric=numeric, rows=tuple(rows), caption=_caption(every, names), notes=notes(cells))


def notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """What the intervals are over, what could not run and why, the flags, and what the frameworks' builds want said."""
    plans = [cell.plan for cell in cells]
    lines = []
    intervals = {cell.interval.over for cell in cells if not cell.failure and cell.interval}
    if intervals:
        lines.append(f"±95%: of the median step, over {', '.join(sorted(intervals))}.")
    if any("block" in over for over in intervals):
        lines.append("One or two processes per cell do not show how processes differ: --repeat 3 or more does.")
    reasons: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.failure:
            reasons.setdefault(f"{cell.failure.kind.value}. {_why(cell.failure)}", []).append(cell)
    for reason, group in reasons.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        lines.append(f"{plan_name(group[0].plan, plans)}{more}: {reason}")
    flagged: dict[str, Cell] = {}
    for cell in cells:
        for name in cell.flags:
            flagged.setdefault(name, cell)
    for name, cell in flagged.items():
        lines.append(f"{name}: {cell.flags[name]} ({plan_name(cell.plan, plans)}).")
    said: dict[str, set[str]] = {}
    for cell in cells:
        for run in cell.completed:
            for note in run.notes:
                said.setdefault(note, set()).add(cell.plan.framework)
    lines.extend(f"{', '.join(sorted(who))}: {note}" for note, who in said.items())
    return tuple(lines)


def _figures(cell: Cell | None) -> dict[str, str]:
    values = dict.fromkeys(FIGURES, "")
    if cell is None:
        return values
    failure = cell.failure
    if failure:
        return {**values, "step": "-", "samples/s": "-", "proof": failure.kind.value}
    interval, memory, waiting = cell.interval, cell.memory_bytes, cell.waiting_share
    return {
        "step": seconds(cell.step_s),
        "±95%": share(interval.half_share) if interval else "?",
        "samples/s": figures(cell.samples_s),
        "input wait": share(waiting) if waiting is not None else "",
        "first step": seconds(cell.first_step_s),
        "memory": size(memory) if memory is not None else "",
        "proof": cell.completed[0].proof.statement,
        "flags": ", ".join(cell.flags),
    }


def _caption(plans: Sequence[Plan], shown: Sequence[str]) -> str:
    plan = plans[0]
    parts = [] if "workload" in shown else [plan.workload]
    parts += [] if "mode" in shown else [plan.mode.value]
    same = [name for name in plan.params if name not in shown and all(name in other.params for other in plans)]
    parts += [f"{spaced(name)} {word(plan.params[name])}" for name in same]
    if "dtype" not in shown:
        parts.append(plan.settings.dtype.value)
    parts += [
        f"{name.replace('_', '-')} {value}"
        for name, value in plan.settings.changed().items()
        if name not in (*shown, "dtype")
    ]
    if "data" not in shown:
        parts.append(f"{plan.data} data")
    if plan.loader is not None and "feed" not in shown:
        parts += [f"{name} {getattr(plan.loader, name)}" for name in ("workers", "prefetch") if name not in shown]
    return ", ".join(parts)


def plan_name(plan: Plan, among: Sequence[Plan]) -> str:
    """The plan's label, and the parameters that tell it from the other plans."""
    params, _ = varying(among)
    extra = [f", {spaced(name)} {word(plan.params[name])}" for name in params if name in plan.params]
    return plan.label + "".join(part for part in extra if not part.startswith(", batch size"))


def plan_value(plan: Plan, name: str) -> str:
    """A parameter, a setting, or another field that a column may be of; empty where the plan has none of that name."""
    if name in plan.params:
        return word(plan.params[name])
    holder = next((part for part in (plan, plan.settings, plan.loader) if hasattr(part, name)), None)
    return word(getattr(holder, name)) if holder is not None else ""


def spaced(name: str) -> str:
    return name.replace("_", " ")


def _why(failure: Failed) -> str:
    signal = f" ({failure.signal})" if failure.signal and failure.signal not in failure.message else ""
    hint = f" {failure.hint}" if failure.hint else ""
    if failure.kind is FailureKind.CRASHED and failure.phase:
        return f"In the phase '{failure.phase}': {failure.message}{signal}{hint}"
    return f"{failure.message}{signal}{hint}"


def ceiling_table(cells: Sequence[Cell]) -> Table:
    """Return a row per framework, device and dtype."""
    copies = {(cell.plan.framework, str(cell.plan.device)): cell for cell in cells if cell.plan.workload == COPY}
    rows = []
    for cell in cells:
        plan = cell.plan
        if plan.workload == COPY:
            continue
        # A copy moves bytes, whatever they mean: it is shown once, beside the first dtype.
        copied = copies.pop((plan.framework, str(plan.device)), None)
        flags = dict.fromkeys([*cell.flags, *(copied.flags if copied else ())])
        rows.append(
            (plan.framework, cell.device, plan.settings.dtype.value, *_flops(cell), *_bytes(copied), ", ".join(flags))
        )
    return Table(
        headers=CEILING_HEADERS,
        numeric=(False, False, False, True, True, True, True, False),
        rows=tuple(rows),
        caption="highest rates measured here",
        notes=notes(cells),
    )


def _flops(cell: Cell) -> tuple[str, str]:
    if cell.failure:
        return ("-", "")
    (run, *_) = cell.completed
    assert run.flops_per_sample is not None
    return f"{figures(run.flops_per_sample * cell.samples_s / 1e9)} GFLOP/s", _interval(cell)


def _bytes(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return ("", "")
    if cell.failure:
        return ("-", "")
    return f"{figures(copied_bytes(cell.plan.params) / cell.step_s / 1e9)} GB/s", _interval(cell)


def _interval(cell: Cell) -> str:
    return share(cell.interval.half_share) if cell.interval else "?"


def published_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return a table for each workload and mode that was both published and measured here, in the published layout."""
    tables = []
    for workload in dict.fromkeys(cell.plan.workload for cell in cells):
        for mode in Mode:
            theirs = [figure for figure in published() if figure.workload == workload and figure.mode is mode]
            ours = [cell for cell in cells if cell.plan.workload == workload and cell.plan.mode is mode]
            if theirs and ours:
                tables.append(_published_table(workload, mode, theirs, ours))
    return tables


def _published_table(workload: str, mode: Mode, theirs: list[PublishedFigure], ours: list[Cell]) -> Table:
    metric = theirs[0].metric
    names = list(theirs[0].params)
    # Only parameters that differ, in their tables or in ours, are worth a column.
    keys = list(dict.fromkeys([*(_key(names, f.params) for f in theirs), *(_key_of(names, c) for c in ours)]))
    keys = [key for key in keys if any(_key_of(names, cell) == key for cell in ours)] or keys
    shown = [n for n in range(len(names)) if len({key[n] for key in keys}) > 1] or list(range(len(names)))
    devices = list(dict.fromkeys(figure.device for figure in theirs))
    columns = list(dict.fromkeys(_column(cell) for cell in ours)) if metric in METRICS else []
    rows = []
    for key in keys:
        published_here = {f.device: _theirs(f) for f in theirs if _key(names, f.params) == key}
        ours_here = {_column(cell): _ours(cell) for cell in ours if _key_of(names, cell) == key}
        values = [*(ours_here.get(column, "") for column in columns), *(published_here.get(d, "") for d in devices)]
        rows.append((*(key[n] for n in shown), *values))
    same = [f"{spaced(names[n])} {keys[0][n]}" for n in range(len(names)) if n not in shown]
    label = METRICS.get(metric) or OTHER_METRICS[metric]
    return Table(
        headers=(*(spaced(names[n]) for n in shown), *columns, *(f"{device} *" for device in devices)),
        numeric=(True,) * (len(shown) + len(columns) + len(devices)),
        rows=tuple(rows),
        caption=", ".join([workload, mode.value, *same, label]),
        notes=_published_notes(theirs, metric),
    )


def _published_notes(theirs: list[PublishedFigure], metric: str) -> tuple[str, ...]:
    sources = dict.fromkeys((figure.source, figure.note) for figure in theirs)
    lines = [f"* Published, not measured by us: {source}; {note}." for source, note in sources]
    lines.append("A hyphen means out of memory; what is empty was not run or not published.")
    if metric not in METRICS:
        lines.append("It counts more than training steps, so no measured figure stands beside it.")
    return tuple(lines)


def _column(cell: Cell) -> str:
    machine = cell.records[0].machine
    where = cell.completed[0].device_name if cell.completed and machine.gpus else machine.chip
    settings = "".join(f", {name} {value}" for name, value in cell.plan.settings.changed().items())
    return f"{cell.plan.framework} {cell.plan.device}: {where}{settings}"


def _ours(cell: Cell) -> str:
    failure = cell.failure
    if failure is None:
        return figures(cell.step_s * STEPS)
    return "-" if failure.kind.value == "out of memory" else failure.kind.value


def _theirs(figure: PublishedFigure) -> str:
    return "-" if figure.value is None else f"{figure.value:,g}"


def _key(names: Sequence[str], params: dict[str, str]) -> tuple[str, ...]:
    return tuple(params.get(name, "") for name in names)


def _key_of(names: Sequence[str], cell: Cell) -> tuple[str, ...]:
    return tuple(word(cell.plan.params[name]) if name in cell.plan.params else "" for name in names)
