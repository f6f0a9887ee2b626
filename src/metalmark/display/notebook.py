"""Progress in a notebook: one output that is updated in place."""

from __future__ import annotations

import html
import io
import sys
import time
from importlib import import_module
from typing import Any, Self

from rich.console import Console, Group
from rich.text import Text

from metalmark.display.status import Overview
from metalmark.display.terminal import REFRESH_S, picture
from metalmark.runner.events import Ended, Event, Paused, Started

COLUMNS = 120


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel. A process that has not imported IPython is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookView:
    """The same as on a terminal, in the output of the notebook's cell."""

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
        done = f"{overview.done} of {overview.total} {'runs' if overview.sweep else 'epochs'} done."
        self._output.update(_bundle("\n".join([*overview.ended, done])), raw=True)

    def __call__(self, event: Event) -> None:
        self._overview(event)
        if isinstance(event, (Started, Paused, Ended)) or time.monotonic() - self._drawn_s >= REFRESH_S:
            self._drawn_s = time.monotonic()
            self._output.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        # Colours and escape codes mean nothing in a page, so the console believes that it writes to a file.
        console = Console(file=io.StringIO(), width=COLUMNS, force_jupyter=False, force_terminal=False)
        epochs = [] if self._overview.sweep else [Text(line) for line in self._overview.ended]
        with console.capture() as capture:
            console.print(Group(*epochs, picture(self._overview)))
        return _bundle("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _bundle(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
