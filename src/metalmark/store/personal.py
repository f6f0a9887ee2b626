"""What must not leave this machine in a bundle: paths, the user's and the host's name, serial numbers, addresses.

Records are scrubbed when they are made. This looks again, at every string of them, since a file from elsewhere, an
older Metalmark or a variable such as CUDA_VISIBLE_DEVICES=GPU-... may have brought some in.
"""

import platform
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from metalmark.model.run import Run
from metalmark.scrub import PATH, user_names

R = TypeVar("R", bound=Run)

EVERYONES = {
    "admin", "administrator", "apple", "azureuser", "computer", "cuda", "debian", "default", "desktop", "docker",
    "fake", "fedora", "jax", "jovyan", "keras", "local", "localdomain", "localhost", "macbook", "metalmark", "nobody",
    "runner", "tensorflow", "test", "torch", "ubuntu", "user", "vagrant", "vscode",
}  # fmt: skip
"""Names of users and hosts that say nothing of whose it is, and words that a record is full of anyway."""
OWN_WORDS = {"schema", "kind", "id", "sweep", "started_at"}
"""Fields that Metalmark fills with words of its own."""

SERIAL = re.compile(
    r"\bserial(?:[ _-]?(?:number|no))?\b(?: \(system\))?\W{0,3}(?=[A-Z-]*\d)[A-Z0-9-]{7,}"  # as tools print it
    r"|\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,}"  # one card of all that were made
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b",
    re.IGNORECASE,
)
EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b", re.IGNORECASE)

Patterns = dict[str, tuple[re.Pattern[str], str]]
PATTERNS: Patterns = {
    "a path": (PATH, r"\1"),
    "a serial number": (SERIAL, "serial"),
    "an e-mail address": (EMAIL, "address"),
}
"""What is looked for, and the plain word for each."""


class Personal(msgspec.Struct, frozen=True, kw_only=True):
    """One place in one run, and what kind of thing stands there; never the thing itself."""

    run: str
    where: str
    what: str


def look(run: Run) -> list[Personal]:
    anything = {**PATTERNS, **_names()}
    found: list[Personal] = []

    def see(where: str, text: str) -> str:
        patterns = PATTERNS if _of_the_system(where) else anything
        kinds = [what for what, (pattern, _) in patterns.items() if pattern.search(text)]
        found.extend(Personal(run=run.id, where=where, what=what) for what in kinds)
        return text

    _mapped(msgspec.to_builtins(run), see)
    return found


def without(run: R) -> R:
    """The same run with a plain word in place of each; paths are cut to their last part."""
    anything = {**PATTERNS, **_names()}

    def clean(where: str, text: str) -> str:
        return _clean(text, PATTERNS if _of_the_system(where) else anything)

    return msgspec.convert(_mapped(msgspec.to_builtins(run), clean), type(run))


def cleaned(value: Any) -> Any:
    """Any plain value, strings inside it included, with a plain word in place of each."""
    anything = {**PATTERNS, **_names()}
    return _mapped(value, lambda _, text: _clean(text, anything), where="value")


def _of_the_system(where: str) -> bool:
    """A chip may be called Max, and so may its owner: names are not looked for in what the hardware says of itself."""
    return "machine" in where.split(".")[:-1]


def _names() -> Patterns:
    """Of this machine and whoever uses it; of others nobody here knows them."""
    found: Patterns = {}
    host = platform.node()
    hosts = {name for name in (host, host.partition(".")[0]) if len(name) >= 4}
    for what, names, instead in (("the user's name", user_names(), "user"), ("the host's name", hosts, "host")):
        telling = [name for name in names if name.lower() not in EVERYONES]
        if telling:
            words = "|".join(map(re.escape, sorted(telling, key=len, reverse=True)))
            found[what] = (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])"), instead)
    return found


def _clean(text: str, patterns: Patterns) -> str:
    for pattern, instead in patterns.values():
        text = pattern.sub(instead, text)
    return text


def _mapped(value: Any, change: Callable[[str, str], str], where: str = "") -> Any:
    """The value with every string in it changed, keys too; `change` is told where each stands. Fields of the run that
    Metalmark fills with words of its own stay as they are."""
    if isinstance(value, str):
        return change(where, value)
    if isinstance(value, dict):
        return {
            change(f"{where} (a key)", key) if where and isinstance(key, str) else key: inner
            if not where and key in OWN_WORDS
            else _mapped(inner, change, f"{where}.{key}".lstrip("."))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(inner, change, where) for inner in value]
    return value
