"""RunRecorder: telemetry, input waiting and curves of a loop that is the user's own, with three added lines.

Trackers that are named are fed by a queue on disk; each of the user's own runs in a thread.
"""

import math
import os
import platform
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from numbers import Integral, Real
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import msgspec

import metalmark
from metalmark.errors import StoreError, UsageError
from metalmark.explain.from_watch import explain_watched
from metalmark.explain.sentences import verdict_sentence
from metalmark.kit.frameworks import versions
from metalmark.kit.ledger import Ledger, LoggedRow
from metalmark.kit.recording import StepRecording, TimedLoader
from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.machine.sleep import SleepWatch
from metalmark.model.codec import encode
from metalmark.model.plan import Scalar
from metalmark.model.run import Software, new_id, now_utc
from metalmark.model.watch import Pass, WatchedRun, WatchEnding
from metalmark.runner.flags import flags_of_watched
from metalmark.scrub import scrub
from metalmark.store.address import store_address
from metalmark.store.store import Store
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors
from metalmark.track.destination import TRACKERS
from metalmark.watch.pace import LoopPace

if TYPE_CHECKING:
    from metalmark.track.tracking import Tracking

HZ = 1.0
"""Sensors are read in the training's own process and take their turn with it; a run of minutes needs no more."""
GRACE_S = 2.0
MARKS = 2 * 64
"""Number of moments that are noted before they are added up: a step only notes."""
PATIENCE_S = 30.0
"""How long the end of a run waits for a tracker of the user's own."""

Item = TypeVar("Item")


@runtime_checkable
class Tracker(Protocol):
    """Called in this order, from one thread that is not the training's. What it raises ends its tracking, never the
    training; it may take its time."""

    def start(self, params: Mapping[str, Scalar]) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def artifact(self, path: Path) -> None:
        """Keep a file, which is gone afterwards."""

    def finish(self) -> str | None:
        """Return what the user should know of it, if anything."""


Track = Tracker | str | Sequence[Tracker | str] | None


def run(
    name: str,
    *,
    track: Track = None,
    params: Mapping[str, Any] | None = None,
    hz: float | None = HZ,
    store: str | os.PathLike[str] | None = None,
) -> "RunRecorder":
    """Record a loop: `with mm.run("name") as run: for batch in run.watch(loader): ...; run.log(loss=loss)`.

    `track`: "mlflow", "mlflow=URI", "wandb", "wandb=offline", a Tracker, or several. `params`: the settings to
    remember. `hz`: how often sensors are read per second; None switches them off. `store`: the file that keeps the
    result, METALMARK_STORE or the user's data folder by default.
    """
    return RunRecorder(name, track, params or {}, hz, store)


def split_trackers(track: Track) -> tuple[list[Tracker], str]:
    """Return the user's own trackers, and the named ones as --track takes them."""
    given = (
        track if isinstance(track, Sequence) and not isinstance(track, str) else [track] if track is not None else []
    )
    own = [each for each in given if not isinstance(each, str)]
    for each in own:
        if not isinstance(each, Tracker):
            raise UsageError(
                f"A {type(each).__name__} is not a tracker.",
                hint="A tracker has start, log, artifact and finish; or name one: " + ", ".join(TRACKERS),
            )
    return own, ",".join(each for each in given if isinstance(each, str))


