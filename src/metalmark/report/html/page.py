"""The document around a body: one file that needs no other, or one that links to files a server sends."""

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
    """An entry of the line of links on top of a page; the one that is open has no address."""

    text: str
    href: str = ""


def page(
    title: str, body: Markup, *, script: str = "", static: str = "", nav: Sequence[Link] = (), subtitle: str = ""
) -> str:
    """A whole document.

    `static`: where page.css and page.js are served; empty puts both into the document, with their hashes in its
    policy. `script`: one more script, by its address where `static` is given, else its text.
    """
    style, scripts = asset(CSS), [asset(JS), *([script] if script else [])]
    text = render(
        "page.html",
        title=title,
        subtitle=subtitle,
        body=body,
        nav=nav,
        static=static,
        script=script,
        # One block each: a policy by hash has to name every one.
        style=_inert(style),
        scripts=_inert("\n".join(scripts)),
        policy=policy(style, "\n".join(scripts)),
    )
    return str(text)


def policy(style: str, script: str) -> str:
    """Nothing may be loaded, sent or run but these two texts."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def asset(name: str) -> str:
    """page.css, page.js or icon.svg: what a server sends under `static`."""
    if name not in (CSS, JS, ICON):
        raise KeyError(name)
    return (HERE / name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> Markup:
    """A template of this package with its values: each str in them is escaped, a Markup stays as it is."""
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
    """A text between <style> or <script> tags is not unescaped by a browser, so it must not hold their end."""
    from markupsafe import Markup

    if "</" in text or "<!--" in text:
        raise ValueError("this text would end the block it stands in")
    return Markup(text)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
