"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

PUBLISHED = "published"
F = TypeVar("F", bound=Callable[..., Any])


def against_option(function: F) -> F:
    return click.option(
        "--against",
        type=click.Choice([PUBLISHED]),
        help="Show the figures others published for the same workload beside ours, with their faults.",
    )(function)


def store_option(function: F) -> F:
    return click.option(
        "--store",
        "store",
        metavar="FILE",
        help="The file records live in (default: METALMARK_STORE, or one under your data folder).",
    )(function)
