"""Debian's Chromium through Playwright, one for each test file, and a page that notes what went wrong in it.

`open_page(address)` gives an Opened: its page, and after the test its console errors and the requests it made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PLACES = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def chromium() -> str | None:
    named = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((place for place in (*PLACES, *named) if place and Path(place).exists()), None)


@dataclass
class Opened:
    page: Any
    errors: list[str] = field(default_factory=list)
    """Of the console, of scripts, and of what the policy refused."""
    requests: list[str] = field(default_factory=list)
    """Every address asked for, the page's own first."""

    def elsewhere(self, home: str) -> list[str]:
        """Requests that did not go home; data: stays inside of the page."""
        return [url for url in self.requests if not url.startswith((home, "data:"))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    place = chromium()
    if place is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=place, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Opened]]:
    """`open_page(address, width=390, dark=True, script=False, ...)`: a tab of its own, closed after the test."""
    contexts: list[Any] = []

    def visit(address: str, *, width: int = 1280, dark: bool = False, script: bool = True, **more: Any) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            **more,
        )
        contexts.append(context)
        found = Opened(page=context.new_page())
        found.page.on("console", lambda said: found.errors.append(said.text) if said.type == "error" else None)
        found.page.on("pageerror", lambda error: found.errors.append(str(error)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(address)
        return found

    yield visit
    for context in contexts:
        context.close()
