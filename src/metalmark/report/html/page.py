"""The document around the body of a page: one file that needs no other, or one that links to files of a server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from metalmark.errors import NotInstalledError
from metalmark.scrub import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = Path(__file__).parent
CSS, JS, ICON = "page.css", "page.js", "icon.svg"
INSTALL = 'pip install "metalmark[web]"'


class Link(Struct, frozen=True, kw_only=True):
    """A link at the top of a page; the page that is open has no address."""

    text: str
    href: str = ""


def page(
    title: str, body: Markup, *, script: str = "", static: str = "", nav: Sequence[Link] = (), subtitle: str = ""
) -> str:
    """Return a whole document.

    `static`: where page.css and page.js are served; empty puts both into the document, with their hashes in its
    policy. `script`: one more script, by its address where `static` is given, else its text.
    """
    # One block each: a policy by hash has to name every one.
    style, scripts = asset(CSS), "\n".join([asset(JS), *([script] if script else [])])
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, scripts)]
    # It allows these two texts, and nothing else to be loaded, sent or run.
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; base-uri 'none'; "
        "form-action 'none'"
    )
    values = {"title": title, "subtitle": subtitle, "body": body, "nav": nav, "static": static, "script": script}
    return str(render("page.html", **values, style=_inert(style), scripts=_inert(scripts), policy=policy))


@cache
def asset(name: str) -> str:
    """Return page.css, page.js or icon.svg: what a server sends under `static`."""
    if name not in (CSS, JS, ICON):
        raise KeyError(name)
    return (HERE / name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> Markup:
    """Render a template of this package: each str among the values is escaped, a Markup stays as it is."""
    from markupsafe import Markup

    return Markup(environment().get_template(template).render(**values))


@cache
def environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise NotInstalledError("Pages need the extra `web`, which is not installed.", hint=INSTALL) from error

    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    # A browser shows a right-to-left mark too, and a name that holds one reads as another.
    made.finalize = lambda value: printable(value) if type(value) is str else value
    return made


def _inert(text: str) -> Markup:
    """Refuse a text that holds the end of a <style> or <script> block: a browser would not unescape it there."""
    from markupsafe import Markup

    if "</" in text or "<!--" in text:
        raise ValueError("this text would end the block it stands in")
    return Markup(text)
