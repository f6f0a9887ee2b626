"""Experimenter: the controlled experiments that a plan gets, one after another, each told as soon as it ended.

Parts of a step and other thread counts are timed in turn with the whole step. What needs a session of its own (another
batch size, a setting, a loader) is timed between two times of the baseline, whose session stays open beside it.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from metalmark.doctor.readers import open_files
from metalmark.errors import MetalmarkError, UnsupportedError, WrongResultError
from metalmark.explain.base import Anatomy, ExplainBackend, SelfMeasured
from metalmark.explain.ceilings import measure_ceiling
from metalmark.explain.job import Counted, ExplainOptions, Line, Opened, Profiled, SyncSeen, Tried
from metalmark.explain.timing import BlockTimer, Call, error_of
from metalmark.machine.cgroup import limits
from metalmark.machine.cpu import memory_bytes, usable_cores
from metalmark.machine.identity import identify
from metalmark.model.explanation import Experiment, ExperimentKind
from metalmark.model.plan import Dtype, Feed, Loader, Mode, Plan, PlanChange, Scalar, word
from metalmark.model.run import Absent
from metalmark.model.workload import Workload
from metalmark.runner.ask import in_one_line
from metalmark.runner.loop import Tell
from metalmark.stats.summary import median
from metalmark.watch.agent_package import agent_module

AFFORDED = 10.0
"""An experiment that can be left out may take so many times `seconds`."""
STEPS_OF_A_SESSION = 4
"""What a session of its own takes at least: its first step, one to warm up, and two blocks."""
BESIDE = 2
"""Blocks of the baseline before and after an experiment that has its own session."""
ENQUEUED = (1, 2, 4, 8)
"""Steps that are enqueued at once. Few: a queue that is full makes its caller wait."""
ENQUEUE_TIMES = 25
LADDER = 4
"""By how much larger each next batch is, on the way to where a step's time grows with it."""
GROWN = 2.0
"""A step that takes so many times as long as the baseline's has reached it."""
LARGEST_FACTOR = 4096
WORKERS = (0, 1, 2, 4, 8)
LITTLE_WAIT = 0.03
"""A loader whose step waits for this share of it needs no more workers."""
PROFILED_STEPS = 30
MOST_SYNCED_STEPS = 100
HALF_OF_MEMORY = 0.5

T = TypeVar("T")
Write = Callable[[Line], None]


class TooLongError(UnsupportedError):
    """An experiment that would take longer than there is time for."""


