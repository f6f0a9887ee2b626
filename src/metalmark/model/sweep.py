"""A Sweep is the cells of one command and how often each is repeated. Pure data, kept so that it can be resumed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct

from metalmark.model.plan import Plan

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Cooldown(Struct, frozen=True, kw_only=True):
    """A pause between cells: at most `limit_s`, less where sensors say that the machine is cool again."""

    limit_s: float
    auto: bool = False


class Sweep(Struct, frozen=True, kw_only=True):
    id: str
    created_at: str
    plans: tuple[Plan, ...]
    repeats: int = 1
    hz: float | None = 5.0
    cooldown: Cooldown | None = None
    paths: dict[str, str] = {}
    """Where the user's own files lie, by the words the plans have for them: never exported with a record."""
    left_out: tuple[str, ...] = ()
    """What `all` could have meant and did not, each with its reason: frameworks and devices that are not here."""

    def order(self) -> Iterator[tuple[int, int]]:
        """(cell, repeat): every cell once, then every cell again, so that slow drift hits all alike."""
        for repeat in range(self.repeats):
            for cell in range(len(self.plans)):
                yield cell, repeat


def new_id() -> str:
    """Random, so that three or four characters of it are enough to name a record among thousands."""
    return "".join(secrets.choice(DIGITS) for _ in range(10))


def now_utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
