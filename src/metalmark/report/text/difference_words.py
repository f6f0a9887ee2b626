"""The figures of a difference as people read them: factors, intervals and percentage points."""

from collections.abc import Sequence

from metalmark.report.text.units import figures
from metalmark.results.comparison import Ratio
from metalmark.stats.difference import Difference


def factor_words(value: float) -> str:
    """Near 1 the thousandths tell; far from it three figures do."""
    return f"{value:.3f}" if 0.1 <= value < 10 else figures(value)


def interval_words(speed: Difference | Ratio) -> str:
    return (
        "?" if speed.low is None or speed.high is None else f"{factor_words(speed.low)} to {factor_words(speed.high)}"
    )


def signed(value: float) -> str:
    return f"{value * 100:+.2f}"


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
