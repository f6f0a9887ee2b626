"""Figures: their numbers are the records', their colours have their like in the dark, thinning loses nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml

import pytest

from metalmark.model.measurement import Phases
from metalmark.model.plan import Mode
from metalmark.model.run import Telemetry
from metalmark.report.charts.cells import (
    ceiling_figures,
    energy_figures,
    published_figures,
    scaling_figures,
    throughput_figures,
)
from metalmark.report.charts.draw import SERIES, Bar, Drawn, Figure, Missing, bars_svg, plain
from metalmark.report.charts.lines import (
    MOST_POINTS,
    MOST_STRIPS,
    Axis,
    Line,
    Span,
    lines_svg,
    thin,
    thinned,
    wants_log,
)
from metalmark.report.charts.over_time import (
    phase_spans,
    sensor_figures,
    series_figures,
    steps_figure,
    together_figures,
    training_figures,
    watched_figures,
)
from metalmark.report.html.page import asset
from metalmark.results.ceilings import NO_CEILINGS, Ceilings, key_of
from metalmark.results.cells import cells_of
from tests.report.contents import HOSTILE, PHASES, records, run, series, telemetry, training, watched
from tests.samples import plan, record

pytest.importorskip("vl_convert")

SVG = "{http://www.w3.org/2000/svg}"


def drawn(found: list[Drawn]) -> list[Figure]:
    return [one for one in found if isinstance(one, Figure)]


def missing(found: list[Drawn]) -> str:
    return " ".join(one.reason for one in found if isinstance(one, Missing))


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in Xml.fromstring(svg).iter(f"{SVG}text")]


def test_throughput_says_what_the_table_says() -> None:
    cells = cells_of([record(run(0.1, batch=4), plan=plan(params={"batch_size": 4}))])
    (figure,) = drawn(throughput_figures(cells))
    (row,) = figure.numbers.rows
    interval = cells[0].interval
    assert interval is not None
    assert row[2] == "40.0"
    assert (row[3], row[4]) == (f"{4 / interval.high:.1f}", f"{4 / interval.low:.1f}")
    assert "40.0" in texts(figure.svg)
    assert "samples per second" in texts(figure.svg)


@pytest.mark.parametrize("last", [0.8095, 0.8365, 0.99])
def test_no_two_ticks_of_a_share_read_the_same(last: float) -> None:
    line = Line(name="a", points=((1.0, 0.8093), (2.0, last)))
    svg = lines_svg([line], Axis(title="epoch"), Axis(title="accuracy", percent=True))
    ticks = [text for text in texts(svg) if text.endswith("%")]
    assert len(ticks) >= 3
    assert len(set(ticks)) == len(ticks)


def test_names_hold_only_what_tells_cells_apart() -> None:
    cells = cells_of(records())
    figure = drawn(throughput_figures(cells))[0]
    assert [row[0] for row in figure.numbers.rows][:2] == ["torch, batch 4", "torch, batch 32"]
    assert "With float32." in figure.about


def test_hostile_names_are_words_of_the_drawing() -> None:
    svg = bars_svg([Bar(row=word, group="cpu", value=1.0, text=word) for word in HOSTILE], unit=HOSTILE[0])
    said = texts(svg)
    assert HOSTILE[0] in said
    assert not [tag for tag in Xml.fromstring(svg).iter() if tag.tag in (f"{SVG}script", f"{SVG}image")]
    assert plain("a\x00b\n c" * 40) == plain("ab c" * 40)
    assert len(plain("x" * 500)) == 80


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_every_colour_has_its_like_in_the_dark(kind: str) -> None:
    """A colour without a rule in page.css would stay what it is in light."""
    if kind == "bars":
        groups = [f"device {number}" for number in range(7)]
        bars = [Bar(row="r", group=name, value=1.0, low=0.9, high=1.1, text="1") for name in groups]
        svg = bars_svg([*bars, Bar(row="theirs", group="g", value=2.0, text="2", hollow=True)], unit="s")
    else:
        lines = [Line(name=f"l{n}", points=((0.0, 1.0 + n), (9.0, 2.0 + n))) for n in range(7)]
        trend = Line(name="t", points=((0.0, 1.0), (9.0, 5.0)), trend=True)
        svg = lines_svg([*lines, trend], Axis("x"), Axis("y"), spans=[Span(0, 4, "a"), Span(4, 9, "b")], level=3.0)
    used = set(re.findall(r'(fill|stroke)="(#[0-9a-f]+|[a-z]+)"', svg)) - {("fill", "none"), ("stroke", "none")}
    ruled = set(re.findall(r'svg \[(fill|stroke)="(#[0-9a-f]+)"\]', asset("page.css")))
    assert {colour for _, colour in used} >= set(SERIES[:6])
    assert used <= ruled


def test_scaling_needs_two_sizes_and_goes_logarithmic() -> None:
    found = scaling_figures(cells_of(records()))
    (figure,) = drawn(found)
    assert len(figure.numbers.rows) == 6
    assert "Logarithmic: batch size" in figure.about
    assert {"4", "32", "256"} <= set(texts(figure.svg)), "the sizes that ran, and no others, stand on the axis"
    assert "two values of its sequence length" in missing(found)
    assert wants_log([1, 8])
    assert not wants_log([0, 8])


def test_drift_is_drawn_where_it_is_more_than_noise() -> None:
    drifting, steady = cells_of([record(run(0.1, drift=0.02)), record(run(0.1), cell=1)])
    slow, even = steps_figure(drifting, "a"), steps_figure(steady, "b")
    assert slow is not None
    assert even is not None
    assert "Broken line: the drift" in slow.about
    assert slow.numbers.rows[0][-1].startswith("+")
    assert even.numbers.rows[0][-1] == "none"
    assert slow.svg.count("<path") > even.svg.count("<path")


def test_sensors_over_the_phases() -> None:
    found = sensor_figures(record(run(), telemetry=telemetry()), "x")
    titles = {one.title.partition(":")[0] for one in drawn(found)}
    assert titles == {"CPU utilisation", "Power", "Memory"}
    assert {"import", "measured"} <= set(texts(drawn(found)[0].svg))
    assert "first step" not in texts(drawn(found)[0].svg), "a name that has no room is left out"
    assert "watts" in texts(next(one for one in drawn(found) if one.title.startswith("Power")).svg)
    assert [span.name for span in phase_spans(PHASES)] == ["import", "build", "first step", "warm-up", "measured"]
    still = Phases(import_s=1, build_s=1, first_step_s=1, warmup_s=1, measure_s=1, end_s=1)
    assert phase_spans(still) == []
    assert "switched off" in missing(series_figures(record().telemetry, "x"))


def test_energy_and_ceiling_or_the_reason() -> None:
    one = record(run(0.1), telemetry=telemetry())
    cells = cells_of([one])
    (energy,) = drawn(energy_figures(cells))
    assert energy.numbers.rows[0][3].endswith(" W")
    assert "metalmark ceiling -f torch -d cpu" in missing(ceiling_figures(cells, NO_CEILINGS))
    outcome = one.outcome
    reached = Ceilings({key_of(one, outcome): 6.4e11}, {})  # type: ignore[arg-type]
    (share,) = drawn(ceiling_figures(cells, reached))
    assert share.numbers.rows[0][2] == "50.0%"


def test_published_figures_are_marked() -> None:
    params = {"size": "base", "batch_size": 16, "seq_len": 128}
    ours = record(run(1.2, batch=16), plan=plan(workload="bert", params=params, mode=Mode.TRAINING))
    (figure,) = drawn(published_figures(cells_of([ours])))
    words = texts(figure.svg)
    assert "published by others *" in words
    assert "NVIDIA T4 *" in words
    assert "stroke-dasharray" in figure.svg
    assert "Published, not measured by us" in figure.about
    assert any(row[1].startswith("published: ") for row in figure.numbers.rows)
    assert "nothing was published" in missing(published_figures(cells_of(records())))


def test_training_curves() -> None:
    both = together_figures([training(), training("trained0002", framework="jax")])
    assert len(drawn(both)) == 2
    assert len(drawn(both)[0].numbers.rows) == 6
    assert "the target, 90.00%" in drawn(both)[0].about
    own = training_figures(training())
    assert drawn(own)[0].numbers.rows[0][1:] == ("12", "2", "0.5333", "0.5333")
    assert "before its first epoch" in missing(training_figures(training(epochs=0)))
    (curve,) = drawn(watched_figures(watched()))
    assert "1 values were not finite" in curve.about


def test_thinning_keeps_every_peak_and_dip() -> None:
    points = [(float(number), 1.0) for number in range(50_000)]
    points[12_345] = (12_345.0, 99.0)
    points[40_001] = (40_001.0, -99.0)
    kept = thin(points)
    assert len(kept) <= MOST_POINTS
    assert (12_345.0, 99.0) in kept
    assert (40_001.0, -99.0) in kept
    assert kept == sorted(kept)
    assert thin(points[:10]) == points[:10]
    assert thinned([10]) == ""
    assert "50,000 points" in thinned([50_000])


def test_more_series_than_colours_are_in_the_numbers() -> None:
    many = Telemetry(hz=5.0, series=tuple(series(f"gpu{n}_memory", "bytes", [1e6 * n + 1, 2e6]) for n in range(9)))
    (figure,) = drawn(series_figures(many, "x"))
    assert len(figure.numbers.rows) == 9
    assert "Of 9 series the first 7 are drawn" in figure.about
    assert "MiB" in texts(figure.svg), "small ones in their own unit"


def test_a_gpu_that_did_nothing_is_drawn_and_swap_that_did_nothing_is_not() -> None:
    idle = Telemetry(
        hz=5.0, series=(series("gpu0_utilisation", "%", [0.0] * 5), series("system_swap_used", "bytes", [0.0] * 5))
    )
    assert [one.title for one in drawn(series_figures(idle, "x"))] == ["GPU utilisation: x"]


def titles(svg: str) -> list[str]:
    return ["".join(title.itertext()) for title in Xml.fromstring(svg).iter(f"{SVG}title")]


def test_hovering_a_bar_shows_its_value_and_interval() -> None:
    bars = [
        Bar(row="torch", group="cpu", value=1234.5, low=1200.0, high=1300.0, text="1,234"),
        Bar(row="theirs <b>", group="published", value=0.125, text="0.125", hollow=True),
    ]
    shown = titles(bars_svg(bars, unit="samples per second"))
    assert shown == [
        "torch, cpu: 1,234, 95% interval 1,200 to 1,300 (samples per second)",
        "theirs <b>, published: 0.125 (samples per second)",
    ]


def test_hovering_a_line_chart_shows_the_values_of_every_line_there() -> None:
    lines = [
        Line(name="torch", points=((1.0, 0.25), (2.0, 0.5)), intervals=((0.2, 0.3), None)),
        Line(name="jax", points=((1.0, 0.75), (2.0, 0.875))),
    ]
    svg = lines_svg(lines, Axis("epoch", whole=True), Axis("accuracy", percent=True), points=True)
    shown = titles(svg)
    assert shown[:2] == [
        "epoch 1: torch 25.00%, jax 75.00% (accuracy)", "epoch 2: torch 50.00%, jax 87.50% (accuracy)",
    ]  # fmt: skip
    assert shown[2:4] == ["torch", "jax"], "a line says its name"
    assert shown[4] == "epoch 1: torch 25.00%, 95% interval 20.00% to 30.00%"
    assert len(shown) == 2 + 2 + 4, "a strip per place, a line each, a point each"
    assert "aria-" not in svg, "a figure has one label, on the element around it"


def test_long_lines_have_few_places_to_hover() -> None:
    line = Line(name="power", points=tuple((number / 10, float(number % 7)) for number in range(5000)))
    shown = titles(lines_svg([line], Axis("seconds"), Axis("watts")))
    assert len(shown) == MOST_STRIPS + 1
    assert shown[0] == "15.6 s: power 2.00 (watts)"
    still = Line(name="one", points=((1.0, 2.0),))
    assert titles(lines_svg([still], Axis("step"), Axis("loss"), points=True)) == ["one", "step 1: one 2.00"]


def test_every_figure_of_a_report_shows_values_on_hover() -> None:
    cells = cells_of(records())
    found = [*throughput_figures(cells), *scaling_figures(cells), *energy_figures(cells)]
    found += [*training_figures(training()), *sensor_figures(cells[0].records[0], "x")]
    for figure in drawn(found):
        assert len(titles(figure.svg)) >= len(figure.numbers.rows), figure.title
