"""Fits: loops that a library runs, told by its hooks. A FitWatch makes a run of each, with the times of every step.

A step lasts from asking for its batch to asking for the next one, as in `run.watch`. What a library does in between,
validation or saving, belongs to no step.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from metalmark.errors import UsageError
from metalmark.kit.callbacks import make_again
from metalmark.kit.running import RunRecorder, Track
from metalmark.model.watch import Pass, WatchedRun
from metalmark.watch.pace import LoopPace

TRAIN, VALIDATION = "train", "validation"

clock = time.perf_counter


class UnfinishedFitError(Exception):
    """What ended a fit whose library told nothing of its end."""


class FitOptions(Struct, frozen=True, kw_only=True):
    """What a callback was made with."""

    name: str | None
    track: Track
    params: dict[str, Any]
    hz: float | None
    store: str | os.PathLike[str] | None

    def make_run(self) -> RunRecorder:
        if self.name == "":
            raise UsageError("A callback's name is empty.", hint="Leave it out to take the model's name.")
        return RunRecorder(self.name or "fit", self.track, self.params, self.hz, self.store, hooks=False)


class LoopWatch:
    """Times one loop of a library by moments of the host's clock."""

    def __init__(self, run: RunRecorder, loop: str) -> None:
        self._run, self._loop = run, loop
        self._pace = run._paces.setdefault(loop, LoopPace())
        self._open = False
        self.is_over = False
        """Whether the run has ended, though a library may still go on."""
        self._step_began: float | None = None
        self._first_wait_s: float | None = None
        self._forget_step()

    @property
    def is_open(self) -> bool:
        """Whether a pass has begun and not ended."""
        return self._open

    def begin(self, at: float) -> None:
        """A pass begins, and its first batch is waited for from now on: a loader's workers start in that."""
        self.close(at)
        self._open, self._began, self._step_began = True, at, at
        self._steps, self._elapsed_s, self._waited_s = 0, 0.0, 0.0
        self._first_wait_s = None

    def asked(self, at: float) -> None:
        """The library asks for a batch: the step before ends here."""
        if not self._open:
            self.begin(at)
        if self._done:
            self._take_step(at)
        if self._step_began is None:
            self._step_began = at
        if not self._batches:
            self._step_waited_s += at - self._step_began

    def got(self, waited_s: float) -> None:
        """A batch has come, this long after it was asked for."""
        self._batches += 1
        self._step_waited_s += waited_s
        if self._first_wait_s is None:
            self._first_wait_s = self._step_waited_s

    def blind(self) -> None:
        """What is waited for input can't be told."""
        self._pace.waits_known = False

    def done(self, steps: int = 1) -> None:
        """A step is complete; it lasts until the next batch is asked for, or until the library does something else."""
        self._done = steps

    def pause(self, at: float) -> None:
        """The library does something else from here on. A step that is not complete is left out."""
        if self._done:
            self._take_step(at)
        self._forget_step()

    def close(self, at: float) -> None:
        """The pass has ended."""
        if not self._open:
            return
        self.pause(at)
        self._open = False
        known = self._pace.waits_known
        self._run._passes.append(
            Pass(
                loop=self._loop,
                at_s=self._began - self._run._began_s,
                steps=self._steps,
                elapsed_s=self._elapsed_s,
                waited_s=self._waited_s if known else None,
                first_wait_s=(self._first_wait_s or 0.0) if known else None,
            )
        )

    def _take_step(self, at: float) -> None:
        began = self._step_began
        assert began is not None
        self._pace.step(began - self._run._began_s, at - began, self._step_waited_s, self._done)
        self._steps += self._done
        self._elapsed_s += at - began
        self._waited_s += self._step_waited_s
        self._forget_step()
        self._step_began = at

    def _forget_step(self) -> None:
        self._step_began = None
        self._step_waited_s = 0.0
        self._batches = self._done = 0


