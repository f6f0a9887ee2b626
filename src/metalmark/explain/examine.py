"""The parent's side of an explanation: one worker makes the experiments, and what it wrote is read."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metalmark.explain.job import LINES, Done, ExplainJob, ExplainOptions, ExplainReport, Line, Opened, Tried
from metalmark.machine.awake import kept_awake
from metalmark.machine.orphans import scratch_folder
from metalmark.model.plan import Plan
from metalmark.model.run import Failed, FailureKind, Software, Telemetry
from metalmark.runner.events import Listener, tell_all
from metalmark.runner.launch import Worker, attend, died, fallbacks, read_report
from metalmark.runner.lines import read_json_lines

HZ = 5.0


class ExplainWorker(Worker):
    module = "metalmark.explain.worker"

    def __init__(self, plan: Plan, options: ExplainOptions, *, paths: dict[str, str], folder: Path) -> None:
        self._options, self._folder = options, folder
        super().__init__(plan, repeat=0, paths=paths, folder=folder)

    def job(self, repeat: int, paths: dict[str, str]) -> msgspec.Struct:  # noqa: ARG002
        return ExplainJob(
            plan=self.plan,
            options=self._options,
            folder=str(self._folder),
            paths=paths,
            spawned_at_s=self.spawned_at_s,
        )


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What the experiments on a plan came to."""

    lines: tuple[Line, ...]
    """All that were written, also where the worker did not come to its end."""
    software: Software
    telemetry: Telemetry
    fallbacks: tuple[str, ...] = ()
    """Operations that, by what the worker printed, ran on the CPU for want of a kernel."""
    failure: Failed | None = None
    note: str = ""
    """What a reader should know about the machine's clock, or about the trace; mostly empty."""
    elapsed_s: float

    @property
    def interrupted(self) -> bool:
        return self.failure is not None and self.failure.kind is FailureKind.INTERRUPTED

    @property
    def complete(self) -> bool:
        """Whether every experiment was made, or has a reason why not."""
        return any(isinstance(line, Done) for line in self.lines)

    @property
    def is_told(self) -> bool:
        """Whether the step itself was timed: then something is explained, however the worker ended."""
        return any(isinstance(line, Tried) and line.experiment.seconds for line in self.lines)

    @property
    def opened(self) -> Opened | None:
        return next((line for line in self.lines if isinstance(line, Opened)), None)


def examine(
    plan: Plan,
    options: ExplainOptions,
    paths: dict[str, str] | None = None,
    listeners: Sequence[Listener] = (),
    *,
    hz: float | None = HZ,
) -> Examination:
    """Make the experiments on a plan in a fresh process. Ctrl-C stops it, and keeps the experiments that are done.
    `hz`: how often sensors are read; None: not at all."""
    begin = time.monotonic()
    with scratch_folder() as folder, kept_awake():
        worker = ExplainWorker(plan, options, paths=paths or {}, folder=folder)
        end = attend(worker, hz, tell_all(listeners))
        report = read_report(worker.outcome_path, ExplainReport)
        failure, versions, notes = end.gave_up, {}, [end.gap.note]
        if isinstance(report, ExplainReport):
            versions = report.versions
            notes += report.notes
            if failure is None or failure.kind is FailureKind.TIMED_OUT:
                failure = report.failure
        elif failure is None:
            failure = report if isinstance(report, Failed) else died(end.code, worker.output_path, end.oom_killed)
        return Examination(
            lines=read_json_lines(folder / LINES, Line),
            software=worker.software(versions),
            telemetry=end.telemetry,
            fallbacks=fallbacks(worker.output_path),
            failure=failure,
            note=" ".join(filter(None, notes)),
            elapsed_s=time.monotonic() - begin,
        )
