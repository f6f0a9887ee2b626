"""Two parity checks compared: which quantities changed their verdict, and whose distance changed most."""

import math
from collections.abc import Iterator

from metalmark.report.text.parity_page import name_words, quantity_words, sigmas_shown
from metalmark.report.text.units import count
from metalmark.results.comparison import CellComparison, Comparison
from metalmark.results.quantity_changes import QuantityChange

PER_QUANTITY = ("quantity", "name", "A", "B", "change")
MOVED, MOST_MOVED = 2.0, 10
"""Quantities whose sigmas changed by this factor are shown, the most changed first."""


def checks_answer(found: Comparison, row: CellComparison) -> str:
    """Say which quantities of two parity checks changed their verdict."""
    lead = f"{row.name}: " if len(found.rows) > 1 else ""
    both = [change for change in row.quantities if change.a is not None and change.b is not None]
    worse = [change for change in both if change.turned and change.a is not None and change.a.agrees]
    better = [change for change in both if change.turned and change not in worse]
    verdicts = [one.parity.value if one.parity is not None else "?" for one in (row.a, row.b)]
    same = verdicts[0] == verdicts[1]
    whole = (
        f"{found.b} {verdicts[1]}, as {found.a} does" if same else f"{found.b} {verdicts[1]}, {found.a} {verdicts[0]}"
    )
    if not both:
        return f"{lead}{whole}; no quantity was compared in both."
    parts = [
        f"{count(len(changes), 'quantity', 'quantities')} newly {verb}{'s' if len(changes) == 1 else ''} "
        f"(the first is the {quantity_words(changes[0].b)})"
        for changes, verb in ((worse, "differ"), (better, "agree"))
        if changes and changes[0].b is not None
    ]
    said = "; ".join(parts) or f"none of {count(len(both), 'quantity', 'quantities')} changed its verdict"
    return f"{lead}{whole}: {said}."


def quantity_rows(row: CellComparison) -> Iterator[tuple[str, ...]]:
    """Yield the quantities that changed their verdict, then those whose distance changed most."""
    turned = [change for change in row.quantities if change.turned]
    others = [change for change in row.quantities if not change.turned and _moved(change) >= MOVED]
    others = sorted(others, key=_moved, reverse=True)[:MOST_MOVED]
    yield from (_change_cells(change) for change in (*turned, *others))


def quantity_notes(found: Comparison) -> Iterator[str]:
    """Yield what the table shows of the quantities, and what it can't show."""
    yield f"Shown: what changed its verdict, and up to {MOST_MOVED} whose sigmas changed {MOVED:g}-fold or more."
    alone = [sum(getattr(change, side) is None for row in found.rows for change in row.quantities) for side in "ba"]
    for number, name in zip(alone, (found.a, found.b), strict=True):
        if number:
            was = "was" if number == 1 else "were"
            yield f"{count(number, 'quantity', 'quantities')} {was} compared in {name} alone."
    yield from (f"{one.name}: {one.failure}." for row in found.rows for one in (row.a, row.b) if one.failure)


def _moved(change: QuantityChange) -> float:
    """How many times further off one of them is than the other; what lies within the noise in both has not moved."""
    if change.a is None or change.b is None:
        return 0.0
    low, high = sorted(max(one.sigmas, 1.0) for one in (change.a, change.b))
    return high / low if low < math.inf else 1.0


def _change_cells(change: QuantityChange) -> tuple[str, ...]:
    row = change.b or change.a
    assert row is not None
    sigmas = [sigmas_shown(one) if one is not None else "-" for one in (change.a, change.b)]
    words = "same verdict"
    if change.turned:
        words = "newly differs" if change.a is not None and change.a.agrees else "newly agrees"
    return (row.quantity.value, name_words(row), *sigmas, words)
