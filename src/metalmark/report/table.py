"""The table of a sweep, as data: columns that differ, a caption for what does not, and notes below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metalmark.model.plan import Feed, Plan, word
from metalmark.model.run import Failed, FailureKind
from metalmark.report.units import figures, seconds, share, size
from metalmark.results.cells import Cell, varying


@dataclass(frozen=True, kw_only=True)
class Table:
    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    notes: tuple[str, ...]


FIGURES = ("step", "±95%", "samples/s", "input wait", "first step", "memory", "proof", "flags")
WITHOUT_WAIT = tuple(name for name in FIGURES if name != "input wait")
HEADERS = {"feed": "data from"}
TEXTS = {"proof", "flags"}


def sweep_table(cells: Sequence[Cell], *, plans: Sequence[Plan] = ()) -> Table:
    """`plans` may name cells that have no record yet: they show as empty rows of a table that fills."""
    every = list(plans) or [cell.plan for cell in cells]
    params, settings = varying(every)
    workloads = len({plan.workload for plan in every}) > 1
    modes = len({plan.mode for plan in every}) > 1
    names = [*(["workload"] if workloads else []), *(["mode"] if modes else []), *params, *settings]
    figures_shown = FIGURES if any(plan.feed is Feed.PIPELINE for plan in every) else WITHOUT_WAIT
    headers = (*(HEADERS.get(name, name.replace("_", " ")) for name in names), "framework", "device", *figures_shown)
    found = {_key(cell.plan): cell for cell in cells}
    # Cells of two sweeps may have the same plan: without a list of plans, each cell is a row of its own.
    shown = [(plan, found.get(_key(plan))) for plan in plans] if plans else [(cell.plan, cell) for cell in cells]
    rows = []
    for plan, cell in shown:
        lead = [_value(plan, name) for name in names]
        values = _figures(cell)
        device = cell.device if cell else str(plan.device)
        rows.append((*lead, plan.framework, device, *(values[name] for name in figures_shown)))
    numbers = {name for name in params if all(isinstance(plan.params.get(name, 0), int | float) for plan in every)}
    numeric = (*(name in numbers for name in names), False, False, *(name not in TEXTS for name in figures_shown))
    return Table(headers=headers, numeric=numeric, rows=tuple(rows), caption=_caption(every, names), notes=notes(cells))


def notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """What could not run and why, what the intervals are over, and what the backends want said."""
    params, _ = varying([cell.plan for cell in cells])
    lines = []
    intervals = {cell.interval.over for cell in cells if not cell.failure and cell.interval}
    if intervals:
        lines.append(f"±95%: of the median step, over {', '.join(sorted(intervals))}.")
    if any("block" in over for over in intervals):
        lines.append("One or two processes a cell do not show how processes differ: --repeat 3 or more does.")
    reasons: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.failure:
            reasons.setdefault(f"{cell.failure.kind.value}. {_why(cell.failure)}", []).append(cell)
    for reason, group in reasons.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        lines.append(f"{_name(group[0].plan, params)}{more}: {reason}")
    flagged: dict[str, Cell] = {}
    for cell in cells:
        for name in cell.flags:
            flagged.setdefault(name, cell)
    for name, cell in flagged.items():
        lines.append(f"{name}: {cell.flags[name]} ({_name(cell.plan, params)}).")
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
    parts += [f"{name.replace('_', ' ')} {word(plan.params[name])}" for name in same]
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


def _value(plan: Plan, name: str) -> str:
    if name == "workload":
        return plan.workload
    if name == "mode":
        return plan.mode.value
    if name in plan.params:
        return word(plan.params[name])
    if name == "feed":
        return plan.feed.value
    if name == "data":
        return plan.data
    holder = plan.settings if hasattr(plan.settings, name) else plan.loader
    return word(getattr(holder, name)) if holder is not None else ""


def _key(plan: Plan) -> str:
    return repr(plan)


def _name(plan: Plan, params: Sequence[str]) -> str:
    chosen = {name: word(plan.params[name]) for name in params if name in plan.params}
    extras = {**chosen, **plan.settings.changed()}
    settings = "".join(f", {name.replace('_', ' ')} {value}" for name, value in extras.items())
    return f"{plan.workload} {plan.mode.value} on {plan.framework} {plan.device}{settings}"


def _why(failure: Failed) -> str:
    signal = f" ({failure.signal})" if failure.signal and failure.signal not in failure.message else ""
    hint = f" {failure.hint}" if failure.hint else ""
    if failure.kind is FailureKind.CRASHED and failure.phase:
        return f"In the phase '{failure.phase}': {failure.message}{signal}{hint}"
    return f"{failure.message}{signal}{hint}"
