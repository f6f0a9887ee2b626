"""torch.compile as a measurement wants it: for these shapes, in this layout, and with nothing left running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from metalmark.model.plan import Settings

Work = Callable[..., Any]


def compiled(work: Work, settings: Settings) -> Work:
    """A session's shapes never change: code for any shape would be slower. And --channels-last decides the layout:
    left to itself, Inductor turns convolutions to channels-last, which small images are slower in."""
    options: dict[str, str | int | bool | Callable[..., Any]] = {"layout_optimization": settings.channels_last}
    made: Work = torch.compile(work, dynamic=False, options=options)
    return made


def frozen(work: Work, settings: Settings) -> Work:
    """Compiled for weights that never change: products of the same input become one, with their weights joined."""
    import torch._inductor.config as inductor

    inductor.freezing = True  # asked whenever something is compiled; as an option of torch.compile it has no effect
    return compiled(work, settings)


def end_helpers() -> None:
    """Inductor's helper processes. Where compiled code came from a cache they were seen to go on starting for ten
    seconds, a core busy and memory growing beside the steps that were timed."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()
