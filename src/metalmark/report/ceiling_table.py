"""Ceilings as a table: a row a framework, device and dtype."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.report.table import Table, notes
from metalmark.report.units import figures, share
from metalmark.results.cells import Cell
from metalmark.workloads.ceiling import COPY, copied_bytes

HEADERS = ("framework", "device", "dtype", "matrix product", "±95%", "copy", "±95%", "flags")


def ceiling_table(cells: Sequence[Cell]) -> Table:
    copies = {(cell.plan.framework, str(cell.plan.device)): cell for cell in cells if cell.plan.workload == COPY}
    rows = []
    for cell in cells:
        plan = cell.plan
        if plan.workload == COPY:
            continue
        # A copy moves bytes, whatever they mean: it stands once, beside the first dtype.
        copied = copies.pop((plan.framework, str(plan.device)), None)
        flags = dict.fromkeys([*cell.flags, *(copied.flags if copied else ())])
        rows.append(
            (plan.framework, cell.device, plan.settings.dtype.value, *_flops(cell), *_bytes(copied), ", ".join(flags))
        )
    return Table(
        headers=HEADERS,
        numeric=(False, False, False, True, True, True, True, False),
        rows=tuple(rows),
        caption="the most that was reached here",
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
