"""The parent's side of one cell: spawn a worker, sample, wait without spinning, classify how it ended."""

import os
import platform
import re
import selectors
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

import metalmark
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import FormatError
from metalmark.machine.durable import read_whole, write_struct
from metalmark.machine.orphans import scratch_folder
from metalmark.machine.processes import signal_group, wait_for_exit
from metalmark.machine.sleep import SleepGap, SleepWatch
from metalmark.machine.steering import steering_variables
from metalmark.model.codec import read_json
from metalmark.model.measurement import Completed
from metalmark.model.plan import Plan, World
from metalmark.model.run import Failed, FailureKind, Software, Telemetry
from metalmark.runner import spares
from metalmark.runner.ask import how_it_ended, signal_name, tail
from metalmark.runner.child import Child
from metalmark.runner.events import Job, Listener, Progress, Sampled, SpareJob, WorkerReport, tell_all
from metalmark.runner.world import Meeting, first_failure, start_alone, start_ranks
from metalmark.scrub import scrub
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import sensors_of

GRACE_S = 2.0
REPEAT = "METALMARK_REPEAT"
OOM_EVENTS = Path("/sys/fs/cgroup/memory.events")
OOM_SIGNS = ("kIOGPUCommandBufferCallbackErrorOutOfMemory", "Insufficient Memory")
"""What Metal says when a command did not fit. MLX meets it in a callback that nothing can catch, and aborts."""
SMALLER = "Use a smaller --batch-size."
MOST_OUTPUT_BYTES = 4 << 20

T = TypeVar("T", bound=msgspec.Struct)

# PyTorch prints it with PYTORCH_ENABLE_MPS_FALLBACK=1, once per process: of several operations it names the first.
# Vendors' backends print the same sentence with their own names, some of them for each operation.
_FALLBACK = re.compile(
    r"The operator '([\w:.]{1,100})' is not currently (?:supported|implemented) on the \w+ backend "
    r"and will fall back to run on the CPU"
)


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one cell came to, as the parent saw it."""

    outcome: Completed | Failed
    software: Software
    telemetry: Telemetry
    note: str = ""
    """What a reader should know about the machine's clock; mostly empty."""


