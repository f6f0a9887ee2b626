"""Progress of a sweep or a training, from its events: on a terminal, in a log, in a notebook, and for the live page."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Sweep
from metalmark.runner.events import Listener
from metalmark.training.folder import Request

Display = AbstractContextManager[Listener]
"""Gives a listener, which is open while the sweep or the training runs."""


def make_display(
    what: Sweep | Request,
    *,
    previous: Sequence[BenchRun] = (),
    quiet: bool,
    watch: bool = False,
    checks: bool = False,
    limit_s: float | None = None,
) -> Display:
    """Return the display that suits where this process runs. `previous`: the runs of a resumed sweep.

    `checks`: the cells of the sweep are parity checks, which have no times.
    `limit_s`: how long it may take, where that and not the number of runs says how far it is.
    `watch` adds throughput, clocks, power, temperatures and memory as they change.
    """
    if quiet:
        return nullcontext(lambda _: None)
    from metalmark.display.status import Overview
    from metalmark.display.terminal import LiveView, LogLines, NotebookView, in_notebook

    overview = Overview(what, previous, watch=watch, checks=checks, limit_s=limit_s)
    if in_notebook():
        return NotebookView(overview)
    return LiveView(overview) if sys.stderr.isatty() else LogLines(overview)
