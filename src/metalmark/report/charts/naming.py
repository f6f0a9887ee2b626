"""What a cell is called in a figure: no more words than tell it from its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.plan import Mode, Plan, word
from metalmark.results.cells import Cell, varying

SHORT = {"batch_size": "batch", "seq_len": "length"}


def where(cell: Cell, cells: Sequence[Cell]) -> str:
    """The device, and of several machines which."""
    machine = cell.records[0].machine
    chips = {other.records[0].machine.chip for other in cells}
    names = {other.completed[0].device_name for other in cells if other.completed}
    if len(chips) > 1 or (machine.gpus and len(names) > len({str(other.plan.device) for other in cells})):
        ran = cell.completed[0].device_name if cell.completed and machine.gpus else machine.chip
        return f"{cell.device}: {ran}"
    return cell.device


def extras(plan: Plan, plans: Sequence[Plan], *, without: Sequence[str] = ()) -> str:
    """Parameters and settings that differ between the plans: "batch 8, bfloat16"."""
    params, settings = varying(plans)
    parts = [f"{SHORT.get(name, name.replace('_', ' '))} {word(plan.params[name])}" for name in params
             if name not in without and name in plan.params]  # fmt: skip
    for name in settings:
        if name in without:
            continue
        holder = plan if name in ("data", "feed") else plan.settings if hasattr(plan.settings, name) else plan.loader
        value = word(getattr(holder, name)) if holder is not None else ""
        parts.append(value if name in ("dtype", "data", "feed") else f"{name.replace('_', ' ')} {value}")
    return ", ".join(part for part in parts if part)


def row_name(cell: Cell, cells: Sequence[Cell]) -> str:
    more = extras(cell.plan, [other.plan for other in cells])
    return f"{cell.plan.framework}{f', {more}' if more else ''}"


def by_workload(cells: Sequence[Cell]) -> dict[tuple[str, Mode], list[Cell]]:
    groups: dict[tuple[str, Mode], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.plan.workload, cell.plan.mode), []).append(cell)
    return groups


def common(cells: Sequence[Cell]) -> str:
    """What all of these share, for a line below a title: batch size and dtype where they do not vary."""
    plans = [cell.plan for cell in cells]
    params, settings = varying(plans)
    plan = plans[0]
    parts = [f"{SHORT.get(name, name.replace('_', ' '))} {word(value)}" for name, value in plan.params.items()
             if name not in params]  # fmt: skip
    if "dtype" not in settings:
        parts.append(plan.settings.dtype.value)
    return ", ".join(parts)
