"""PyTorch's compiler, as settings ask for it."""

import os
from collections.abc import Callable
from typing import Any

import torch

from metalmark.machine.processes import end_tree
from metalmark.model.plan import Settings

Work = Callable[..., Any]
CUDA_GRAPHS = "triton.cudagraphs"
OWN_MODES: dict[str, dict[str, Any]] = {"combo-kernels": {"combo_kernels": True}}
"""Modes that PyTorch has as an option of its compiler only."""


def compile_options(settings: Settings) -> dict[str, Any]:
    """Return the options of torch.compile, which takes no mode beside them: those of the mode are among them.

    --channels-last decides the layout: left to itself, Inductor turns convolutions to channels-last, which small images
    are slower in. PyTorch's own variable for that is heeded where it is set.
    """
    asked = os.environ.get("TORCHINDUCTOR_LAYOUT_OPTIMIZATION")
    options: dict[str, Any] = {"layout_optimization": settings.channels_last if asked is None else asked == "1"}
    if settings.compile_mode in OWN_MODES:
        options |= OWN_MODES[settings.compile_mode]
    elif settings.compile_mode:
        from torch._inductor import list_mode_options  # importing it takes a second

        options |= list_mode_options(settings.compile_mode)
    return options


def captures_graphs(settings: Settings) -> bool:
    """Return whether the compiler captures CUDA graphs, in whose memory the results of a call lie until the next."""
    return settings.compile and bool(compile_options(settings).get(CUDA_GRAPHS))


def compiled_work(work: Work, settings: Settings) -> Work:
    """Compile for these shapes only, since a session's never change and code for any shape would be slower."""
    made: Work = torch.compile(work, dynamic=False, options=compile_options(settings))
    return made


def frozen_work(work: Work, settings: Settings) -> Work:
    """Compile for weights that never change: products of the same input become one, with their weights joined."""
    import torch._inductor.config as inductor

    inductor.freezing = True  # asked whenever something is compiled; as an option of torch.compile it has no effect
    return compiled_work(work, settings)


def end_helpers() -> None:
    """End Inductor's helper processes. Where compiled code came from a cache they were seen to go on starting for ten
    seconds, a core busy and memory growing beside the steps that were timed.

    By a signal: PyTorch's own way waits until they have started, for 8 s on a machine with 16 cores.
    """
    from torch._inductor import async_compile

    for pool in getattr(async_compile, "_pool_set", ()):
        if (process := getattr(pool, "process", None)) is not None:
            end_tree(process.pid)
    async_compile.shutdown_compile_workers()
