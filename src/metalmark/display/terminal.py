"""Progress: on a terminal or in a notebook a table that fills and what runs now, in logs one line per cell or epoch."""

import html
import io
import sys
import time
from importlib import import_module
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metalmark.display.status import Overview
from metalmark.report.text.tables import sweep_table
from metalmark.report.text.terminal import fitted, render
from metalmark.report.text.units import count, reading, spark
from metalmark.results.cells import cells_of
from metalmark.runner.events import Ended, Event, Paused, Progress, Sampled, Started, TrainingProgress
from metalmark.scrub import printable
from metalmark.store.live import unit_of

REFRESH_S = 1.0
"""Drawing costs a core some milliseconds; the worker being measured needs them more."""
WATCH_LINE_EVERY_S = 10.0
EPOCH_LINE_EVERY_S = 30.0
"""In a log an epoch says so often how far it is: seldom enough for a short one to say nothing."""
SPARK_WIDTH = 48
BAR_WIDTH = 40
NOTEBOOK_COLUMNS = 120


class LogLines:
    """For logs: one line when a run of a sweep or an epoch ends, and now and then in a long epoch; with `watch`, the
    newest readings now and then."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._paused = False
        self._printed_s = -WATCH_LINE_EVERY_S
        self._began_s = self._told_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, event: Event) -> None:
        overview, ended = self._overview, len(self._overview.ended)
        overview(event)
        if isinstance(event, Paused) and not self._paused:
            _print(event.reason)
        elif isinstance(event, Started):
            self._began_s = time.monotonic()
            self._told_s = self._began_s
        elif overview.watch and overview.history.latest:
            self._print_readings()
        elif isinstance(event, TrainingProgress) or (overview.checks and isinstance(event, Progress)):
            self._print_progress(event)
        if not isinstance(event, Sampled):
            self._paused = isinstance(event, Paused)
        for line in overview.ended[ended:]:
            left = f"  ({overview.left})" if overview.left else ""
            # The number of an epoch is in the brackets already.
            shown = line if overview.sweep else line.partition(": ")[2]
            _print(f"[{overview.counter}] {shown}{left}")

    def _print_progress(self, event: Progress) -> None:
        """Say how far an epoch or a check is, now and then."""
        overview, now_s = self._overview, time.monotonic()
        if isinstance(event, TrainingProgress) and event.ended is not None:
            self._told_s = now_s
        elif (
            overview.checks or (isinstance(event, TrainingProgress) and event.epoch)
        ) and now_s - self._told_s >= EPOCH_LINE_EVERY_S:
            self._told_s = now_s
            share = f" {overview.share * 100:.0f}%" if overview.share is not None else ""
            left = f"  ({overview.left})" if overview.left else ""
            label = f"{overview.label}: " if overview.tunings else ""
            _print(f"[{overview.counter}] {label}{overview.phase}{share}{overview.detail}{left}")

    def _print_readings(self) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s >= WATCH_LINE_EVERY_S:
            self._printed_s = now_s
            latest = self._overview.history.latest.items()
            values = ", ".join(f"{name} {reading(value, unit_of(name))}" for name, value in latest)
            _print(f"{now_s - self._began_s:.0f} s: {values}")


class LiveView:
    """For people at a terminal: the table of a sweep as it fills or the epochs that ended, and what runs now."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._drawn_s = 0.0
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        ended = len(self._overview.ended)
        self._overview(event)
        if self._overview.sweep is None or self._overview.checks:
            for line in self._overview.ended[ended:]:
                self._live.console.print(Text(printable(line)))
        if isinstance(event, (Started, Paused, Ended)) or time.monotonic() - self._drawn_s >= REFRESH_S:
            self._drawn_s = time.monotonic()
            self._live.update(picture(self._overview, self._live.console.width), refresh=True)


class NotebookView:
    """The same as on a terminal, in one output of the notebook's cell that is updated in place."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._drawn_s = 0.0
        self._output: Any = None

    def __enter__(self) -> Self:
        show = import_module("IPython.display").display
        self._output = show(self._content(), raw=True, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        overview = self._overview
        done = f"{overview.done} of {count(overview.total, 'run' if overview.sweep else 'epoch')} done."
        if overview.tuned:  # nobody knew before how many runs a search takes
            done = f"{count(overview.done, 'run')} done in {overview.counter}."
        self._output.update(_mime_bundle("\n".join([*overview.ended, done])), raw=True)

    def __call__(self, event: Event) -> None:
        self._overview(event)
        if isinstance(event, (Started, Paused, Ended)) or time.monotonic() - self._drawn_s >= REFRESH_S:
            self._drawn_s = time.monotonic()
            self._output.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        # Colours and escape codes mean nothing in a page, so the console believes that it writes to a file.
        console = Console(file=io.StringIO(), width=NOTEBOOK_COLUMNS, force_jupyter=False, force_terminal=False)
        overview = self._overview
        ended = [Text(line) for line in overview.ended] if overview.sweep is None or overview.checks else []
        with console.capture() as capture:
            console.print(Group(*ended, picture(overview, NOTEBOOK_COLUMNS)))
        return _mime_bundle("\n".join(line.rstrip() for line in capture.get().splitlines()))


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel. A process that has not imported IPython is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def picture(overview: Overview, columns: int) -> RenderableType:
    """Return the table of a sweep, the readings that are watched, and what runs now."""
    parts: list[RenderableType] = []
    if overview.sweep is not None and not overview.checks:
        sweep = overview.sweep
        table = sweep_table(cells_of(overview.runs), plans=sweep.plans, targets=sweep.targets)
        parts.append(render(fitted(table, columns), columns))
    if overview.watch and overview.history.latest:
        parts.append(_readings(overview))
    if (overview.sweep is None or overview.checks) and overview.share is not None:
        parts.append(ProgressBar(total=1.0, completed=overview.share, width=BAR_WIDTH))
    parts += [Text(line) for line in overview.lines]
    return Group(*parts)


def _readings(overview: Overview) -> Table:
    """Show each quantity as a line of bars, its newest value, and the lowest and the highest so far."""
    grid = Table.grid(padding=(0, 2))
    for trace in overview.history.traces():
        low, high = (reading(value, trace.unit) for value in overview.history.ranges[trace.name])
        now = reading(overview.history.latest[trace.name], trace.unit)
        grid.add_row(Text(trace.name), Text(spark(trace.values, SPARK_WIDTH)), Text(f"{now} ({low} to {high})"))
    return grid


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


def _mime_bundle(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
