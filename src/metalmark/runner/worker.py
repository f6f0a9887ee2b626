"""The worker process: one cell, one framework, one outcome file. `python -m metalmark.runner.worker JOB OUTCOME`."""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from metalmark.backends.base import Backend
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.ranks import ONE, Ranks
from metalmark.downloads import listening
from metalmark.errors import MetalmarkError, UnsupportedError, WrongResultError
from metalmark.feeds.share import for_all, local_rank, share_here
from metalmark.feeds.source import with_data
from metalmark.machine.durable import write_struct
from metalmark.model.codec import read_json
from metalmark.model.measurement import Completed, Phases
from metalmark.model.plan import Feed, Mode, Plan
from metalmark.model.run import Failed, FailureKind
from metalmark.model.workload import Workload
from metalmark.runner.ask import in_one_line, traceback_of
from metalmark.runner.communication import world_times
from metalmark.runner.events import (
    LIFELINE_FD,
    PROGRESS_FD,
    RANKS_FOLDER,
    Job,
    Progress,
    RankReport,
    WorkerReport,
    rank_report_path,
)
from metalmark.runner.evidence import Evidence
from metalmark.runner.loop import Clock
from metalmark.runner.world import PROGRESS
from metalmark.scrub import printable, scrub
from metalmark.workloads.catalog import load

PROGRESS_EVERY_S = 0.2
PR_SET_PDEATHSIG = 1
"""Of <sys/prctl.h>."""


class ProgressPipe:
    """Writes progress lines to the parent's pipe, at most five per second, and keeps the moment each phase began."""

    def __init__(self, origin_s: float) -> None:
        self._origin_s = origin_s
        self._fd = _progress_end()
        self._wrote_s = 0.0
        self.phase = "start"
        self.began: dict[str, float] = {}

    def __call__(self, phase: str, done: float | None = None, step_s: float | None = None) -> None:
        now = time.monotonic() - self._origin_s
        new = phase != self.phase
        if new:
            self.phase = phase
            self.began[phase] = max(now, 0.0)
        if self._fd >= 0 and (new or now - self._wrote_s >= PROGRESS_EVERY_S):
            self._wrote_s = now
            self._write(Progress(phase=phase, at_s=now, done=done, step_s=step_s))

    def _write(self, progress: Progress) -> None:
        try:
            os.write(self._fd, msgspec.json.encode(progress) + b"\n")
        except OSError:  # the parent is gone: nobody will read the outcome either
            os._exit(3)


def _progress_end() -> int:
    """Return the end of the pipe to the parent; -1 where there is none, and in all but the first of several processes
    on a machine."""
    folder = os.environ.get(RANKS_FOLDER)
    if folder is None:
        return int(os.environ.get(PROGRESS_FD, "-1"))
    return os.open(Path(folder) / PROGRESS, os.O_WRONLY) if local_rank() == 0 else -1


def main(job_path: str, outcome_path: str) -> None:
    die_with_parent()
    job = read_json(Path(job_path).read_bytes(), Job, source=job_path)
    tell = ProgressPipe(job.spawned_at_s)
    tell("import")
    backend: Backend | None = None
    versions: dict[str, str] = {}
    try:
        backend = FRAMEWORKS[job.plan.framework].backend()
        # Before anything else is asked of the framework: some can't be joined later.
        ranks = FRAMEWORKS[job.plan.framework].join(job.plan)
        versions = backend.probe().versions
        with listening(lambda share: tell("download", share)):
            outcome: Completed | Failed = run(job, backend, tell, ranks)
        ranks.leave()
    except BaseException as error:  # noqa: BLE001  whatever a framework throws is this cell's outcome
        outcome = describe(error, backend, tell.phase)
    report_end(job.plan, Path(outcome_path), WorkerReport(outcome=outcome, versions=versions), outcome)


def report_end(plan: Plan, outcome_path: Path, report: msgspec.Struct, end: object) -> None:
    """Write what a worker came to. Of several processes the first writes it, each says how it ended itself, and one
    that failed says so by its exit code, so that its launcher ends the others."""
    share = share_here(plan)
    failure = end if isinstance(end, Failed) else None
    if share is not None:
        # Before the others can see that it is gone: the first to fail is the one that says so first.
        mine = RankReport(number=share.number, at_s=time.monotonic(), failure=failure)
        write_struct(rank_report_path(outcome_path.parent, share.number), mine)
    if share is None or share.number == 0:
        write_struct(outcome_path, report)
    if share is not None and failure is not None:
        sys.stdout.flush()
        os._exit(1)  # a framework that waits for the others while it shuts down would hang


