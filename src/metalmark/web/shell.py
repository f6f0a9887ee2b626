"""What every page of the server shares: its frame, its links, and what it says when it can't answer."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from markupsafe import Markup
from starlette.responses import HTMLResponse

from metalmark.errors import MetalmarkError
from metalmark.report.html.page import asset, environment, page
from metalmark.report.text.units import count, duration
from metalmark.store.live import LiveStatus

HERE = Path(__file__).parent
STATIC = "/static"
LIVE_SCRIPT = f"{STATIC}/live.js"
PAGES = {"Runs": "/", "Running now": "/live"}


def respond(
    title: str, body: Markup, *, subtitle: str = "", script: str = "", status: int = 200, here: str = ""
) -> HTMLResponse:
    nav = [(text, "" if text == here else href) for text, href in PAGES.items()]
    return HTMLResponse(page(title, body, static=STATIC, nav=nav, subtitle=subtitle, script=script), status)


def render(template: str, **values: object) -> Markup:
    """Render a template of this package, escaped as those of the report are."""
    return Markup(_environment().get_template(template).render(**values))


def cannot(error: MetalmarkError, *, title: str = "That can't be shown", status: int = 400) -> HTMLResponse:
    """Answer with the error's own message and hint."""
    return respond(title, render("cannot.html", message=error.message, hint=error.hint), status=status)


def left_out(errors: Sequence[MetalmarkError]) -> Markup:
    """Name what can't be read and is not on the page, each once."""
    return render("notes.html", notes=[f"Left out: {text}" for text in dict.fromkeys(e.message for e in errors)])


def how_far(status: LiveStatus) -> str:
    """Say how much of what runs is done: of its runs or epochs, or of the time that it may take."""
    if status.limit_s is None:
        return f"{status.done} of {status.total} done"
    return f"{duration(status.elapsed_s)} of {duration(status.limit_s)}, {count(status.done, 'run')} done"


@cache
def static_file(name: str) -> tuple[str, str] | None:
    """Return the text of a file and its media type; the report's styles and those of the server are one file."""
    kinds = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
    if name == "live.js":
        return (HERE / "live.js").read_text(encoding="utf-8"), "text/javascript"
    if name not in kinds:
        return None
    text = asset(name)
    if name == "page.css":
        text += (HERE / "serve.css").read_text(encoding="utf-8")
    return text, kinds[name]


@cache
def _environment() -> Environment:
    report = environment()
    assert report.loader is not None
    # The templates of this package, and the report's smaller pieces.
    return report.overlay(loader=ChoiceLoader([FileSystemLoader(HERE / "templates"), report.loader]))