class RunRecorder:
    """`watch` and `log` never wait for the device: times are the host's, and a device's numbers are read later."""

    def __init__(
        self,
        name: str,
        track: Track,
        params: Mapping[str, Any],
        hz: float | None,
        store: str | os.PathLike[str] | None,
        *,
        hooks: bool = True,
    ) -> None:
        """`hooks`: whether to see what frameworks do. A callback is told by its library, in whose loop it begins."""
        if not name or (hz is not None and not 0 < hz <= 20):
            raise UsageError("mm.run() takes a name, and hz above 0 and up to 20 (or None).")
        self.id = new_id()
        self.name = name
        self.result: WatchedRun | None = None
        """The run, once its `with` block has ended."""
        self._params = {str(key): _plain(value) for key, value in params.items()}
        self._trackers, named = split_trackers(track)
        self._tracking = _track_by_name(named) if named else None
        self._hz = hz
        self._store = store_address(store)
        self._paces: dict[str, LoopPace] = {}
        self._passes: list[Pass] = []
        self._step = 0
        """Number of batches given to the first loop; without a loop, number of calls of log() without a step."""
        self._threads: list[TrackerThread] = []
        self._ledger = Ledger(self._tell)
        self._sampler: Sampler | None = None
        self._recording = StepRecording()
        self._hooks = hooks
        self._around = ExitStack()
        """Contexts that last as long as the run does."""
        self._sleepy = ""
        self._began_s = 0.0
        self._started_at = ""
        self._notes: list[str] = []
        self._libraries: dict[str, str] = {}

    def watch(self, loader: Iterable[Item], loop: str = "train") -> "Watching[Item]":
        """Time a loader: how long each step took, and how much of that it waited for its batch."""
        if self._sampler is None:
            raise _outside("watch")
        return Watching(self, loader, loop)

    def log(self, given: Mapping[str, Any] | int | None = None, /, *, step: int | None = None, **metrics: Any) -> None:
        """Log numbers or one-element arrays of any framework: `log(loss=loss)`, or `log({"train/loss": loss})`.

        `step`: the watched loop's, unless you count yourself.
        """
        if self._sampler is None:
            raise _outside("log")
        if isinstance(given, Mapping):
            for name in given:
                if not isinstance(name, str):
                    raise UsageError(
                        f"log() takes numbers by their names; {name!r} is not a name.",
                        hint='Log {"loss": loss}, say.',
                    )
            metrics = {**given, **metrics}
        elif given is not None:
            step = given if step is None else step
        if step is None:
            if not self._paces:
                self._step += 1
            step = self._step
        else:
            step = int(step)
        self._ledger.add(step, metrics)

    def describe(self, name: str, params: Mapping[str, Any], libraries: Mapping[str, str]) -> None:
        """Add what is known only when a library begins its loop: a name, its settings, its version. Settings that the
        user gave are kept."""
        self.name = name
        self._params = {**{key: _plain(value) for key, value in params.items()}, **self._params}
        self._libraries = dict(libraries)

    def note(self, text: str) -> None:
        """Keep a sentence with the run, once."""
        if text not in self._notes:
            self._notes.append(text)

    def __enter__(self) -> Self:
        if self._started_at:
            raise UsageError("This run has been used already.", hint="Make a new one with mm.run().")
        self._started_at = now_utc()
        self._threads = [TrackerThread(tracker, self._params) for tracker in self._trackers]
        if self._tracking is not None:
            self._tracking.begin_watch(self.id, self.name, self._started_at, self._params)
        self._began_s = time.perf_counter()
        self._sleepy = self._around.enter_context(kept_awake())
        self._sleep = SleepWatch()
        self._sampler = Sampler(default_sensors(os.getpid()) if self._hz else [], self._hz, time.monotonic())
        self._sampler.start()
        if self._hooks:
            self._recording.begin(lambda trouble: self.note(scrub(f"steps may be seen in part only: {trouble}")[:500]))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        elapsed_s = time.perf_counter() - self._began_s
        assert self._sampler is not None
        script = self._recording.end()
        telemetry = self._sampler.stop(GRACE_S)
        self._sampler = None
        gap = self._sleep.gap()
        self._around.close()
        notes = [*self._notes, *(note for note in (gap.note, self._sleepy) if note)]
        try:
            self._ledger.close()
        except Exception as failure:  # noqa: BLE001  a device that failed gives no numbers; the rest is kept
            why = f"{type(failure).__name__}: {failure}"
            notes.insert(0, scrub(f"the last logged numbers could not be read: {why}")[:500])
        notes += [f"{name} was not finite from step {step} on" for name, step in self._ledger.not_finite.items()]
        ended = WatchEnding.COMPLETED if error is None else WatchEnding.FAILED
        if isinstance(error, KeyboardInterrupt):
            ended = WatchEnding.INTERRUPTED
        self.result = WatchedRun(
            id=self.id,
            name=scrub(self.name),
            started_at=self._started_at,
            elapsed_s=elapsed_s,
            ended=ended,
            error="" if error is None else scrub(f"{type(error).__name__}: {error}")[:2000],
            params=self._params,
            machine=identify(),
            software=Software(
                metalmark=metalmark.__version__,
                python=platform.python_version(),
                versions={**versions(), **self._libraries},
            ),
            stretches={loop: pace.stretches() for loop, pace in self._paces.items()},
            passes=tuple(self._passes),
            curves=self._ledger.curves(self._began_s),
            telemetry=msgspec.structs.replace(telemetry, slept_s=gap.slept_s, wall_gap_s=gap.wall_gap_s),
            notes=tuple(notes),
            script=script,
        )
        notes += self._finish_trackers(self.result)
        self.result = msgspec.structs.replace(self.result, notes=tuple(notes))
        self._keep(self.result)

    def __str__(self) -> str:
        run = self.result
        if run is None:
            return f"run {self.name}, not ended"
        parts = [f"{run.name}: {run.ended.value} in {run.elapsed_s:.1f} s"]
        for loop, stretches in run.stretches.items():
            share = run.input_wait_share(loop)
            waiting = f", {share:.0%} of it waiting for input" if share is not None else ""
            parts.append(f"{loop} {sum(stretch.steps for stretch in stretches)} steps{waiting}")
        for curve in run.curves:
            known = [value for value in curve.values if value is not None]
            if known:
                parts.append(f"{curve.name} {known[0]:.4g} → {known[-1]:.4g}")
        parts += [f"{flag.name}: {flag.evidence}" for flag in flags_of_watched(run)]
        if run.stretches or (run.script is not None and run.script.steady is not None):
            parts.append(verdict_sentence(explain_watched(run)).rstrip("."))
        return "; ".join([*parts, *run.notes, f"kept as {run.id}"])

    def _tell(self, rows: Sequence[LoggedRow]) -> None:
        for thread in self._threads:
            for step, _, metrics in rows:
                thread.log(step, metrics)
        if self._tracking is not None:
            self._tracking.log((step, at_s - self._began_s, metrics) for step, at_s, metrics in rows)

    def _finish_trackers(self, result: WatchedRun) -> list[str]:
        troubles: list[str] = []
        if self._threads:
            with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
                artifact = Path(folder, f"metalmark-run-{result.id}.json")
                artifact.write_bytes(encode(result))
                troubles = [trouble for thread in self._threads if (trouble := thread.finish(artifact))]
        if self._tracking is not None:
            troubles += self._tracking.end_watch(result)
        for trouble in troubles:
            warnings.warn(f"metalmark: {trouble}", stacklevel=3)
        return troubles

    def _keep(self, result: WatchedRun) -> None:
        """Store the run. A store that fails must not take the user's finished training with it."""
        try:
            with Store(self._store, spools=True) as store:
                store.add(result)
        except StoreError as error:
            path = Path(tempfile.gettempdir(), f"metalmark-unsaved-{result.id}.json")
            try:
                path.write_bytes(encode(result))
                kept = f"The run is in {path}."
            except OSError:
                kept = "The run could not be kept; it is in run.result."
            warnings.warn(f"metalmark: {error.message} {error.hint} {kept}", stacklevel=3)


