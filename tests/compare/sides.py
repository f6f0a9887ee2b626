"""Sides made by hand: cells of so many processes whose step times are known."""

from __future__ import annotations

from itertools import count as counting
from typing import Any

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.results.pairing import Side
from tests.samples import completed, plan, record

SWEEPS = counting()
FACTORS = (0.998, 1.0, 1.002, 0.999, 1.001)


def repeats(
    asked: Plan | None = None, step_s: float = 0.1, *, count: int = 5, cell: int = 0, sweep: str = "", **changes: Any
) -> list[BenchRun]:
    """One cell, measured `count` times."""
    asked, sweep = asked or plan(), sweep or f"sweep{next(SWEEPS):05d}"
    samples = int(asked.params.get("batch_size", 1))
    return [
        record(
            completed(step_s * FACTORS[number % 5], samples=samples, **changes.get("run", {})),
            plan=asked,
            repeat=number,
            cell=cell,
            sweep=sweep,
            **{name: value for name, value in changes.items() if name != "run"},
        )
        for number in range(count)
    ]


def side(name: str, *cells: list[BenchRun]) -> Side:
    return Side.of_runs(name, [one for cell in cells for one in cell])
