"""What must not leave this machine in a bundle: paths, the user's and the host's name, serial numbers, addresses.

Records are scrubbed when they are made. This looks again, at every string of them, since a file from elsewhere, an
older Metalmark or a variable such as CUDA_VISIBLE_DEVICES=GPU-... may have brought some in.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from metalmark.model.measurement import BenchRun
from metalmark.scrub import PATH, user_names

EVERYONES = {
    "admin", "administrator", "apple", "azureuser", "computer", "cuda", "debian", "default", "desktop", "docker",
    "fake", "fedora", "jax", "jovyan", "keras", "local", "localdomain", "localhost", "macbook", "metalmark", "nobody",
    "runner", "tensorflow", "test", "torch", "ubuntu", "user", "vagrant", "vscode",
}  # fmt: skip
"""Names of users and hosts that say nothing of whose it is, and words that a record is full of anyway."""
OF_THE_SYSTEM = "machine."
"""A chip may be called Max, and so may its owner: names are not looked for in what the hardware says of itself."""
OWN_WORDS = {"schema", "id", "sweep", "started_at"}
"""Fields that Metalmark fills with words of its own."""

SERIAL = re.compile(
    r"\bserial(?:[ _-]?(?:number|no))?\b(?: \(system\))?\W{0,3}(?=[A-Z-]*\d)[A-Z0-9-]{7,}"  # as tools print it
    r"|\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,}"  # one card of all that were made
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b",
    re.IGNORECASE,
)
EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b", re.IGNORECASE)


class Personal(msgspec.Struct, frozen=True, kw_only=True):
    """One place in one record, and what kind of thing stands there; never the thing itself."""

    record: str
    where: str
    what: str


def look(record: BenchRun) -> list[Personal]:
    anywhere, names = _patterns(), _names()
    return [
        Personal(record=record.id, where=where, what=what)
        for where, text in _strings(msgspec.to_builtins(record), "")
        for what, (pattern, _) in (anywhere if where.startswith(OF_THE_SYSTEM) else {**anywhere, **names}).items()
        if pattern.search(text)
    ]


def without(record: BenchRun) -> BenchRun:
    """The same record with a plain word in place of each; paths are cut to their last part."""
    anywhere, names = _patterns(), _names()
    plain = msgspec.to_builtins(record)
    changed = _changed({**plain, "machine": None}, _cleaner({**anywhere, **names}))
    machine = _changed(plain["machine"], _cleaner(anywhere), top=False)
    return msgspec.convert({**changed, "machine": machine}, BenchRun)


def cleaned(value: Any) -> Any:
    """Any plain value, strings inside it included, with a plain word in place of each."""
    return _changed(value, _cleaner({**_patterns(), **_names()}), top=False)


Patterns = dict[str, tuple[re.Pattern[str], str]]


def _patterns() -> Patterns:
    return {
        "a path": (PATH, r"\1"),
        "a serial number": (SERIAL, "serial"),
        "an e-mail address": (EMAIL, "address"),
    }


def _names() -> Patterns:
    """Of this machine and whoever uses it; of others nobody here knows them."""
    found: Patterns = {}
    for what, names, instead in (("the user's name", user_names(), "user"), ("the host's name", host_names(), "host")):
        telling = [name for name in names if name.lower() not in EVERYONES]
        if telling:
            words = "|".join(map(re.escape, sorted(telling, key=len, reverse=True)))
            found[what] = (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])"), instead)
    return found


def _cleaner(patterns: Patterns) -> Callable[[str], str]:
    def clean(text: str) -> str:
        for pattern, instead in patterns.values():
            text = pattern.sub(instead, text)
        return text

    return clean


def host_names() -> set[str]:
    """This machine's, whole and without its domain."""
    whole = platform.node()
    names = {whole, whole.partition(".")[0]}
    return {name for name in names if len(name) >= 4}


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if where or key not in OWN_WORDS:
                yield f"{where} (a key)".strip(), key
                yield from _strings(inner, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner, where)


def _changed(value: Any, clean: Callable[[str], str], *, top: bool = True) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {
            key if top else clean(key): inner if top and key in OWN_WORDS else _changed(inner, clean, top=False)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_changed(inner, clean, top=False) for inner in value]
    return value