def run(job: Job, backend: Backend, tell: ProgressPipe, ranks: Ranks = ONE) -> Completed:
    plan = for_all(here(job.plan, job.paths))
    tell("build")
    workload, data = with_data(load(plan.workload, source=job.paths.get(plan.workload, "")), plan)
    with backend.open(plan, workload) as session:
        streams = plan.feed is Feed.PIPELINE
        clock = Clock(session, plan.budget, origin_s=job.spawned_at_s, tell=tell, streams=streams, ranks=ranks)
        evidence = Evidence(session, clock, plan.mode, plan.proof, ranks=ranks)
        tell("first step")
        with explained(workload, backend, session.batch_shown):
            first_step_s = clock.first_step()
        evidence.after_first_step()
        # The proof needs a fixed batch, so the first and the last steps are on the ring; the clock sees the loader.
        session.feeder.stream(streams)
        try:
            measurement = clock.measure(first_step_s)
        finally:
            session.feeder.stream(False)
        tell("proof")
        memory = session.memory()
        with session.observed() as idle_settings:
            proof = evidence.conclude()
        began = dict(tell.began)
        # The last of all: steps without an exchange leave each process with other weights.
        world = world_times(session, clock, ranks, measurement) if ranks.count > 1 else msgspec.UNSET
        flops = workload.flops(plan.params) if workload.flops else None
        if flops is not None and plan.mode is Mode.TRAINING:
            factor = workload.training_factor
            flops *= factor(plan.params) if callable(factor) else factor
        phases = Phases(
            import_s=began["import"], build_s=began["build"], first_step_s=began["first step"],
            warmup_s=began["warm-up"], measure_s=began["measure"], end_s=began["proof"],
        )  # fmt: skip
        notes = (*session.notes, *(workload.notes(plan.params) if workload.notes is not None else ()))
        return Completed(
            placed_on=session.placement.device, device_name=session.placement.name, measurement=measurement,
            proof=proof, phases=phases, memory=memory, samples_per_step=plan.samples_per_step,
            parameters=session.parameters, trainable_parameters=session.trainable_parameters, data=data,
            flops_per_sample=flops, notes=notes, idle_settings=idle_settings,
            tokens_per_sample=workload.tokens(plan.params) if workload.tokens is not None else None, world=world,
        )  # fmt: skip


@contextmanager
def explained(workload: Workload, backend: Backend, batch_shown: str) -> Iterator[None]:
    """Turn what the parts of a user's own file raise, before anything is measured, into a sentence about them."""
    try:
        yield
    except MetalmarkError:
        raise
    except Exception as error:
        if not workload.origin or isinstance(error, MemoryError) or backend.is_out_of_memory(error):
            raise
        file = Path(workload.origin)
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
        where = f" in line {lines[-1].lineno} of {file.name} ({lines[-1].line})" if lines else ""
        raise UnsupportedError(
            f"The first step failed{where}: {in_one_line(error)}",
            hint=f"A batch has {batch_shown}: the model must take these inputs, and the loss these targets.",
        ) from error


def here(plan: Plan, paths: dict[str, str]) -> Plan:
    """Return the plan with the paths of the user's own files on this machine; the run keeps the plan without them."""
    params = {name: paths.get(value, value) if isinstance(value, str) else value for name, value in plan.params.items()}
    return msgspec.structs.replace(plan, params=params, data=paths.get(plan.data, plan.data))


def describe(error: BaseException, backend: Backend | None, phase: str) -> Failed:
    """Return an exception as data: it can't cross processes as itself."""
    if isinstance(error, WrongResultError):
        return Failed(kind=FailureKind.WRONG_RESULT, message=error.message, hint=error.hint, phase=phase)
    if isinstance(error, MetalmarkError):
        # Data or weights that are missing or damaged, too: the message says which file, and the hint what to do.
        message, hint = scrub(error.message), printable(error.hint)
        return Failed(kind=FailureKind.UNSUPPORTED, message=message, hint=hint, phase=phase)
    message, detail = in_one_line(error), traceback_of(error)
    if isinstance(error, MemoryError) or (backend is not None and backend.is_out_of_memory(error)):
        hint = "Use a smaller --batch-size."
        return Failed(kind=FailureKind.OUT_OF_MEMORY, message=message, hint=hint, phase=phase, detail=detail)
    return Failed(kind=FailureKind.CRASHED, message=message, phase=phase, detail=detail)


def leave() -> None:
    """End this process at once, where it is alone and has none of its own to end: to take a framework apart, object by
    object, takes a second or more, and nobody needs it."""
    processes = sys.modules.get("multiprocessing")
    if RANKS_FOLDER in os.environ or (processes is not None and processes.active_children()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def die_with_parent() -> None:
    """Exit when the parent does, even by kill -9: a thread sleeps on a pipe that only the parent holds.

    It can't run while C code holds the interpreter. There the system ends us on Linux, and `machine.orphans` anywhere.
    """
    if sys.platform == "linux":
        # Sent when the thread ends that started us, which waits for us. A parent that has died before is seen below.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    fd = int(os.environ.get(LIFELINE_FD, "-1"))
    if fd < 0:
        return

    def wait() -> None:
        os.read(fd, 1)
        os._exit(3)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    leave()