class FitRecorder:
    """The runs of one callback, of which the last may still go on."""

    def __init__(self, options: FitOptions) -> None:
        self.runs: list[RunRecorder] = []
        self.step = 0
        """The library's own count of steps."""
        self.train: LoopWatch
        self.validation: LoopWatch | None = None
        self._options = options
        # Made here, so that a wrong option is told where it was written, and not inside the fit.
        self._next: RunRecorder | None = options.make_run()
        self._is_open = False
        self._refused: set[str] = set()
        self._last_error: BaseException | None = None

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def run(self) -> RunRecorder:
        return self.runs[-1]

    def begin(self, name: str, params: Mapping[str, Any], libraries: Mapping[str, str]) -> None:
        """A fit begins. One that is still open in this thread has ended, though its library did not say so."""
        left = _open_fits.pop(threading.get_ident(), None)
        if left is not None:
            left.abandon()
        run = self._next or self._options.make_run()
        self._next = None
        run.describe(self._options.name or name, params, libraries)
        run.__enter__()
        self.runs.append(run)
        self._is_open, self._refused, self.step = True, set(), 0
        self._last_error = getattr(sys, "last_value", None)
        self.train, self.validation = LoopWatch(run, TRAIN), None
        _open_fits[threading.get_ident()] = self

    def validate(self, at: float) -> LoopWatch:
        """A pass over the validation data begins. Training waits for it, and for no batch."""
        self.train.pause(at)
        if self.validation is None:
            self.validation = LoopWatch(self.run, VALIDATION)
        self.validation.begin(at)
        return self.validation

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Log what is a number. What is not is left out with a note: it must not end the user's training."""
        known = {name: value for name, value in metrics.items() if name not in self._refused}
        if not known:
            return
        try:
            self.run.log(known, step=self.step)
        except UsageError:
            for name, value in known.items():
                try:
                    self.run.log({name: value}, step=self.step)
                except UsageError as error:
                    self._refused.add(name)
                    self.run.note(f"{name} was not logged: {error.message}")

    def end(self, error: BaseException | None = None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        now = clock()
        for loop in (self.train, self.validation):
            if loop is not None:
                loop.close(now)
                loop.is_over = True
        # Validation ends inside of an epoch.
        self.run._passes.sort(key=lambda one: one.at_s)
        self.run.__exit__(type(error) if error is not None else None, error, None)

    def abandon(self) -> None:
        """End a fit whose library told nothing of its end. Python keeps the exception that nobody caught."""
        error: BaseException | None = getattr(sys, "last_value", None)
        if error is None or error is self._last_error:
            error = UnfinishedFitError("the fit did not come to its end, and its library does not tell why")
        self.end(error)


_open_fits: "weakref.WeakValueDictionary[int, FitRecorder]" = weakref.WeakValueDictionary()
"""By thread."""


class FitWatch:
    """What the callbacks of all libraries have: runs, and an end that is known even where the library tells none."""

    LIBRARY: str

    def __init__(self, options: FitOptions) -> None:
        super().__init__()
        self._options = options
        self._fits = FitRecorder(options)
        # Called when nobody has the callback any more, or else when Python ends.
        weakref.finalize(self, self._fits.abandon)

    @property
    def runs(self) -> list[RunRecorder]:
        """One run for each fit, the newest last."""
        return list(self._fits.runs)

    @property
    def run(self) -> RunRecorder | None:
        """The newest run."""
        return self._fits.runs[-1] if self._fits.runs else None

    @property
    def result(self) -> WatchedRun | None:
        """What is kept of the newest run, once it has ended."""
        return self.run.result if self.run is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if self._fits.is_open:
            self._let_go()
            self._fits.end(error or UnfinishedFitError("the fit did not come to its end"))

    def __str__(self) -> str:
        return str(self.run) if self.run is not None else f"{self.LIBRARY} callback, no fit yet"

    def __reduce__(self) -> tuple[Any, ...]:
        return make_again, (self.LIBRARY, self._options)

    def _let_go(self) -> None:
        """Take back what was changed in the library's objects."""
