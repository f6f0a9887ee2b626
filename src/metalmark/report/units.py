"""Numbers as people read them: three figures, a unit, never more precision than was measured."""

from __future__ import annotations


def seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{figures(value / scale)} {unit}"
    return f"{figures(value / 1e-9)} ns"


def figures(value: float) -> str:
    """Three significant figures, without an exponent; thousands are set apart."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.9995 else f"{value:.3g}"


def share(value: float) -> str:
    return "<0.1%" if value < 0.001 else f"{value * 100:.1f}%"


def size(value: float) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= scale:
            return f"{figures(value / scale)} {unit}"
    return f"{value:.0f} B"


def duration(value: float) -> str:
    """For time left: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def moment(utc: str) -> str:
    """A record's time to the second, without the letters between."""
    return utc[:19].replace("T", " ")
