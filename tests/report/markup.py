"""HTML read back as a browser would: its tags, their attributes and its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Tag:
    name: str
    attributes: dict[str, str]
    inside: list[str]
    """Names of the tags around it."""
    text: str = ""


@dataclass
class Parsed(HTMLParser):
    tags: list[Tag] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Tag] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = Tag(tag, {name: value or "" for name, value in attrs}, [one.name for one in self._open])
        if len(found.attributes) != len(attrs):
            self.trouble.append(f"an attribute twice: {attrs}")
        self.tags.append(found)
        if tag not in VOID:
            self._open.append(found)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(Tag(tag, {name: value or "" for name, value in attrs}, [one.name for one in self._open]))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].name != tag:
            self.trouble.append(f"</{tag}> closes {self._open[-1].name if self._open else 'nothing'}")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for one in self._open:
            one.text += data

    def named(self, name: str) -> list[Tag]:
        return [tag for tag in self.tags if tag.name == name]


def parse(text: str) -> Parsed:
    found = Parsed()
    found.feed(text)
    found.close()
    found.trouble += [f"<{tag.name}> is never closed" for tag in found._open]
    return found
