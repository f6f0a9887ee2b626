"""The report in a real browser: nothing goes wrong, nothing goes elsewhere, and it works by keys alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.report.html.document import document
from tests.browser.conftest import Opened
from tests.report.contents import SCRIPT, everything

pytest.importorskip("vl_convert")

Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    # Trainings are more of the same to a browser, and take as long again to draw.
    content = everything()
    path.write_text(document(msgspec.structs.replace(content, runs=(*content.bench_runs, *content.watched))))
    return path.as_uri()


def column(page: Any, name: str) -> list[str]:
    """What stands in a column of the first table, in rows that are shown."""
    script = """([name]) => {
      const table = document.querySelector("#results table");
      const at = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent.trim() === name);
      return [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[at].textContent);
    }"""
    return list(page.evaluate(script, [name]))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_quietly_and_fits(open_page: Open, address: str, width: int, dark: bool) -> None:
    opened = open_page(address, width=width, dark=dark)
    assert opened.errors == []
    assert opened.requests == [address]
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width, "only tables scroll sideways"
    assert SCRIPT in opened.page.inner_text("h1")
    wide = opened.page.locator("#results .scroll").first
    assert wide.get_attribute("tabindex") == ("0" if width == 390 else None), "what scrolls is reached by keys"
    paper = opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == ("rgb(21, 23, 26)" if dark else "rgb(251, 250, 248)")
    bar = opened.page.evaluate("""getComputedStyle(document.querySelector('svg [fill="#0067a5"]')).fill""")
    assert bar == ("rgb(93, 176, 234)" if dark else "rgb(0, 103, 165)"), "figures follow"


def test_sort_by_click_and_by_key(open_page: Open, address: str) -> None:
    page = open_page(address).page
    steps = column(page, "step")
    assert len(steps) == 6
    page.click("#results th button:text('step')")
    rising = column(page, "step")
    assert rising[0] == "23.8 ms"
    assert rising != steps
    page.focus("#results th button:text('step')")
    page.keyboard.press("Enter")
    assert column(page, "step") == rising[::-1]
    heading = page.locator("#results th", has_text="first step")
    assert page.locator("#results th[aria-sort]").count() == 1
    assert heading.get_attribute("aria-sort") is None
    assert page.locator("#results th[aria-sort='descending']").inner_text().strip().startswith("step")


def test_filter_as_one_types(open_page: Open, address: str) -> None:
    page = open_page(address).page
    box = page.locator(".tools.filter input").first
    tools = page.locator(".tools.filter").first
    rows = tools.locator("xpath=..").locator("tbody tr")
    every = rows.count()
    box.fill("jax 3")
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < every
    assert all("jax" in row.inner_text() for row in shown)
    assert tools.locator("output").inner_text() == f"{len(shown)} of {every}"
    box.press("Escape")
    assert all(row.is_visible() for row in rows.all())


def test_colours_are_switched_and_kept(open_page: Open, address: str) -> None:
    page = open_page(address).page
    button = page.locator("#colours")
    assert button.inner_text() == "Colours: system"
    button.focus()
    page.keyboard.press("Space")
    assert button.inner_text() == "Colours: dark"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(231, 230, 226)"
    page.reload()
    assert page.locator("#colours").inner_text() == "Colours: dark"
    page.emulate_media(media="print")
    paper = page.evaluate("getComputedStyle(document.documentElement).color")
    assert paper == "rgb(29, 31, 34)", "paper is light whatever the screen is"


def test_by_keys_alone(open_page: Open, address: str) -> None:
    page = open_page(address).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#results"
    numbers = page.locator("figure summary").first
    numbers.focus()
    page.keyboard.press("Enter")
    assert page.locator("figure details[open] table").first.is_visible()
    link = page.locator("#results td a").first
    link.focus()
    page.keyboard.press("Enter")
    opened = page.locator("#runs details[open] section")
    assert opened.count() == 1, "a link to a run opens it"
    assert opened.get_attribute("id") == link.get_attribute("href").removeprefix("#")


def test_it_is_read_without_script(open_page: Open, address: str) -> None:
    opened = open_page(address, script=False)
    page = opened.page
    assert page.locator("svg").first.is_visible()
    assert page.locator("#results table").first.is_visible()
    assert not page.locator("#colours").is_visible()
    assert page.locator("th button").count() == 0, "no button that does nothing"
