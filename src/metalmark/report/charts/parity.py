"""The figure of a parity check: how far off each quantity is, in the order in which they are compared."""

import math
from itertools import pairwise

from metalmark.model.parity import Checked, Compared, ParityRun, Quantity
from metalmark.report.charts.draw import Drawn, Figure, Missing
from metalmark.report.charts.lines import Axis, Line, Span, lines_svg, thinned
from metalmark.report.text.parity_page import every_table, quantity_words, row_verdict, sigmas_shown

LEAST = 1e-3
"""A logarithmic axis has no 0: what is nearer than this is drawn here."""
ABOVE = 10.0
"""What is not finite is drawn so many times above the highest of the others."""
MOST = 1e9
SHORT = {
    Quantity.EVAL_OUTPUT: "evaluation",
    Quantity.TRAIN_OUTPUT: "training",
    Quantity.OPTIMIZER: "optimiser",
    Quantity.UPDATE: "change",
    Quantity.STATISTIC: "statistic",
    Quantity.REPEAT: "repeat",
    Quantity.CURVE: "curve",
    Quantity.ACCURACY: "accuracy",
}
"""Names of the parts of the axis, where there is little room."""


def parity_figures(run: ParityRun) -> list[Drawn]:
    """Return the figure of a check, or why there is none."""
    title = "Distance of each quantity from the reference"
    if not isinstance(run.outcome, Checked) or not run.outcome.compared:
        return [Missing(title=title, reason="nothing was compared")]
    rows = run.outcome.compared
    # Each quantity has its own limit, so what is drawn is the share of it: one line across is the limit of all.
    finite = [share for row in rows if math.isfinite(share := _share(row))]
    top = ABOVE * max([*finite, 1.0])
    points = tuple((float(number), _height(row, top)) for number, row in enumerate(rows, start=1))
    says = {float(number): _said(row) for number, row in enumerate(rows, start=1)}
    lines = [Line(name="distance", points=points, says=says)]
    lost = sum(row.distance is None for row in rows)
    said = [
        "Sigmas over how many are allowed, in the order in which they are compared. Broken line across: the limit. "
        "Logarithmic.",
        f"Not finite, and drawn at the top: {lost}." if lost else "",
        thinned([len(rows)]),
    ]
    wrong = run.outcome.differences
    found = f"{len(wrong)} differ, the first is the {quantity_words(wrong[0])}" if wrong else "all agree"
    return [
        Figure(
            title=title,
            about=" ".join(filter(None, said)),
            label=f"Line chart: distance of {len(rows)} quantities in the order in which they are compared; {found}.",
            svg=lines_svg(
                lines,
                Axis("quantity", whole=True),
                Axis("sigmas / limit", log=True),
                spans=_kinds(rows),
                points=True,
                level=1.0,
            ),
            numbers=every_table(run.outcome),
        )
    ]


def _height(row: Compared, top: float) -> float:
    share = _share(row)
    return max(share, LEAST) if math.isfinite(share) else top


def _share(row: Compared) -> float:
    return min(row.sigmas / row.limit, MOST) if row.limit and row.distance is not None else math.inf


def _said(row: Compared) -> str:
    return f"{quantity_words(row)}: {sigmas_shown(row)} sigmas, {row_verdict(row)}"


def _kinds(rows: tuple[Compared, ...]) -> list[Span]:
    """Return the parts of the axis that belong to one kind of quantity."""
    starts = [at for at, row in enumerate(rows) if not at or rows[at - 1].quantity is not row.quantity]
    return [
        Span(begin + 0.5, end + 0.5, SHORT.get(rows[begin].quantity, rows[begin].quantity.value))
        for begin, end in pairwise([*starts, len(rows)])
    ]