class Experimenter:
    def __init__(
        self,
        side: ExplainBackend,
        plan: Plan,
        options: ExplainOptions,
        *,
        load: Callable[[Plan], Workload],
        write: Write,
        tell: Tell,
    ) -> None:
        """`load` returns the workload with the data of a plan."""
        self._side, self._plan, self._options = side, plan, options
        self._load, self._write, self._tell = load, write, tell
        self.notes: list[str] = []
        """What a reader should know that no line says."""
        self._anatomy: Anatomy
        self._timer: BlockTimer
        self._step_s = 0.0
        self._calls = 1
        self._opening_s = 0.0
        """How long it took to open the newest session."""
        self._before: list[float] = []
        """The newest blocks of the resident step."""
        self._asked: list[float] = []
        """The newest blocks of the step as asked, where that has a loader."""

    def run(self) -> None:
        self._tell("build", None, None)
        workload = self._load(self._plan)
        with self._side.open(self._plan, workload) as anatomy:
            self._anatomy = anatomy
            self._open(workload)
            self._as_asked()
            self._resident()
            self._parts()
            self._count()
            if self._plan.feed is Feed.PIPELINE:
                self._loaders()
            self._threads()
            self._settings()
            self._batches()
            self._syncs()
            # A compiler may end its process, so it comes after what is known by then.
            self._setting(ExperimentKind.COMPILED, {"compile": True})
            self._setting(ExperimentKind.CAPTURED, {"graph": True})
            self._ceiling()
            # Last: CUPTI, once it was attached to a process, makes each launch slower.
            self._profile()

    # The baseline.

    def _open(self, workload: Workload) -> None:
        session = self._anatomy.session
        self._tell("first step", None, None)
        session.synchronize()
        begin = time.perf_counter()
        session.step()
        session.synchronize()
        first_step_s = time.perf_counter() - begin
        session.settle()
        if not math.isfinite(proof := session.proof()):
            raise WrongResultError(f"The result is {proof} at the first step.")
        self._timer = self._timer_of(self._anatomy)
        # What is here now stays until the end, so it need not be looked through after each experiment.
        gc.collect()
        gc.freeze()
        own_notes = workload.notes(self._plan.params) if workload.notes is not None else ()
        flops = workload.flops(self._plan.params) if workload.flops else None
        if flops is not None:
            factor = workload.training_factor if self._plan.mode is Mode.TRAINING else 1.0
            flops *= self._plan.samples_per_step * (factor(self._plan.params) if callable(factor) else factor)
        self._write(
            Opened(
                placed_on=session.placement.device,
                device_name=session.placement.name,
                asynchronous=self._anatomy.asynchronous,
                samples_per_step=self._plan.samples_per_step,
                flops_per_step=flops,
                parameters=session.parameters,
                trainable_parameters=session.trainable_parameters,
                threads=self._side.threads(),
                usable_cores=usable_cores(limits()),
                open_files=open_files().hard,
                first_step_s=first_step_s,
                sync_s=self._timer.sync_s,
                notes=(*session.notes, *own_notes),
            )
        )

    def _as_asked(self) -> None:
        if self._plan.feed is Feed.PIPELINE:
            self._tell_of(ExperimentKind.AS_ASKED)
            asked = self._streamed(self._anatomy, ExperimentKind.AS_ASKED, PlanChange())
            self._asked = list(asked.samples)
            self._emit(asked)

    def _resident(self) -> None:
        self._tell_of(ExperimentKind.RESIDENT)
        step = self._anatomy.session.step
        self._calls = self._timer.warm_up(step)
        first = self._timer.several(step, self._calls, BESIDE)
        rest = self._timer.blocks_of(median(first) * self._calls) - len(first)
        self._before = first + self._timer.several(step, self._calls, rest)
        self._step_s = median(self._before)
        self._emit(_timed(ExperimentKind.RESIDENT, PlanChange(), self._before))

    # Parts of a step, on the same session.

    def _parts(self) -> None:
        anatomy = self._anatomy
        self._part(ExperimentKind.FORWARD, anatomy.forward)
        if self._plan.mode is Mode.TRAINING:
            self._part(ExperimentKind.BACKWARD, anatomy.backward)
        if anatomy.asynchronous:
            self._attempt(ExperimentKind.ENQUEUE, PlanChange(), self._enqueued)
        if self._plan.feed is Feed.PIPELINE:
            self._attempt(ExperimentKind.PLACE, PlanChange(), lambda: self._timer.time(anatomy.place))
            self._attempt(ExperimentKind.PRODUCE, PlanChange(), lambda: self._timer.time(anatomy.make))

    def _part(self, kind: ExperimentKind, call: Call) -> None:
        self._attempt(kind, PlanChange(), lambda: self._in_turn(call))

    def _in_turn(self, call: Call) -> list[float]:
        """Time a call in turn with the whole step."""
        timer, step = self._timer, self._anatomy.session.step
        calls = timer.warm_up(call)
        found: list[float] = []
        steps: list[float] = []
        for _ in range(timer.blocks_of(self._step_s * self._calls)):
            found += timer.several(call, calls, 1)
            steps += timer.several(step, self._calls, 1)
        self._before = steps
        return found

    def _enqueued(self) -> list[float]:
        """Return the host's time per step, by how many were enqueued at once: of the number with the least.

        Waiting before adds a little to each of few steps, and a full queue much to each of many.
        """
        session = self._anatomy.session
        best: list[float] = []
        for steps in ENQUEUED:
            times: list[float] = []
            until = time.perf_counter() + self._options.seconds / 2
            while len(times) < ENQUEUE_TIMES and (len(times) < BESIDE or time.perf_counter() < until):
                session.synchronize()
                begin = time.perf_counter()
                for _ in range(steps):
                    session.step()
                times.append((time.perf_counter() - begin) / steps)
            session.synchronize()
            if not best or median(times) < median(best):
                best = times
            if self._step_s * steps * ENQUEUE_TIMES > self._options.seconds:
                break
        return best

    def _threads(self) -> None:
        cores, now = usable_cores(limits()) or 1, self._side.threads()
        if self._anatomy.asynchronous or now is None:
            return
        wanted = {1, max(1, cores // 2), cores, max(1, now // 2)}
        if now > cores:
            wanted.add(2 * cores)
        for count in sorted(wanted - {now}):
            change = PlanChange(settings={"threads": count})
            self._attempt(ExperimentKind.THREADS, change, partial(self._with_threads, count, now))

    def _with_threads(self, count: int, now: int) -> list[float]:
        self._require_steps(3 + BESIDE)
        timer, step, side = self._timer, self._anatomy.session.step, self._side
        found: list[float] = []
        before: list[float] = []
        try:
            side.set_threads(count)
            calls = timer.warm_up(step)
            longest_s = max(self._step_s * self._calls, timer.block(step, calls) * calls)
            for _ in range(timer.blocks_of(longest_s)):
                side.set_threads(count)
                step()  # the threads are started, or stopped, in the first step after the change
                found += timer.several(step, calls, 1)
                side.set_threads(now)
                step()
                before += timer.several(step, self._calls, 1)
        finally:
            side.set_threads(now)
        self._before = before
        return found

    # Sessions of their own.

    def _settings(self) -> None:
        plan, anatomy = self._plan, self._anatomy
        if plan.mode is Mode.TRAINING:
            self._setting(ExperimentKind.FUSED, {"fused": True})
        if plan.settings.dtype in (Dtype.FLOAT32, Dtype.TF32):
            if anatomy.asynchronous:
                self._setting(ExperimentKind.DTYPE, {"dtype": Dtype.TF32})
            if not anatomy.asynchronous and "bf16" not in identify().features:
                change = PlanChange(settings={"dtype": Dtype.BFLOAT16})
                self._leave_out(ExperimentKind.DTYPE, change, "this processor has no bfloat16 arithmetic")
            else:
                self._setting(ExperimentKind.DTYPE, {"dtype": Dtype.BFLOAT16})
        self._setting(ExperimentKind.LAYOUT, {"channels_last": True})

    def _setting(self, kind: ExperimentKind, settings: Mapping[str, Scalar]) -> None:
        change = PlanChange(settings=dict(settings))
        if any(getattr(self._plan.settings, name) == value for name, value in settings.items()):
            return
        fixed = [self._side.unchanging[name] for name in settings if name in self._side.unchanging]
        if fixed:
            self._leave_out(kind, change, fixed[0])
            return
        self._attempt(kind, change, lambda: self._beside(change))

    def _batches(self) -> None:
        size = self._plan.params.get("batch_size")
        if not isinstance(size, int):
            self._leave_out(ExperimentKind.BATCH, PlanChange(), "this workload has no batch size")
            return
        if size > 1:
            self._batch(size // 2)
        last, factor = self._batch(size * 2), 2
        if not self._anatomy.asynchronous:
            return
        while last is not None and last < GROWN * median(self._before) and factor < LARGEST_FACTOR:
            factor *= LADDER
            last = self._batch(size * factor)
        if last is not None and factor > 2 and last >= GROWN * median(self._before):
            # The batch before may be one that the host still limits: a line needs two points that it does not.
            self._batch(size * factor * 2)

    def _batch(self, size: int) -> float | None:
        change = PlanChange(params={"batch_size": size})
        factor = size / self._plan.samples_per_step

        def measure() -> list[float]:
            self._require_memory(factor)
            if factor > 2:  # the session that was opened last had a smaller batch
                self._require_time(self._opening_s * LADDER, f"a batch of {size} takes too long to make")
            return self._beside(change, longer=max(1.0, factor if factor <= 2 else 1.0))

        return self._attempt(ExperimentKind.BATCH, change, measure)

    def _beside(self, change: PlanChange, *, longer: float = 1.0) -> list[float]:
        """Time the steps of a changed plan, and the baseline's before and after."""
        self._require_steps(STEPS_OF_A_SESSION * longer)
        step = self._anatomy.session.step
        before = self._before[-BESIDE:]
        with self._opened(change) as other:
            found = self._timer_of(other).time(other.session.step)
        del other
        self._release()
        step()  # what it needs is no longer in the caches, nor its memory in the allocator's
        after = self._timer.several(step, self._calls, 1 if self._step_s > self._options.seconds else BESIDE)
        self._before = before + after
        return found

    @contextmanager
    def _opened(self, change: PlanChange) -> Iterator[Anatomy]:
        """Open a session of a changed plan, and take its first step. The baseline must not run until it is closed."""
        plan = change.applied(self._plan)
        began = time.perf_counter()
        with self._side.open(plan, self._load(plan)) as other:
            self._opening_s = time.perf_counter() - began
            other.session.step()
            other.session.synchronize()
            other.session.settle()
            yield other

    # Loaders.

    def _loaders(self) -> None:
        loader = self._plan.loader or Loader()
        cores = usable_cores(limits()) or 1
        waits: float | None = None
        for workers in WORKERS:
            # Each process makes batches on one core, or waits for a disk; more than two for each core gain nothing.
            if workers == loader.workers or workers > 2 * cores or (waits is not None and waits < LITTLE_WAIT):
                continue
            ahead = 0 if workers == 0 else max(Loader().prefetch, loader.prefetch)
            found = self._loader({"workers": workers, "prefetch": ahead})
            if found is not None and found.seconds and found.waited_s is not None and workers > loader.workers:
                waits = found.waited_s / found.seconds
        if loader.workers:
            self._loader({"prefetch": 4 * max(1, loader.prefetch)})

    def _loader(self, loader: dict[str, Scalar]) -> Experiment | None:
        change = PlanChange(loader=loader)
        self._tell_of(ExperimentKind.LOADER, change)
        found, reason = None, ""
        try:
            self._require_steps(STEPS_OF_A_SESSION)
            with self._opened(change) as other:
                found = self._streamed(other, ExperimentKind.LOADER, change)
            del other
        except Exception as error:  # noqa: BLE001  whatever a framework throws is why this can't be done
            reason = self._reason(error)
        self._release()
        if found is None:
            self._leave_out(ExperimentKind.LOADER, change, reason)
            return None
        baseline = self._streamed(self._anatomy, ExperimentKind.AS_ASKED, PlanChange())
        found = msgspec.structs.replace(found, baseline_s=median([*self._asked, *baseline.samples]))
        self._asked = list(baseline.samples)
        self._emit(found)
        return found

    def _streamed(self, anatomy: Anatomy, kind: ExperimentKind, change: PlanChange) -> Experiment:
        """Time the whole step with batches from the session's loader, and how long it waits for them."""
        session, timer = anatomy.session, self._timer_of(anatomy)
        loader = change.applied(self._plan).loader or Loader()
        waits: list[float] = []
        session.feeder.stream(True)
        try:
            # What its workers made ahead while nobody asked would make the first blocks faster than the others.
            calls = timer.warm_up(session.step, at_least=2 * max(1, loader.workers) * max(1, loader.prefetch))
            samples: list[float] = []
            while len(samples) < BESIDE or len(samples) < timer.blocks_of(samples[0] * calls):
                before_s = session.feeder.waited_s
                samples += timer.several(session.step, calls, 1)
                waits.append((session.feeder.waited_s - before_s) / calls)
        finally:
            session.feeder.stream(False)
        return msgspec.structs.replace(_timed(kind, change, samples), waited_s=median(waits))

    # What is counted and profiled.

    def _count(self) -> None:
        self._tell("explain: counting work", None, self._step_s)
        self._write(Counted(work=self._or_absent(self._anatomy.work)))

    def _profile(self) -> None:
        step_s = self._step_s
        steps = max(1, min(PROFILED_STEPS, int(self._options.seconds / max(step_s, 1e-9))))
        if self._options.profile:
            self._tell("explain: profile", None, step_s)
            self._write(Profiled(profile=self._or_absent(lambda: self._anatomy.profile(steps))))
        if self._options.trace:
            self._tell("explain: trace", None, step_s)
            try:
                self._anatomy.trace(Path(self._options.trace), steps)
            except Exception as error:  # noqa: BLE001  whatever it is, the experiments are done
                self.notes.append(f"No trace was written: {self._reason(error)}.")

    def _or_absent(self, ask: Callable[[], T]) -> T | Absent:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001  whatever a framework throws is why this can't be told
            return Absent(reason=self._reason(error))
        finally:
            self._release()

    def _syncs(self) -> None:
        """Find the calls inside a step that wait for the device, with the hooks that follow a watched script."""
        if not self._anatomy.asynchronous:
            return
        steps = max(BESIDE, min(MOST_SYNCED_STEPS, int(self._options.seconds / max(self._step_s, 1e-9))))
        found: list[SyncSeen] = []

        def measure() -> list[float]:
            anatomy = self._anatomy
            found.extend(anatomy.syncs(steps) if isinstance(anatomy, SelfMeasured) else _waits_of(anatomy, steps))
            return [sum(sync.seconds for sync in found)]

        self._attempt(ExperimentKind.SYNCS, PlanChange(), measure)
        for sync in sorted(found, key=lambda sync: -sync.seconds):
            self._write(sync)

    def _ceiling(self) -> None:
        self._tell("explain: ceiling", None, self._step_s)
        anatomy = self._anatomy
        if isinstance(anatomy, SelfMeasured):
            self._write(anatomy.ceiling())
        else:
            placed_on = anatomy.session.placement.device
            self._write(measure_ceiling(self._side, self._plan, placed_on, self._timer_of))
        self._release()

    # How an experiment is made.

    def _attempt(self, kind: ExperimentKind, change: PlanChange, measure: Callable[[], list[float]]) -> float | None:
        """Make an experiment and tell of it; return its seconds, or None where it could not be made."""
        self._tell_of(kind, change)
        samples: list[float] = []
        reason = ""
        try:
            samples = measure()
        except Exception as error:  # noqa: BLE001  whatever a framework throws is why this can't be done
            reason = self._reason(error)
        if not samples:
            # Only now: until its handler ends, an error holds what its frames held.
            self._release()
            self._leave_out(kind, change, reason)
            return None
        self._emit(msgspec.structs.replace(_timed(kind, change, samples), baseline_s=median(self._before)))
        return median(samples)

    def _leave_out(self, kind: ExperimentKind, change: PlanChange, reason: str) -> None:
        self._emit(Experiment(kind=kind, change=change, seconds=None, absent=reason))

    def _emit(self, experiment: Experiment) -> None:
        self._write(Tried(experiment=experiment))

    def _reason(self, error: Exception) -> str:
        if isinstance(error, MetalmarkError):
            return error.message.rstrip(".")
        if isinstance(error, MemoryError) or self._side.is_out_of_memory(error):
            return "out of memory"
        return in_one_line(error)

    def _release(self) -> None:
        gc.collect()
        self._side.free_memory()

    def _require_steps(self, steps: float) -> None:
        asked = f"--seconds {self._options.seconds:g}"
        self._require_time(steps * self._step_s, f"a step takes {self._step_s:.2g} s; {asked} allows no more")

    def _require_time(self, seconds: float, otherwise: str) -> None:
        if seconds > AFFORDED * self._options.seconds:
            raise TooLongError(otherwise)

    def _require_memory(self, factor: float) -> None:
        """Refuse a batch that would fill memory which the device shares with the host: the machine would swap."""
        memory = self._anatomy.session.memory()
        used = memory.driver_bytes if isinstance(memory.driver_bytes, int) else memory.live_bytes
        if factor <= 2 or not isinstance(used, int) or isinstance(memory.peak_bytes, int):
            return
        if used * factor > HALF_OF_MEMORY * memory_bytes(limits()):
            raise UnsupportedError(f"it may need {used * factor / 1e9:.0f} GB, which is too much for this machine")

    def _timer_of(self, anatomy: Anatomy) -> BlockTimer:
        options = self._options
        return BlockTimer(anatomy.session.synchronize, seconds=options.seconds, blocks=options.blocks)

    def _tell_of(self, kind: ExperimentKind, change: PlanChange | None = None) -> None:
        given = change or PlanChange()
        values = {**given.settings, **given.loader, **given.params}
        shown = ", ".join(
            f"{name.replace('_', ' ').removesuffix(' size')} {word(value)}" for name, value in values.items()
        )
        self._tell(f"explain: {shown or kind.value}", None, self._step_s or None)


def _timed(kind: ExperimentKind, change: PlanChange, samples: list[float]) -> Experiment:
    return Experiment(
        kind=kind, change=change, seconds=median(samples), error_s=error_of(samples), samples=tuple(samples)
    )


def _waits_of(anatomy: Anatomy, steps: int) -> list[SyncSeen]:
    """Do some steps with the hooks that follow a watched script, and return the calls that waited for the device."""
    seen: list[dict[str, Any]] = []
    session = anatomy.session
    recorder = agent_module("recorder").Recorder(seen.append)
    session.synchronize()
    undo = agent_module("install").hook_into(recorder)
    try:
        for _ in range(steps):
            session.step()
    finally:
        undo()
    session.synchronize()
    recorder.flush()
    return [
        SyncSeen(where=where, call=call, count=round(count / steps), seconds=seconds / steps)
        for where, call, count, seconds in seen[-1]["totals"]["syncs"]
    ]
