"""Stepping: which calls of a script count as its steps, in frameworks where a step is a function of the user's own.

A step is a call in which an optimiser of a known library updates parameters. Where none ever does, since the script
has a rule of its own, it is a call in which gradients are computed. Which of the two is known from the second one on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from metalmark_agent.recorder import Recorder

OWN_LOADER = (
    "The batches of this script come from no loader that is known here: what its host did from the end of a step, or "
    "from its last wait for the device, until the next step began counts as waiting for input."
)

BY_GRADIENTS = "no optimiser of a known library updates here, so a step is a call that computes gradients."

Read = Callable[[], float]


class Call:
    """A function of the user's that a framework compiles, with what was seen while it was traced."""

    __slots__ = ("computes_gradients", "counted", "counter", "loss_of", "name", "updates")

    def __init__(self, name: str) -> None:
        self.name = name
        self.computes_gradients = self.updates = False
        self.counter: Callable[[], int] | None = None
        """Reads how many updates there were, where one call makes many of them in a loop."""
        self.counted = 0
        """What it said at the end of the call before."""
        self.loss_of: Callable[[Any], Any] | None = None
        """Takes the loss out of what the function returns."""

    def new_steps(self) -> int:
        """Return how many steps the call was that has just ended."""
        if self.counter is None:
            return 1
        before, self.counted = self.counted, self.counter()
        return self.counted - before


class Stepping:
    def __init__(self, recorder: Recorder, framework: str) -> None:
        self._recorder, self._framework = recorder, framework
        self.current: Call | None = None
        """The compiled function that is called just now, outermost."""
        self.thread = 0
        """The thread that makes the steps."""
        self._first: float | None = None
        """The end of the first computation of gradients, as long as it is not known whether an update follows."""
        self._by_gradients = self._by_updates = False
        self._edge: float | None = None
        """When the script's last step, or its last wait for the device, was over."""

    def saw_gradients(self) -> None:
        """Gradients are computed inside of a function that is traced."""
        if self.current is not None:
            self.current.computes_gradients = True

    def saw_update(self) -> None:
        """An optimiser updates inside of a function that is traced."""
        if self.current is not None:
            self.current.updates = True

    def begins(self, begin: float, *, updates: bool = False) -> None:
        """A step's own work begins: its gradients, or a call that also updates. What went by since the last one was its
        input."""
        self._recorder.begins(begin)
        if self._first is not None and not updates and not self._recorder.muted:
            # Gradients were computed before, and nothing was updated with them by anyone known.
            self._by_gradients = True
            self._recorder.note(f"{self._framework}: {BY_GRADIENTS}")
            first_end, edge, self._first = self._first, self._edge, None
            self._step(first_end, first_end, None)
            self._edge = edge
        self.pauses(begin)
        self._edge = None

    def pauses(self, at: float) -> None:
        """The script does something that is no input of a step, from now on until it waits for the device."""
        if self._edge is not None and at > self._edge and not self._recorder.muted:
            if not self._recorder.has_loader:
                self._recorder.batch(0, self._edge, at)
                self._recorder.note(OWN_LOADER)
            self._edge = at

    def waited(self, end: float) -> None:
        """The script waited for the device, until now."""
        if self._edge is not None:
            self._edge = end
        self._recorder.read_ready_losses()

    def in_another_thread(self) -> bool:
        return self.thread != 0 and self.thread != threading.get_ident()

    def gradients(self, end: float, read: Read | None = None) -> None:
        """A call has computed gradients."""
        if self._recorder.muted:
            return
        if self._by_updates:
            self._tell_loss(read)
            return
        if self._by_gradients:
            self._step(end, end, read)
        else:
            self._first = self._edge = end
            self._tell_loss(read)

    def update(self, begin: float, end: float, read: Read | None = None, *, name: str = "", count: int = 1) -> None:
        """A call has made a step; `name` is that of the user's function, where it is one."""
        if self._recorder.muted:
            return
        self._first, self._by_updates, self._by_gradients = None, True, False
        if name:
            self._recorder.note(f"{self._framework}: a step is a call of {name}(), in which an optimiser updates.")
        self._step(begin, end, read, count)

    def _step(self, begin: float, end: float, read: Read | None, count: int = 1) -> None:
        self._tell_loss(read)
        self._recorder.step(begin, end, count=count)
        self._edge = end
        if not self.thread:
            self.thread = threading.get_ident()
            self._recorder.is_trained_by(self._framework)

    def _tell_loss(self, read: Read | None) -> None:
        if read is not None:
            self._recorder.loss(read)


_steppings: weakref.WeakKeyDictionary[Recorder, dict[str, Stepping]] = weakref.WeakKeyDictionary()


def stepping_of(recorder: Recorder, framework: str) -> Stepping:
    """Return the one for a framework's steps: the hooks of a library on top of it tell of steps, too."""
    known = _steppings.setdefault(recorder, {})
    if framework not in known:
        known[framework] = Stepping(recorder, framework)
    return known[framework]


class ReadyLoss:
    """Reads a loss, and says whether that would wait for the device."""

    __slots__ = ("_is_ready", "_read", "_value")

    def __init__(self, value: Any, read: Callable[[Any], float], is_ready: Callable[[Any], bool]) -> None:
        self._value, self._read, self._is_ready = value, read, is_ready

    def ready(self) -> bool:
        return self._is_ready(self._value)

    def __call__(self) -> float:
        return self._read(self._value)
