"""Recorder: adds up what the hooks of all frameworks see, and hands it on as lines of JSON.

A step is one optimiser step; it lasts from the end of the step before to its own end, without validation and
checkpoints between them. All moments are those of time.monotonic(), which all processes of a machine share.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

clock = time.monotonic
MOST_PLACES = 200
"""Places in the code where the host waited; others are added up as "elsewhere"."""
MOST_PENDING = 64
"""Losses whose values have not been read yet, because reading would wait for the device."""
VALIDATION, CHECKPOINT = "validation", "checkpoint"

Emit = Callable[[dict[str, Any]], None]


class LoaderPass:
    """Once through a loader."""

    __slots__ = ("backwards", "batches", "before", "began", "ended", "first_wait_s", "steps", "waited_s")

    def __init__(self, began: float, before: StepSoFar, steps: int, backwards: int) -> None:
        self.began, self.before, self.steps, self.backwards = began, before, steps, backwards
        self.first_wait_s: float | None = None
        self.batches, self.waited_s = 0, 0.0
        self.ended: float | None = None


class StepSoFar:
    """What the step under way has cost so far, apart from its own work."""

    __slots__ = ("copy_s", "got", "not_host_s", "steps", "sync_s", "thread_s", "waited_s")

    def __init__(self, recorder: Recorder) -> None:
        self.steps = recorder.steps
        self.waited_s, self.sync_s, self.copy_s = recorder._waited_s, recorder._sync_s, recorder._copy_s
        self.not_host_s, self.thread_s = recorder._not_host_s, time.thread_time()
        self.got = recorder._got_at, recorder._got_outside_s


class Recorder:
    """One for each process. `emit` takes each line; it is called by `flush` alone. `wake` is called once, at the first
    sign of training."""

    def __init__(self, emit: Emit, wake: Callable[[], None] | None = None) -> None:
        self._emit, self._wake_once = emit, wake
        self.before_end: list[Callable[[], None]] = []
        """What hooks still have to tell when the last line is written."""
        self._begin()

    def forked(self) -> None:
        """In a forked child: forget what the parent did."""
        self._begin()

    def _begin(self) -> None:
        self._wake = self._wake_once
        self._lock = threading.Lock()
        self.steps = 0
        self.device = ""
        self.device_name = ""
        self.batch_size: int | None = None
        self.loader_workers = 0
        """The most that were there at once."""
        if not hasattr(self, "frameworks"):  # else a fork has them too
            self.frameworks: list[str] = []
        self.notes: list[str] = []
        """Sentences about what was seen: which function counts as a step, what can't be told."""
        self.waits_known = True
        """False: some waits for input happen where no clock can be read."""
        self.has_loader = False
        """Whether a loader was gone through."""
        self.muted = False
        """A library runs the loop and its own hook tells of steps and batches; those of others would count twice."""
        self._step_began: float | None = None
        """The end of the step before; before the first step, when its batch was asked for."""
        self._waited_s = self._forward_s = self._backward_s = self._sync_s = self._copy_s = self._outside_s = 0.0
        self._not_host_s = self._backward_end = self._got_outside_s = 0.0
        """Of the step under way."""
        self._got_at: float | None = None
        """When it got its batch, until its backward pass begins."""
        self._rows: list[tuple[float, float, float, int]] = []
        self._passes: dict[int, LoaderPass] = {}
        self._exhausted: tuple[int, LoaderPass] | None = None
        """A pass that has given its last batch. Libraries that fetch ahead work on that batch only then."""
        self._ended_passes: list[list[Any]] = []
        self._backwards = 0
        self._stepped: set[int] = set()
        self._stepped_at = 0
        """The optimisers of the last step, and the number of backward passes until then."""
        self._evaluating: dict[int, tuple[float, int, StepSoFar]] = {}
        self._losses: list[tuple[int, float, float]] = []
        self._pending: list[tuple[int, float, Callable[[], float]]] = []
        self._loss_every, self._losses_seen = 1, 0
        self.first_step_s: float | None = None
        self._totals = dict.fromkeys(
            ("elapsed_s", "waited_s", "forward_s", "backward_s", "optimizer_s", "sync_s", "copy_s", "host_s"), 0.0
        )
        self._phases: dict[str, float] = {}
        self._places: dict[tuple[str, str], list[float]] = {}
        self._copies: dict[int, list[float]] = {}
        self._outside_spans: list[tuple[float, float]] = []
        """Since the last step."""
        self._thread_s: float | None = None

    # What hooks tell. `begin` and `end` are moments of `clock`.

    def open_pass(self, key: int, begin: float, end: float | None = None) -> None:
        """A loader is gone through from now on. `end`: when its workers had been started, which is waiting, too."""
        if self.muted:
            return
        if self._wake is not None:
            self._woken()
        if self._exhausted is not None or key in self._passes:
            self._settle()
            self.close_pass(key, begin)
        self.has_loader = True
        self._passes[key] = LoaderPass(begin, StepSoFar(self), self.steps, self._backwards)
        if self._step_began is None:
            self._step_began = begin
        if end is not None:
            self._waited_s += end - begin
            self._passes[key].waited_s += end - begin

    def batch(self, key: int, begin: float, end: float) -> None:
        """A loader was asked for a batch, and gave it. `key`: which loader, if it was opened."""
        if self.muted:
            return
        if self._wake is not None:
            self._woken()
        if self._exhausted is not None:
            self._settle()
        waited_s = end - begin
        if self._step_began is None:
            self._step_began = begin
        self._waited_s += waited_s
        self._got_at, self._got_outside_s = end, self._outside_s
        current = self._passes.get(key)
        if current is not None:
            current.batches += 1
            current.waited_s += waited_s
            if current.first_wait_s is None:
                current.first_wait_s = end - current.began

    def end_pass(self, key: int, end: float) -> None:
        """The loader has no more batches. A library that fetches ahead may still work on the last one."""
        if self.muted:
            return
        current = self._passes.pop(key, None)
        if current is None:
            return
        if self._exhausted is not None:
            self._settle()
        if current.batches:
            current.ended = end
            self._exhausted = key, current

    def close_pass(self, key: int, end: float) -> None:
        """The loader is not asked any more, and nothing of it is worked on. One without a step was validation."""
        if self.muted:
            return
        if self._exhausted is not None and self._exhausted[0] == key:
            self._settle()
        current = self._passes.pop(key, None)
        if current is not None and current.batches:
            self._close(current, end)

    def _settle(self) -> None:
        """Close the pass that has given its last batch: what comes now is not of it."""
        if self._exhausted is not None:
            (_, current), self._exhausted = self._exhausted, None
            assert current.ended is not None
            self._close(current, current.ended)

    def _close(self, current: LoaderPass, end: float) -> None:
        steps = self.steps - current.steps
        trained = steps > 0 or self._backwards > current.backwards
        if not trained:
            self._outside_since(VALIDATION, current.began, end, current.before)
            if not self.steps and not self._passes:
                self._step_began = None  # what came before the first step's own loader is no part of it
        first_s = current.first_wait_s or 0.0
        loop = "train" if trained else VALIDATION
        count = steps if trained else current.batches
        self._ended_passes.append([loop, current.began, count, end - current.began, current.waited_s, first_s])

    def _goes_on(self) -> bool:
        """Whether a backward pass or a step that comes now is still of the pass that has given its last batch."""
        assert self._exhausted is not None
        current = self._exhausted[1]
        if self.steps > current.steps or self._backwards > current.backwards:
            return True
        return current.batches == 1 and not self._passes

    def evaluation_begins(self, key: int, begin: float) -> None:
        """A network was switched to evaluation. `key`: which network."""
        if self.muted:
            return
        if self.steps and len(self._evaluating) < MOST_PLACES:
            self._evaluating.setdefault(key, (begin, self._backwards, StepSoFar(self)))

    def evaluation_ends(self, key: int, end: float) -> None:
        """The network was switched back. It was validation if nothing was trained meanwhile."""
        if self.muted:
            return
        found = self._evaluating.pop(key, None)
        if found is not None:
            begin, backwards, before = found
            if backwards == self._backwards and before.steps == self.steps:
                self._outside_since(VALIDATION, begin, end, before)

    def begins(self, at: float) -> None:
        """The first step begins, if nothing has told of it before."""
        if not self.muted and self._step_began is None:
            self._step_began = at

    def backward(self, begin: float, end: float) -> None:
        if self.muted:
            return
        if self._exhausted is not None and not self._goes_on():
            self._settle()
        self._backwards += 1
        if self._step_began is None:
            self._step_began = begin
        if self._got_at is not None:
            self._forward_s += max(0.0, begin - self._got_at - (self._outside_s - self._got_outside_s))
            self._got_at = None
        self._backward_s += end - begin
        self._backward_end = end

    def step(self, begin: float, end: float, *, count: int = 1, key: int = 0) -> None:
        """An optimiser step. One that computes the gradients itself, as a closure does, begins after them. `count`:
        several that can't be told apart. `key`: which optimiser; one that follows another without a backward pass
        between them is of the same step."""
        if self.muted:
            return
        if self._wake is not None:
            self._woken()
        if self._exhausted is not None and not self._goes_on():
            self._settle()
        begin = max(begin, self._backward_end)
        if self._step_began is None:
            self._step_began = begin
        elapsed_s = max(0.0, end - self._step_began - self._outside_s)
        waited_s = min(self._waited_s, elapsed_s)
        thread_s = time.thread_time()
        follows = self._stepped and self._backwards == self._stepped_at
        if follows and key and key not in self._stepped and 0 not in self._stepped:
            count = 0
        else:
            self._stepped.clear()
        self._stepped.add(key)
        self._stepped_at = self._backwards
        self.steps += count
        if self.first_step_s is None or (not count and self.steps == 1):
            self.first_step_s = (self.first_step_s or 0.0) + elapsed_s
        else:
            total = self._totals
            total["elapsed_s"] += elapsed_s
            total["waited_s"] += waited_s
            total["forward_s"] += self._forward_s
            total["backward_s"] += self._backward_s
            total["optimizer_s"] += end - begin
            total["sync_s"] += self._sync_s
            total["copy_s"] += self._copy_s
            if self._thread_s is not None:
                total["host_s"] += max(0.0, thread_s - self._thread_s - self._not_host_s)
        self._rows.append((self._step_began, elapsed_s, waited_s, count))
        self._step_began, self._thread_s = end, thread_s
        if self._exhausted is not None:
            self._exhausted[1].ended = end
        self._reset_step()

    def sync(self, call: str, where: str, begin: float, end: float) -> None:
        """The host waited for the device."""
        seconds = end - begin
        self._sync_s += seconds
        key = (where, call) if len(self._places) < MOST_PLACES else ("elsewhere", call)
        place = self._places.setdefault(key, [0, 0.0])
        place[0] += 1
        place[1] += seconds

    def copy(self, size: int, begin: float, end: float) -> None:
        """Bytes went from the host to the device."""
        self._copy_s += end - begin
        group = self._copies.setdefault(max(0, size - 1).bit_length(), [0, 0, 0.0])
        group[0] += 1
        group[1] += size
        group[2] += end - begin

    def off_host(self, thread_s: float) -> None:
        """Processor time that the training's thread spent in a wait: it is no work of the host's."""
        self._not_host_s += thread_s

    def _outside_since(self, name: str, begin: float, end: float, before: StepSoFar) -> None:
        """Something outside of the steps, with the waits, syncs and copies in it, which were told since `before`."""
        self.outside(name, begin, end)
        if before.steps == self.steps:
            self._waited_s, self._sync_s, self._copy_s = before.waited_s, before.sync_s, before.copy_s
            self._got_at, self._got_outside_s = before.got
            self._not_host_s = before.not_host_s + time.thread_time() - before.thread_s

    def outside(self, name: str, begin: float, end: float) -> None:
        """Something that belongs to no step: validation, a checkpoint. What was told before is not counted twice."""
        seconds = end - begin
        for other_begin, other_end in self._outside_spans:
            seconds -= max(0.0, min(end, other_end) - max(begin, other_begin))
        if seconds <= 0:
            return
        self._outside_spans.append((begin, end))
        self._phases[name] = self._phases.get(name, 0.0) + seconds
        if self._step_began is not None:
            self._outside_s += min(seconds, max(0.0, end - self._step_began))

    def loss(self, read: Callable[[], float]) -> None:
        """The loss of the step that is under way. `read` may wait for the device, so it is called much later."""
        if self.muted:
            return
        self._losses_seen += 1
        if self._losses_seen % self._loss_every:
            return
        self._pending.append((self.steps + 1, clock(), read))
        if len(self._pending) > MOST_PENDING:
            # Nobody waited for the device so far, and neither do we: every second one is forgotten.
            del self._pending[::2]
            self._loss_every *= 2

    def loss_is(self, step: int, value: float) -> None:
        """A loss that is known already."""
        self._losses.append((step, clock(), value))

    def read_losses(self) -> None:
        """Read what is pending: the device is idle, since the script itself has just waited for it."""
        pending, self._pending = self._pending, []
        for step, at, read in pending:
            try:
                self._losses.append((step, at, float(read())))
            except Exception:  # noqa: BLE001  a tensor that is gone has no loss; the script must not notice
                continue

    def read_ready_losses(self) -> None:
        """Read those at the front whose readers say, by `ready()`, that nothing has to be waited for."""
        while self._pending and getattr(self._pending[0][2], "ready", bool)():
            step, at, read = self._pending.pop(0)
            try:
                self._losses.append((step, at, float(read())))
            except Exception:  # noqa: BLE001  as above
                continue

    def is_trained_by(self, framework: str) -> None:
        """This one makes the steps. Others that were only imported, as libraries do to see what is there, are no part
        of it."""
        others = {"torch", "tensorflow", "jax", "mlx"} - {framework}
        self.frameworks = [name for name in self.frameworks if name not in others]

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def pending(self) -> bool:
        """Whether there are losses that were not read yet."""
        return bool(self._pending)

    def _woken(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    # What is handed on.

    def flush(self, *, ended: bool = False) -> None:
        with self._lock:
            if ended:
                for tell in self.before_end:
                    tell()
                for key in list(self._passes):
                    self.close_pass(key, clock())
                self._settle()
            seen, self._rows = self._rows, []
            rows = [(round(at, 6), round(took, 7), round(waited, 7), count) for at, took, waited, count in seen]
            told, self._losses = self._losses, []
            losses = [(step, round(at, 6), value if math.isfinite(value) else None) for step, at, value in told]
            passes, self._ended_passes = self._ended_passes, []
            line: dict[str, Any] = {"steps": rows, "losses": losses, "passes": passes, "totals": self._snapshot()}
            if ended:
                line["ended"] = True
            self._emit(line)

    def _snapshot(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "first_step_s": self.first_step_s,
            "steady": dict(self._totals),
            "phases": dict(self._phases),
            "syncs": [[where, call, *place] for (where, call), place in list(self._places.items())],
            "copies": [[1 << power, *group] for power, group in list(self._copies.items())],
            "frameworks": list(self.frameworks),
            "notes": list(self.notes),
            "waits_known": self.waits_known,
            "device": self.device,
            "device_name": self.device_name,
            "batch_size": self.batch_size,
            "loader_workers": self.loader_workers,
            "at": clock(),
        }

    def _reset_step(self) -> None:
        self._waited_s = self._forward_s = self._backward_s = self._sync_s = self._copy_s = self._outside_s = 0.0
        self._not_host_s = self._backward_end = self._got_outside_s = 0.0
        self._got_at = None
        if self._outside_spans:
            self._outside_spans.clear()


OUR_FOLDER = os.path.dirname(os.path.abspath(__file__))
STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))
_is_library: dict[str, bool] = {}


def place_of(frame: Any) -> str:
    """The file's name and line of the innermost frame that is the user's own: of no library, and not of ours."""
    while frame is not None:
        name = frame.f_code.co_filename
        known = _is_library.get(name)
        if known is None:
            ours = name.startswith((OUR_FOLDER, "<", STANDARD_LIBRARY)) or "__autograph_generated_file" in name
            known = _is_library[name] = ours or "site-packages" in name or "dist-packages" in name
        if not known:
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"
