"""Times, shares and gains in the words of a sentence."""


def time_words(seconds: float) -> str:
    """Two or three figures and a unit: "16.2 ms"."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * scale:
            return f"{figures(seconds / scale)} {unit}"
    return f"{figures(seconds * 1e9)} ns"


def figures(value: float) -> str:
    """Three figures at most, without an exponent."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value < 0.0995:
        return f"{value:.2g}"
    return f"{value:.{1 if value >= 9.995 else 2}f}".rstrip("0").rstrip(".")


def share_words(share: float) -> str:
    """Whole percents: "71%"."""
    return "less than 1%" if 0 < share < 0.005 else f"{share * 100:.0f}%"


def gain_words(gain: float) -> str:
    """How many times as fast: "1.34x"."""
    return f"{gain:.0f}x" if gain >= 9.95 else f"{gain:.1f}x" if gain >= 1.95 else f"{gain:.2f}x"


def capital(text: str) -> str:
    """With a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
