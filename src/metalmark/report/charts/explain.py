"""The figures of an explanation: what a step is made of as one bar, the roofline, and what changes should gain and did.
The bar also shows what the steps of a watched script are made of."""

import math
from collections.abc import Sequence

from msgspec import Struct

from metalmark.model.explanation import Cause, Explained, ExplanationRun, Roofline
from metalmark.model.run import Absent
from metalmark.model.watch import WatchedRun
from metalmark.report.charts.draw import SERIES, Bar, Drawn, Figure, Missing, bars_svg, numbers, plain, svg
from metalmark.report.text.explain_page import (
    gain_words,
    measured_words,
    roofline_table,
    roofline_words,
    scaled,
    shown_percentages,
    shown_shares,
)
from metalmark.report.text.units import count, prefix_of, seconds
from metalmark.report.text.watch_page import step_parts

SHARES_TITLE = "What a step is made of"
ROOFLINE_TITLE = "Roofline"
GAINS_TITLE = "What changes gain"
REST = SERIES[-1]
"""The colour of what is unexplained, or told by nothing."""
COLOURS = SERIES[:-1]
BAR_PX, LEGEND_PX = 88, 16
WIDE_ENOUGH = 0.09
"""A part of so much of the bar has its percentage written on it."""
EXPECTED, MEASURED = "expected", "measured"


class BarPart(Struct, frozen=True, kw_only=True):
    """One part of a bar that adds up."""

    name: str
    seconds: float
    says: str = ""
    """What is shown on hovering, after the name and the figures."""
    rest: bool = False
    """What is told by nothing: drawn in grey."""


def explanation_figures(run: ExplanationRun) -> list[Drawn]:
    """Return the figures of an explanation, or why there are none."""
    found = run.outcome
    if not isinstance(found, Explained) or not shown_shares(found):
        return [Missing(title=SHARES_TITLE, reason="nothing was explained")]
    drawn: list[Drawn] = [_shares_figure(found)]
    if isinstance(found.roofline, Absent):
        drawn.append(Missing(title=ROOFLINE_TITLE, reason=found.roofline.reason))
    else:
        drawn.append(_roofline_figure(found.roofline))
    return [*drawn, *_gains_figures(found)]


def script_figures(run: WatchedRun) -> list[Drawn]:
    """Return what the steps of a watched script are made of, where that was seen."""
    steady = run.script.steady if run.script is not None else None
    if steady is None or not steady.steps or steady.elapsed_s <= 0:
        return []
    parts = [
        BarPart(name=name, seconds=value / steady.steps, rest=name == "everything else")
        for name, value in step_parts(steady)
    ]
    about = f"The mean of {count(steady.steps, 'step')} after the first, as the host saw them."
    return [_parts_figure(parts, about)]


def _shares_figure(found: Explained) -> Figure:
    parts = [
        BarPart(
            name=one.cause.value,
            seconds=one.seconds,
            says=f" ± {seconds(one.error_s)}: {one.evidence}",
            rest=one.cause is Cause.UNEXPLAINED,
        )
        for one in shown_shares(found)
    ]
    return _parts_figure(parts, f"One step of {seconds(found.step_s)}; {found.bottleneck.value}.")


def _parts_figure(parts: Sequence[BarPart], about: str) -> Figure:
    percentages = shown_percentages([one.seconds for one in parts])
    rows = numbers(
        ("part", "time", "share"),
        [(one.name, seconds(one.seconds), shown) for one, shown in zip(parts, percentages, strict=True)],
    )
    said = ", ".join(f"{one.name} {shown}" for one, shown in zip(parts, percentages, strict=True))
    return Figure(
        title=SHARES_TITLE,
        about=about,
        label=f"One bar of parts that add up to a step: {said}.",
        svg=parts_svg(parts),
        numbers=rows,
    )


def parts_svg(given: Sequence[BarPart]) -> str:
    """Draw one bar of parts that add up. More parts than there are colours are drawn as one, which names them."""
    parts = _few(given)
    total = sum(one.seconds for one in parts) or 1.0
    scale, prefix = prefix_of(total)
    shown = shown_percentages([one.seconds for one in parts])
    rows, texts, begin = [], [], 0.0
    for one, percent in zip(parts, shown, strict=True):
        end = begin + one.seconds / scale
        name = plain(f"{one.name} {percent}")
        says = plain(f"{one.name}: {seconds(one.seconds)}, {percent}{one.says}", 300)
        rows.append({"name": name, "begin": begin, "end": end, "says": says})
        if one.seconds / total >= WIDE_ENOUGH:
            texts.append({"middle": (begin + end) / 2, "text": percent})
        begin = end
    colours = iter(COLOURS)
    return svg(
        "parts.json",
        {"parts": rows, "texts": texts},
        height=BAR_PX + LEGEND_PX * len(parts),
        unit=f"{prefix}s per step",
        most=begin or 1.0,
        colours={
            "domain": [row["name"] for row in rows],
            "range": [REST if one.rest else next(colours) for one in parts],
        },
    )


