"""The report as a document: everything escaped, nothing loaded, every figure with its numbers."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from metalmark.model.run import Telemetry
from metalmark.report.content import Content
from metalmark.report.html.document import document, sweep_section
from metalmark.report.html.page import Column, ColumnKind, Value, asset, from_table, page, sort_key, table
from metalmark.report.text.tables import Table, sweep_table
from metalmark.results.cells import cells_of
from tests.report.contents import HOSTILE, everything, records, run, series
from tests.report.markup import Parsed, parse
from tests.samples import completed, plan, record

Markup = pytest.importorskip("markupsafe").Markup
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")


@pytest.fixture(scope="module")
def text() -> str:
    return document(everything())


@pytest.fixture(scope="module")
def parsed(text: str) -> Parsed:
    return parse(text)


def test_it_is_well_formed(parsed: Parsed) -> None:
    assert parsed.trouble == []
    ids = [tag.attributes["id"] for tag in parsed.tags if "id" in tag.attributes]
    assert len(ids) == len(set(ids)), "an id names one place"
    places = {tag.attributes["href"] for tag in parsed.named("a")}
    assert places <= {f"#{name}" for name in ids}, "every link leads somewhere in the page"


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_what_looks_like_markup_is_text(parsed: Parsed, hostile: str) -> None:
    assert hostile in parsed.named("main")[0].text


def test_nothing_runs_but_our_script(parsed: Parsed) -> None:
    assert len(parsed.named("script")) == 1
    assert len(parsed.named("style")) == 1
    assert parsed.named("script")[0].text == asset("page.js")
    for tag in parsed.tags:
        assert tag.name not in {"img", "iframe", "object", "embed", "form", "base", "foreignobject", "use", "image"}
        assert not [name for name in tag.attributes if name.startswith("on") or name == "style"], tag


def test_nothing_is_loaded(text: str, parsed: Parsed) -> None:
    loading = {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}
    for tag in parsed.tags:
        for name in loading & set(tag.attributes):
            assert tag.attributes[name].startswith("#"), (tag.name, name, tag.attributes[name])
    for style in (parsed.named("style")[0].text, *re.findall(r'="(url\([^"]*)"', text)):
        assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", style))
    assert "@import" not in text


def test_the_policy_names_both_blocks(parsed: Parsed) -> None:
    policy = next(tag.attributes["content"] for tag in parsed.named("meta") if "http-equiv" in tag.attributes)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(parsed.named(name)[0].text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_every_figure_has_its_numbers_and_its_words(parsed: Parsed) -> None:
    figures = parsed.named("figure")
    assert len(figures) >= 20
    inside = {name: [tag for tag in parsed.named(name) if "figure" in tag.inside] for name in ("svg", "table", "td")}
    assert len(inside["svg"]) == len(inside["table"]) == len(figures)
    assert len(inside["td"]) > 2 * len(figures), "and the tables hold something"
    labels = [tag.attributes["aria-label"] for tag in parsed.tags if tag.attributes.get("class") == "plot"]
    assert len(labels) == len(figures)
    assert all("chart:" in label for label in labels)


def test_what_ran_and_what_could_not(text: str, parsed: Parsed) -> None:
    body = parsed.named("main")[0].text
    for said in ("crashed", "Planned and not measured yet", "training batch 32 mlx cpu", "Test chip", "drifting",
                 "Broken line: the drift", "Not drawn: Scaling over sequence length", "ceiling (not measured yet",
                 "metalmark ceiling -f torch",
                 "no driver"):  # fmt: skip
        assert said in body, said
    assert "NaN" not in text.partition("<script>")[0]
    assert "undefined" not in body


def test_what_was_not_measured_is_not_drawn_and_the_page_says_why() -> None:
    found = parse(document(Content(runs=(record(completed(0.1)),))))
    body = found.named("main")[0].text
    assert "Energy per sample, CPU utilisation, Power, Memory (telemetry was switched off)" in body
    assert "Scaling over batch size (no workload here ran at two values of its batch size)" in body
    assert body.count("Not drawn") == 1
    assert body.rstrip().endswith(".")
    assert body.rindex("Not drawn") > body.rindex("Machine and software"), "what could not be drawn comes last"
    titles = [tag.text.partition(":")[0] for tag in found.named("figcaption")]
    assert len(titles) == 2
    assert titles[0] == "Throughput"
    assert titles[1].startswith("Step time")


def test_the_same_plan_in_two_sweeps_is_two_rows() -> None:
    twice = [record(completed(0.1), sweep="sweep00001"), record(completed(0.2), sweep="sweep00002")]
    rows = sweep_table(cells_of(twice)).rows
    assert [row[2] for row in rows] == ["100 ms", "200 ms"]
    found = parse(str(sweep_section(twice)))
    assert [tag.text for tag in found.named("td") if tag.text.startswith("sweep")] == ["sweep00001", "sweep00002"]


def test_a_large_report_stays_small() -> None:
    """Long series and many runs: what a page shows is bounded, and it says what it left out."""
    long = [float(number % 97) for number in range(1000)]
    sensors = tuple(series(f"gpu{number}_power", "W", long) for number in range(3))
    heavy = [
        record(
            run(0.01, blocks=600 if number < 12 else 8),
            cell=number,
            plan=plan(params={"batch_size": number + 1}),
            telemetry=Telemetry(hz=5.0, series=sensors if number < 12 else ()),
        )
        for number in range(205)
    ]
    text = document(Content(runs=tuple(heavy)))
    assert len(text.encode()) < 3 << 20
    body = parse(text).named("main")[0].text
    assert "Of 205 cells 12" in body
    assert "And 5 more" in body
    assert "as the lowest and highest of each stretch; the numbers are of all" in body
    assert "1,000" in body, "the numbers below a figure are of every reading"


def test_pages_of_a_server_link_to_its_files() -> None:
    found = parse(page("A <b> page", Markup("<p>body</p>"), static="/static", script="/static/live.js"))
    assert found.trouble == []
    assert [tag.attributes["src"] for tag in found.named("script")] == ["/static/page.js", "/static/live.js"]
    assert not found.named("style")
    assert found.named("title")[0].text == "A <b> page"


def test_a_body_that_is_no_markup_is_text() -> None:
    found = parse(page("t", "<i>not a tag</i>"))  # type: ignore[arg-type]
    assert not found.named("i")


def test_a_script_that_would_end_its_block_is_refused() -> None:
    with pytest.raises(ValueError, match="end the block"):
        page("t", Markup(""), script="x = '</script>'")


@pytest.mark.parametrize("address", ["javascript:alert(1)", "https://elsewhere.example", "data:text/html,x", "x.html"])
def test_a_cell_links_to_no_other_place(address: str) -> None:
    with pytest.raises(ValueError, match="this site"):
        Value(text="x", href=address)


def test_figures_sort_by_what_they_are_worth() -> None:
    texts = ["3 s", "1.20 ms", "451 µs", "2 min", "1,024 B", "1.5 GiB", "12.5%", "-"]
    assert [sort_key(text) for text in texts[:-1]] == pytest.approx([3, 1.2e-3, 4.51e-4, 120, 1024, 1.5 * 2**30, 12.5])
    assert sort_key("-") is None
    made = Table(headers=("name", "step"), numeric=(False, True), rows=(("a", "3 s"), ("b", "-")), caption="", notes=())
    cells = parse(str(from_table(made))).named("td")
    assert [cell.attributes.get("data-sort") for cell in cells] == [None, "3", None, ""]
    assert "number" in cells[1].attributes["class"]


def test_a_long_table_has_a_box_to_filter_by_that_a_script_shows() -> None:
    rows = [[str(number)] for number in range(9)]
    found = parse(str(table([Column(name="n", kind=ColumnKind.NUMBER)], rows)))
    box = next(tag for tag in found.tags if tag.attributes.get("class") == "tools filter")
    assert "hidden" in box.attributes, "without script there is no box that does nothing"
    assert not found.named("button")
    assert not parse(str(table([Column(name="n")], rows[:3]))).named("input")


def test_control_characters_do_not_reach_the_page() -> None:
    text = str(table([Column(name="a\u202eb")], [["x\x00y\x1b[31m"]]))
    assert "ab" in text
    assert "xy[31m" in text


def test_all_hostile_words_are_in_the_records_tested() -> None:
    said = repr(records()) + repr(everything())
    assert all(repr(hostile)[1:-1] in said for hostile in HOSTILE)
