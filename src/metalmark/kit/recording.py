"""StepRecording: what the frameworks of this process do while a run of mm.run lasts, seen by the hooks that
`metalmark watch` has in the process of a script."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from metalmark.model.watch import WatchedScript
from metalmark.watch.agent_package import agent_module
from metalmark.watch.seen import SeenProcess

EVERY_S = 10.0
"""How often what was seen is added up, so that a long run takes no more memory than a short one."""

Item = TypeVar("Item")

_hooked = threading.Lock()
"""Held by the one recording whose hooks are in place: those of two could not be taken away in any order."""


class StepRecording:
    """Optimiser steps, the calls that wait for the device with their place in the code, copies, and the first step."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = agent_module("recorder").clock
        self._seen = SeenProcess(self.clock())
        self.recorder: Any = agent_module("recorder").Recorder(self._seen.take)
        self._undo: Callable[[], None] | None = None
        self._over = threading.Event()

    def begin(self, tell: Callable[[str], None]) -> None:
        """Hook into what is imported, and into the rest when it is. `tell` takes what could not be hooked into. Inside
        of another run nothing is hooked: it is the other one that sees."""
        if _hooked.acquire(blocking=False):
            self._undo = agent_module("install").hook_into(self.recorder, tell)
            threading.Thread(target=self._add_up, daemon=True, name="metalmark-steps").start()

    def end(self) -> WatchedScript | None:
        """Take the hooks away and return what they saw; None where no framework was there."""
        if self._undo is None:
            return None
        self._over.set()
        self._undo()
        self._undo = None
        _hooked.release()
        self.recorder.flush(ended=True)
        return self._seen.script() if self._seen.frameworks else None

    def _add_up(self) -> None:
        while not self._over.wait(EVERY_S):
            self.recorder.flush()


class TimedLoader(Generic[Item]):
    """One pass through a loader that run.watch times. The recorder is told of each wait once, by this class: what the
    hooks of the loader itself say meanwhile is not heard."""

    def __init__(self, recording: StepRecording, loader: Iterable[Item]) -> None:
        self._recorder, self._clock = recording.recorder, recording.clock
        self._open = True
        began = self._clock()
        muted, self._recorder.muted = self._recorder.muted, True
        try:
            self._items: Iterator[Item] = iter(loader)
        finally:
            self._recorder.muted = muted
        self._recorder.open_pass(id(self), began, self._clock())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        recorder, clock = self._recorder, self._clock
        begin, begin_thread_s = clock(), time.thread_time()
        muted, recorder.muted = recorder.muted, True
        try:
            item = next(self._items)
        except StopIteration:
            recorder.muted = muted
            self._open = False
            recorder.end_pass(id(self), clock())
            raise
        finally:
            recorder.muted = muted
        recorder.batch(id(self), begin, clock())
        recorder.off_host(time.thread_time() - begin_thread_s)
        return item

    def close(self) -> None:
        """Ask for no more batches: the loop has ended early."""
        if self._open:
            self._open = False
            self._recorder.close_pass(id(self), self._clock())
