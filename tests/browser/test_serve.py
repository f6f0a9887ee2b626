"""The server's pages as a person meets them: in a browser, by keyboard alone, while something runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metalmark.model.run import RunKind
from metalmark.store.live import LiveFile
from metalmark.store.store import Store
from tests.browser.conftest import Opened
from tests.processes import ROOT, heed_ctrl_c, metalmark
from tests.samples import completed, failed, live_tuning, plan, record
from tests.store.test_live import status

pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

HOSTILE = "<script>alert(1)</script>"
MOST_TABS = 60

OpenPage = Callable[..., Opened]


class Running(NamedTuple):
    url: str
    store: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("serve") / "store.sqlite3"
    records = [
        record(completed((0.010, 0.008)[number] * (1 + 0.001 * repeat)), id=f"cell{number}{repeat}0000", cell=number,
               sweep="sweepab001", repeat=repeat, started_at=f"2026-11-15T09:00:{number}{repeat}Z",
               plan=plan(framework=("torch", "jax")[number]))
        for number in range(2) for repeat in range(3)
    ]  # fmt: skip
    evil = plan(workload=f"{HOSTILE}.py:x")
    records.append(record(failed(message=f"{HOSTILE} <img src=x onerror=alert(2)>"), id="evil000000", plan=evil,
                          sweep="sweepevil1", started_at="2026-11-15T10:00:00Z"))  # fmt: skip
    with Store(path) as store:
        store.add_all(records)
    command = metalmark("serve", "--port", "0", "--store", path)
    process = subprocess.Popen(
        command, preexec_fn=heed_ctrl_c, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    yield Running(process.stdout.readline().strip().rstrip("/"), path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def press_until(page: Any, key: str, wanted: str) -> None:
    """Moves by keys alone until what has the focus fits the selector."""
    for _ in range(MOST_TABS):
        page.keyboard.press(key)
        if page.evaluate("wanted => document.activeElement.matches(wanted)", wanted):
            return
    raise AssertionError(f"{wanted} can't be reached with {key}")


def test_a_bench_is_seen_while_it_runs(server: Running, open_page: OpenPage) -> None:
    words = ["bench", "fake", "-f", "fake", "-d", "gpu", "--seconds", "60", "-q", "--store", str(server.store)]
    bench = subprocess.Popen(
        metalmark(*words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heed_ctrl_c
    )
    try:
        opened = open_page(f"{server.url}/live")
        page = opened.page
        page.get_by_role("link", name="bench").click(timeout=60_000)  # the list fills by itself
        page.get_by_text("fake training batch 32").wait_for(timeout=60_000)
        page.locator("figcaption", has_text="throughput").wait_for(timeout=60_000)
        assert page.locator("figcaption", has_text="process memory").count() == 1
        before = page.locator("figcaption strong").first.inner_text() + page.locator("polyline").first.get_attribute(
            "points"
        )
        page.wait_for_function(
            "before => document.querySelector('figcaption strong').innerText"
            " + document.querySelector('polyline').getAttribute('points') !== before",
            arg=before,
            timeout=60_000,
        )
        page.get_by_role("button", name="Pause").press("Enter")
        page.get_by_role("button", name="Go on").press("Enter")
        bench.send_signal(signal.SIGINT)
        bench.wait(timeout=60)
        page.get_by_text("It has ended").wait_for(timeout=60_000)
        page.get_by_role("link", name="what came of it").click()
        page.get_by_text("interrupted").first.wait_for(timeout=60_000)
        assert opened.errors == []
        assert opened.elsewhere(server.url) == []
    finally:
        bench.kill()
        bench.wait()


def test_a_selection_is_compared_by_keyboard_alone(server: Running, open_page: OpenPage) -> None:
    opened = open_page(f"{server.url}/?q=sweepab001")
    page = opened.page
    press_until(page, "Tab", "input[value=cell120000]")
    page.keyboard.press("Space")
    press_until(page, "Tab", "input[value=cell020000]")
    page.keyboard.press("Space")
    press_until(page, "Tab", "form button")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Compare").wait_for()
    assert "faster" in page.inner_text("main")
    assert "cell120000 (B) against cell020000 (A)" in page.inner_text("main")
    press_until(page, "Tab", "select[name=base]")
    page.keyboard.press("ArrowDown")
    press_until(page, "Tab", "form button")
    page.keyboard.press("Enter")
    page.get_by_text("cell020000 (B) against cell120000 (A)").wait_for()
    assert "slower" in page.inner_text("main")
    assert opened.errors == []
    assert opened.elsewhere(server.url) == []


def test_hostile_names_are_text(server: Running, open_page: OpenPage) -> None:
    for path in ("/", "/run/evil000000", "/sweep/sweepevil1", "/compare?run=evil000000&run=cell000000&anyway=1",
                 f"/?q={HOSTILE}"):  # fmt: skip
        opened = open_page(f"{server.url}{path}")
        dialogs: list[str] = []
        opened.page.on("dialog", lambda dialog, said=dialogs: (said.append(dialog.message), dialog.dismiss()))
        opened.page.reload()
        assert HOSTILE in opened.page.inner_text("body") or HOSTILE in opened.page.input_value("#q")
        assert opened.page.locator("main script, main img").count() == 0
        assert dialogs == []
        assert [error for error in opened.errors if "400" not in error] == []


def test_all_of_it_without_script(server: Running, open_page: OpenPage) -> None:
    page = open_page(server.url, script=False).page
    page.fill("#q", "jax")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=jax")
    assert page.locator("tbody tr").count() == 3
    page.locator("tbody a").first.click()
    page.wait_for_url("**/run/*")
    assert "mnist-mlp training batch 32 jax" in page.inner_text("main")
    page.get_by_role("link", name="Running now").click()
    page.wait_for_url("**/live")
    assert "Nothing runs now" in page.inner_text("main")
    page.get_by_role("link", name="Look again").click()
    assert page.url.endswith("/live")


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_nothing_is_cut_off_and_colours_follow(server: Running, open_page: OpenPage, width: int, dark: bool) -> None:
    opened = open_page(server.url, width=width, dark=dark)
    page = opened.page
    searching = LiveFile(server.store, "sweepab001")
    tune = {"id": "sweepab001", "kind": RunKind.TUNE, "limit_s": 90.0}
    searching.write(status(**tune, tunings=(live_tuning(),)))
    try:
        for path in ("/", "/run/cell000000", "/sweep/sweepab001", "/compare?run=sweepab001&by=framework", "/live",
                     "/live/sweepab001"):  # fmt: skip
            page.goto(f"{server.url}{path}")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
            red = page.evaluate("Number(getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/)[0])")
            assert (red < 80) == dark
        # The tuning's link keeps the focus while what is around it is replaced.
        press_until(page, "Tab", "#live a")
        searching.write(
            status(id="sweepab001", kind=RunKind.TUNE, limit_s=90.0, tunings=(live_tuning(trying="novel"),))
        )
        page.get_by_text("novel").wait_for(timeout=60_000)
        assert page.evaluate("document.activeElement.matches('#live a')")
        assert page.locator("[aria-current=step]").inner_text() == "search (now)"
    finally:
        searching.remove()
    assert opened.errors == []
    assert opened.elsewhere(server.url) == []


def test_the_list_sorts_by_key(server: Running, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/?q=sweepab001").page
    button = page.get_by_role("button", name="result")
    button.press("Enter")
    assert page.locator("tbody tr a").first.inner_text() == "cell100000"
    button.press("Enter")
    assert page.locator("tbody tr a").first.inner_text() == "cell020000"
