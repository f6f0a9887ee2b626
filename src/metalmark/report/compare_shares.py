"""Two explanations compared: what the step waits for on each side, and the time of each cause side by side."""

import math
from collections.abc import Iterator

from metalmark.model.explanation import Cause
from metalmark.report.text.units import seconds, share
from metalmark.results.comparison import CellComparison, Comparison, SideFigures


def shares_answers(found: Comparison) -> Iterator[str]:
    """Say what each side waits for, and which cause's time changed most."""
    for row in found.rows:
        a, b = row.a, row.b
        if not a.bottleneck or not b.bottleneck:
            continue
        lead = f"{row.name}: " if len(found.rows) > 1 else ""
        verdicts = (
            f"{found.b} is {b.bottleneck}, as {found.a} is"
            if a.bottleneck == b.bottleneck
            else f"{found.b} is {b.bottleneck}, {found.a} {a.bottleneck}"
        )
        moved = max(_causes(row), key=lambda cause: abs(_more_s(row, cause)), default=None)
        most = "" if moved is None or not _is_told(row, moved) else f"; {_moved_words(row, moved)}"
        yield f"{lead}{verdicts}{most}."


def share_rows(row: CellComparison) -> Iterator[tuple[str, ...]]:
    """Yield the verdicts, then the time of each cause on both sides and the difference with its 95% interval."""
    yield ("waits for", row.a.bottleneck or "-", row.b.bottleneck or "-", "", "", "", "")
    for cause in _causes(row):
        more_s, error_s = _more_s(row, cause), _error_s(row, cause)
        interval = f"±{seconds(error_s)}" if error_s else ""
        verdict = "can't tell" if not _is_told(row, cause) else "more" if more_s > 0 else "less"
        yield (cause, *(_side(one, cause) for one in (row.a, row.b)), signed_time(more_s), interval, "", verdict)


def signed_time(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}" if value else "0"


def _causes(row: CellComparison) -> list[str]:
    """Causes that took time on either side, in their own order."""
    return [cause.value for cause in Cause if max(one.shares_s.get(cause.value, 0.0) for one in (row.a, row.b)) > 0]


def _side(one: SideFigures, cause: str) -> str:
    return f"{seconds(one.shares_s[cause])} {_share(one, cause)}" if one.shares_s.get(cause) else "-"


def _share(one: SideFigures, cause: str) -> str:
    return share(one.shares_s.get(cause, 0.0) / (sum(one.shares_s.values()) or 1.0))


def _more_s(row: CellComparison, cause: str) -> float:
    return row.b.shares_s.get(cause, 0.0) - row.a.shares_s.get(cause, 0.0)


def _error_s(row: CellComparison, cause: str) -> float:
    return math.hypot(*(one.share_errors_s.get(cause, 0.0) for one in (row.a, row.b)))


def _is_told(row: CellComparison, cause: str) -> bool:
    return abs(_more_s(row, cause)) > _error_s(row, cause)


def _moved_words(row: CellComparison, cause: str) -> str:
    more_s = _more_s(row, cause)
    word = "more" if more_s > 0 else "less"
    shares = f"{_share(row.b, cause)} of a step, not {_share(row.a, cause)}"
    return f"{cause} takes {seconds(abs(more_s))} {word}: {shares}"