def _few(parts: Sequence[BarPart]) -> list[BarPart]:
    told, rest = [one for one in parts if not one.rest], [one for one in parts if one.rest]
    if len(told) > len(COLOURS):
        small = sorted(told, key=lambda one: -one.seconds)[len(COLOURS) - 1 :]
        kept = [one for one in told if one not in small]
        names = ", ".join(f"{one.name} {seconds(one.seconds)}" for one in small)
        told = [*kept, BarPart(name="others", seconds=sum(one.seconds for one in small), says=f": {names}")]
    return [*told, *rest]


def _roofline_figure(line: Roofline) -> Figure:
    return Figure(
        title=ROOFLINE_TITLE,
        about=f"{roofline_words(line)} Both axes are logarithmic.",
        label=f"Roofline: {roofline_words(line)}",
        svg=roofline_svg(line),
        numbers=roofline_table(line),
    )


def roofline_svg(line: Roofline) -> str:
    """Draw the ceilings of memory and arithmetic, and the step below them."""
    left, right = min(line.intensity, line.ridge) / 8, max(line.intensity, line.ridge) * 8
    low = min(left * line.peak_bytes_per_s, line.achieved_flops_per_s / 2)
    memory = f"memory: {scaled(line.peak_bytes_per_s, 'B/s')} in a copy"
    arithmetic = f"arithmetic: {scaled(line.peak_flops_per_s, 'FLOP/s')} in a matrix product"
    achieved, reachable = line.achieved_flops_per_s, line.reachable_flops_per_s
    apart = f"{scaled(achieved, 'FLOP/s')} of {scaled(reachable, 'FLOP/s')} that this intensity allows"
    roof = [
        {"x": left, "y": left * line.peak_bytes_per_s, "x2": line.ridge, "y2": line.peak_flops_per_s, "says": memory},
        {"x": line.ridge, "y": line.peak_flops_per_s, "x2": right, "y2": line.peak_flops_per_s, "says": arithmetic},
    ]
    step = {"x": line.intensity, "y": achieved, "says": f"this step: {apart}"}
    near_right = math.log(line.intensity / left) > 0.6 * math.log(right / left)
    beside = {"align": "right", "dx": -9, "dy": 4} if near_right else {"align": "left", "dx": 9, "dy": 4}
    if achieved > reachable:
        # Beside the point the roof would go through the text.
        beside = {"align": "center", "dx": 0, "dy": -10}
    texts = [
        {"x": right, "y": line.peak_flops_per_s, "text": scaled(line.peak_flops_per_s, "FLOP/s"), "align": "right",
         "dx": -2, "dy": -7},
        {"x": line.intensity, "y": achieved, "text": f"this step {scaled(achieved, 'FLOP/s')}", **beside},
    ]  # fmt: skip
    ticks = {"tickCount": 5, "format": "~s"}
    return svg(
        "roofline.json",
        {"roof": roof, "gap": [{**step, "y2": reachable}], "step": [step], "texts": texts},
        x={
            "field": "x", "type": "quantitative", "title": "FLOP per byte", "axis": {"grid": False, **ticks},
            "scale": {"type": "log", "domain": [left, right], "nice": False},
        },
        y={
            "field": "y", "type": "quantitative", "title": "FLOP/s", "axis": ticks,
            "scale": {"type": "log", "domain": [low, max(line.peak_flops_per_s, achieved) * 1.6], "nice": False},
        },
    )  # fmt: skip


def _gains_figures(found: Explained) -> list[Drawn]:
    """Return what each change should gain beside what it did gain where that was measured."""
    told = [one for one in found.proposals if one.gain is not None]
    if not told:
        return []
    bars = []
    for one in told:
        assert one.gain is not None
        bars.append(
            Bar(row=one.title, group=EXPECTED, value=one.gain, text=f"{one.gain:.2f}x", low=one.low, high=one.high)
        )
        did = one.measured
        if did is not None and did.gain is not None:
            bars.append(
                Bar(row=one.title, group=MEASURED, value=did.gain, text=f"{did.gain:.2f}x", low=did.low, high=did.high)
            )
    rows = [(one.title, gain_words(one.gain, one.low, one.high), measured_words(one.measured)) for one in told]
    said = "; ".join(f"{title}: expected {gain}, measured {did}" for title, gain, did in rows)
    return [
        Figure(
            title=GAINS_TITLE,
            about="How many times as many samples per second; 1 is no gain. Lines: 95% intervals.",
            label=f"Bars of what changes gain: {said}.",
            svg=bars_svg(bars, unit="times as many samples per second"),
            numbers=numbers(("change", EXPECTED, MEASURED), rows),
        )
    ]