class Attended(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's process ended, whether it measured or trained."""

    gave_up: Failed | None
    """Why it was stopped; None if it ended by itself."""
    code: int
    oom_killed: bool
    telemetry: Telemetry
    gap: SleepGap
    """Time that passed without the clock by which everything is timed."""


class Worker:
    """One child process that has a job, and how it ends."""

    module = "metalmark.runner.worker"
    progress_type: type[Progress] = Progress

    def __init__(
        self, plan: Plan, *, repeat: int, paths: dict[str, str], folder: Path, meeting: Meeting | None = None
    ) -> None:
        """`meeting`: of ranks on several machines."""
        self.plan, self.folder = plan, folder
        self.outcome_path, self.output_path = folder / "outcome.json", folder / "output.txt"
        job_path = folder / "job.json"
        usual, own = FRAMEWORKS[plan.framework].environment(plan.settings), {REPEAT: str(repeat)}
        spare = spares.take(plan)
        self.spawned_at_s, self.sleep = time.monotonic(), SleepWatch()
        write_struct(job_path, self.job(repeat, paths))
        self._ended, self._ended_writer = os.pipe()
        if spare is None:
            module = [self.module, str(job_path), str(self.outcome_path)]
            several = isinstance(plan.world, World)
            start = start_ranks(plan, meeting, module, folder) if several else start_alone(module)
            self.variables = {**usual, **own, **start.variables}
            self._child = Child(start, variables=self.variables, output=self.output_path)
        else:
            self.variables, self._child = {**usual, **own}, spare
            job = SpareJob(
                module=self.module, job=str(job_path), outcome=str(self.outcome_path), output=str(self.output_path),
                variables=own,
            )  # fmt: skip
            spares.begin(spare, job)
        self.pid = self._child.pid
        self._lost: Failed | None = None
        self._waiter = threading.Thread(target=self._wait, daemon=True, name="waiter")
        self._waiter.start()

    def job(self, repeat: int, paths: dict[str, str]) -> msgspec.Struct:
        return Job(plan=self.plan, repeat=repeat, paths=paths, spawned_at_s=self.spawned_at_s)

    def software(self, versions: dict[str, str] | None = None) -> Software:
        """Return what the worker runs with; the versions of packages are what it says itself."""
        environment = steering_variables({**os.environ, **self.variables})
        python = platform.python_version()
        return Software(
            metalmark=metalmark.__version__, python=python, versions=versions or {}, environment=environment
        )

    def watch(self, tell: Listener) -> Failed | None:
        """Sleep until the worker ends, telling its progress. Return why it was given up, or None."""
        budget = self.plan.budget
        heard_s, phase, rest = time.monotonic(), "start", b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.progress, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now - self.spawned_at_s >= budget.timeout_s:
                    return _timed_out(f"Not done after {budget.timeout_s:g} s", phase, "--timeout")
                if now - heard_s >= budget.stall_s:
                    return _timed_out(f"No sign of life for {budget.stall_s:g} s", phase, "--stall")
                patience_s = min(self.spawned_at_s + budget.timeout_s, heard_s + budget.stall_s) - now
                for key, _ in selector.select(patience_s):
                    if key.fd == self._ended:
                        return self._lost
                    data = os.read(self._child.progress, 65536)
                    if not data:
                        selector.unregister(self._child.progress)
                        continue
                    heard_s = time.monotonic()
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        try:
                            progress = read_json(line, self.progress_type, source="a line of the worker")
                        except FormatError:
                            continue  # a library that writes to every open file; the outcome does not need this pipe
                        phase = progress.phase
                        tell(progress)

    def stop(self) -> int:
        """End the worker and whatever it started, by its own process group. Return its exit status."""
        for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
            if not self._waiter.is_alive():
                break
            signal_group(self.pid, number)
            self._waiter.join(wait_s)
        # The worker is not reaped yet, so its group can't be anyone else's.
        signal_group(self.pid, signal.SIGKILL)
        return self._child.collect()

    def first_failure(self, seen: Failed, *, oom_killed: bool) -> Failed:
        """Return why the worker failed: of several processes, why the first did that failed."""
        if not isinstance(self.plan.world, World):
            return seen
        return first_failure(self.plan, self.folder, self.output_path, seen, oom_killed=oom_killed)

    def close(self) -> None:
        self._child.close()
        for fd in (self._ended, self._ended_writer):
            os.close(fd)

    def _wait(self) -> None:
        try:
            wait_for_exit(self.pid)
        except Exception as error:  # noqa: BLE001  whatever it is, it is why this cell has no figure
            self._lost = Failed(
                kind=FailureKind.CRASHED,
                message=scrub(f"The worker could not be waited for: {type(error).__name__}: {error}"),
                hint="This is a defect of Metalmark on this system. Please report it, with the file that "
                "`metalmark doctor --bundle FILE` writes.",
            )
        finally:
            # However this thread ends, `watch` must be told: else it would wait for the whole --stall.
            os.write(self._ended_writer, b"!")


def attend(worker: Worker, hz: float | None, tell: Listener) -> Attended:
    """Sample while the worker runs, and leave nothing of it behind. Ctrl-C stops it and is `interrupted`."""
    oom_kills = oom_kill_count()
    sampler = Sampler(sensors_of(worker.plan, worker.pid) if hz else [], hz, worker.spawned_at_s)
    sampler.start()
    tell(Sampled(sampler=sampler))
    gave_up: Failed | None
    try:
        gave_up = worker.watch(tell)
    except KeyboardInterrupt as stop:
        gave_up = Failed(kind=FailureKind.INTERRUPTED, message=f"Stopped by {str(stop) or 'Ctrl-C'}.")
    finally:
        telemetry = sampler.stop(GRACE_S)
        gap = worker.sleep.gap()
        code = worker.stop()
        worker.close()
    return Attended(
        gave_up=gave_up,
        code=code,
        oom_killed=oom_kill_count() > oom_kills,
        telemetry=msgspec.structs.replace(telemetry, slept_s=gap.slept_s, wall_gap_s=gap.wall_gap_s),
        gap=gap,
    )


def run_cell(
    plan: Plan,
    *,
    repeat: int = 0,
    paths: dict[str, str] | None = None,
    hz: float | None = 5.0,
    listeners: Sequence[Listener] = (),
    meeting: Meeting | None = None,
) -> CellResult:
    """Measure one Plan in a fresh process. Ctrl-C stops the worker and makes the cell `interrupted`. `meeting`: where
    the processes of several machines meet; those of this one's own meet here."""
    with scratch_folder() as folder:
        worker = Worker(plan, repeat=repeat, paths=paths or {}, folder=folder, meeting=meeting)
        end = attend(worker, hz, tell_all(listeners))
        report: WorkerReport | Failed | None = end.gave_up
        if end.gave_up is None or end.gave_up.kind is FailureKind.TIMED_OUT:
            # A framework that hangs while its process ends has measured all the same.
            report = read_report(worker.outcome_path, WorkerReport) or report
        if isinstance(report, WorkerReport):
            outcome, versions = report.outcome, report.versions
        else:
            outcome, versions = report or died(end.code, worker.output_path, end.oom_killed), {}
        if end.gave_up is None and isinstance(outcome, Failed):
            outcome = worker.first_failure(outcome, oom_killed=end.oom_killed)
        if isinstance(outcome, Completed):
            outcome = msgspec.structs.replace(outcome, fallbacks=fallbacks(worker.output_path))
        software = worker.software(versions)
        return CellResult(outcome=outcome, software=software, telemetry=end.telemetry, note=end.gap.note)


def run_node(
    plan: Plan, meeting: Meeting, *, paths: dict[str, str], listeners: Sequence[Listener] = ()
) -> Failed | None:
    """Measure one Plan together with other machines, the first of which has the outcome. Return why it failed here."""
    with scratch_folder() as folder:
        worker = Worker(plan, repeat=0, paths=paths, folder=folder, meeting=meeting)
        return node_failure(worker, attend(worker, None, tell_all(listeners)))


def node_failure(worker: Worker, end: Attended) -> Failed | None:
    """Return why the processes of a machine that has no outcome failed; None where they did not."""
    if end.gave_up is not None:
        return end.gave_up
    if not end.code:
        return None
    seen = died(end.code, worker.output_path, end.oom_killed)
    return worker.first_failure(seen, oom_killed=end.oom_killed)


def fallbacks(output: Path) -> tuple[str, ...]:
    """Return the operations that, by what a worker printed, its framework ran on the CPU for want of a kernel."""
    try:
        with output.open("rb") as file:
            text = file.read(MOST_OUTPUT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(dict.fromkeys(_FALLBACK.findall(text)))


def read_report(path: Path, kind: type[T]) -> T | Failed | None:
    """Return what a worker left when it ended; None where it left nothing."""
    if not path.exists():
        return None
    try:
        return read_json(read_whole(path), kind, source=path.name)
    except FormatError as error:
        return Failed(kind=FailureKind.CRASHED, message=f"The worker's outcome can't be read: {error.message}")
    except OSError as error:
        return Failed(kind=FailureKind.CRASHED, message=f"The worker's outcome can't be read: {error.strerror}.")


def died(code: int, output: Path, oom_killed: bool) -> Failed:
    detail = tail(output)
    if oom_killed:
        message = "The system ran out of memory and killed the worker."
        return Failed(kind=FailureKind.OUT_OF_MEMORY, message=message, hint=SMALLER, detail=detail)
    if code < 0 and any(sign in detail for sign in OOM_SIGNS):
        return Failed(
            kind=FailureKind.OUT_OF_MEMORY,
            message=f"The GPU ran out of memory, and the framework ended its process with {signal_name(-code)}.",
            hint=SMALLER,
            signal=signal_name(-code),
            detail=detail,
        )
    last = detail.splitlines()[-1][:300] if detail else ""
    hint = f"Its last line: {last}" if last else ""
    if code == -signal.SIGKILL:
        hint = "SIGKILL from outside is most often the system's out-of-memory killer: try a smaller --batch-size."
    return Failed(
        kind=FailureKind.CRASHED,
        message=f"The worker gave no outcome: {how_it_ended(code)}",
        hint=hint,
        signal=signal_name(-code) if code < 0 else None,
        detail=detail,
    )


def _timed_out(what: str, phase: str, option: str) -> Failed:
    return Failed(
        kind=FailureKind.TIMED_OUT,
        message=f"{what}, in the phase '{phase}': stopped.",
        hint=f"Give it longer with {option} SECONDS.",
        phase=phase,
    )


def oom_kill_count() -> int:
    """Return how often this container's memory limit has killed a process, where the system counts it."""
    try:
        counts = dict(line.split(maxsplit=1) for line in OOM_EVENTS.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