class Watching(Generic[Item]):
    """A loader that is timed from outside. It has the loader's length, for progress bars."""

    def __init__(self, run: RunRecorder, loader: Iterable[Item], loop: str) -> None:
        self._run, self._loader, self._loop = run, loader, loop

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Item]:
        run, clock = self._run, time.perf_counter
        pace = run._paces.setdefault(self._loop, LoopPace())
        leads = self._loop == next(iter(run._paces))  # log() counts by the first loop there was
        steps, first_wait_s, waited_s = 0, 0.0, 0.0
        marks: list[float] = []
        note = marks.append
        began = begin = clock()

        def take() -> None:
            nonlocal steps, first_wait_s, waited_s, begin
            if marks:
                first_wait_s = first_wait_s if steps else marks[0] - began
                steps += len(marks) // 2
                last = marks[-1]
                waited_s += pace.take(marks, begin, run._began_s)
                begin = last

        timed = TimedLoader(run._recording, self._loader)  # a loader's workers start here, and that is waiting too
        try:
            for batch in timed:
                note(clock())
                if leads:
                    run._step += 1
                try:
                    yield batch
                finally:  # a loop that breaks or raises has ended its step too
                    del batch
                    note(clock())
                if len(marks) >= MARKS:
                    take()
        finally:
            timed.close()
            take()
            run._passes.append(
                Pass(
                    loop=self._loop,
                    at_s=began - run._began_s,
                    steps=steps,
                    elapsed_s=begin - began,
                    waited_s=waited_s,
                    first_wait_s=first_wait_s,
                )
            )


class TrackerThread:
    """A tracker of the user's own in a thread, so that a slow or broken one costs the training nothing."""

    def __init__(self, tracker: Tracker, params: Mapping[str, Scalar]) -> None:
        self._tracker = tracker
        self._rows: SimpleQueue[tuple[int, Mapping[str, float]] | Path] = SimpleQueue()
        """What was logged, and the run's file after the last."""
        self._name = f"tracker {type(tracker).__name__}"
        self._trouble = ""
        # A daemon: the interpreter's end must not wait for a tracker that hangs.
        self._thread = threading.Thread(target=self._run, args=(params,), daemon=True, name=self._name)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.put((step, metrics))

    def finish(self, artifact: Path) -> str:
        """Wait until it has taken everything, within reason; return what went wrong, or nothing."""
        self._rows.put(artifact)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self._name} had not taken everything after {PATIENCE_S:g} s"
        return self._trouble

    def _run(self, params: Mapping[str, Scalar]) -> None:
        try:
            self._tracker.start(params)
            while not isinstance(row := self._rows.get(), Path):
                self._tracker.log(*row)
            self._tracker.artifact(row)
            self._trouble = self._tracker.finish() or ""
        except BaseException as error:  # noqa: BLE001  whatever a tracker throws costs only its own tracking
            self._trouble = scrub(f"{self._name} stopped: {type(error).__name__}: {error}")[:500]


def _track_by_name(names: str) -> "Tracking":
    """Return the tracking of `names`. What it needs is imported only for a script that tracks."""
    from metalmark.track.destination import parse_track
    from metalmark.track.launch import say_nothing
    from metalmark.track.tracking import Tracking

    targets = parse_track(names)
    for note in targets.notes:
        warnings.warn(f"metalmark: {note}", stacklevel=4)
    return Tracking(targets, warn=say_nothing)  # what went wrong becomes a note of the run, and a warning


def _outside(call: str) -> UsageError:
    return UsageError(f"{call}() outside of the run.", hint="Call it inside `with mm.run(...) as run:`.")


def _plain(value: Any) -> Scalar:
    """Return a value that can be stored and read again; what is neither text nor a finite number becomes text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return scrub(str(value))
