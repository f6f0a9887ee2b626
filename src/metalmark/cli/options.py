"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def store_option(function: F) -> F:
    return click.option(
        "--store",
        "store",
        metavar="FILE",
        help="The file records live in (default: METALMARK_STORE, or one under your data folder).",
    )(function)
