"""KnownError: how an error is worded, what happened, and what to change. One file per family of errors."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cached_property

from msgspec import Struct


class Weight(IntEnum):
    """How likely it is the cause of what the user sees: the first is shown first."""

    CAUSE = 0
    CONSEQUENCE = 1
    """It follows from something else, which may be in the same text."""
    REMARK = 2
    """A warning that runs which are well print too."""


class KnownError(Struct, frozen=True, kw_only=True, dict=True):
    name: str
    pattern: str
    """A regular expression, without regard to case; a space in it stands for any white space, line ends too,
    because terminals and chats break lines."""
    happened: str
    change: str
    """What to do, in words."""
    fix: tuple[str, ...] = ()
    """Lines to type or to put into the program."""
    source: str
    weight: Weight = Weight.CAUSE

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE)
