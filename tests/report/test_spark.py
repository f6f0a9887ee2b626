"""Bars that show what was there, and no more."""

from __future__ import annotations

from metalmark.report.text.units import spark


def test_a_rise_is_seen_and_nothing_is_hidden() -> None:
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark([], 8) == ""
    assert len(spark(list(range(1000)), 10)) == 10
    outlier = [1.0] * 50 + [100.0] + [1.0] * 49
    assert spark(outlier, 10).count("█") == 1


def test_what_stands_still_is_flat() -> None:
    assert spark([500.0, 500.1, 499.9], 8) == "▄▄▄"
    assert spark([0.0, 0.0], 8) == "▄▄"
