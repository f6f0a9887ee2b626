"""The parent's side of a training: spawn, sample, wait, and keep the record up to date on the disk."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import metalmark
from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.machine.steering import steering_variables
from metalmark.model.run import Failed, FailureKind, Software, Telemetry
from metalmark.model.sweep import now_utc
from metalmark.model.training import Ending, Epoch, TrainingRun, TrainingSession
from metalmark.runner.fallbacks import fallbacks
from metalmark.runner.job import Progress
from metalmark.runner.launch import Worker, attend, died
from metalmark.telemetry.sampler import Sampler
from metalmark.training import checkpoint
from metalmark.training.job import (
    LAST,
    Request,
    TrainingJob,
    TrainingProgress,
    TrainingReport,
    write_record,
    write_request,
)

UNFINISHED = Telemetry(hz=None, absent={"all": "this session was killed, or still runs"})

Event = TrainingRun | TrainingProgress
Listener = Callable[[Event], None]
"""Hears the record when a session begins and when it ends, and the worker's lines between: a display, a tracker."""


class TrainingWorker(Worker):
    module = "metalmark.training.worker"
    progress_type = TrainingProgress

    def __init__(self, request: Request, *, session: int, out: Path, folder: Path) -> None:
        self._request, self._session, self._out = request, session, out
        super().__init__(request.plan, repeat=0, paths=request.paths, folder=folder)

    def job(self, repeat: int, paths: dict[str, str]) -> msgspec.Struct:  # noqa: ARG002
        return TrainingJob(
            request=self._request, folder=str(self._out), session=self._session, spawned_at_s=self.spawned_at_s
        )


class Keeper:
    """Puts the record together as the worker's lines come, and writes it after each epoch."""

    def __init__(self, record: TrainingRun, folder: Path, listeners: Sequence[Listener]) -> None:
        self.record, self._folder, self._listeners = record, folder, listeners

    def hear(self, progress: Progress) -> None:
        assert isinstance(progress, TrainingProgress)
        if progress.setting is not None:
            self.change(setting=progress.setting)
        if progress.ended is not None:
            self.change(epochs=(*self.record.epochs, progress.ended))
        self._tell(progress)

    def change(self, **fields: object) -> None:
        self.record = msgspec.structs.replace(self.record, **fields)
        write_record(self._folder, self.record)

    def tell(self) -> None:
        self._tell(self.record)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


def train(
    request: Request,
    record: TrainingRun,
    folder: Path,
    *,
    listeners: Sequence[Listener] = (),
    on_sampler: Callable[[Sampler], None] = lambda _: None,
) -> TrainingRun:
    """One session in a fresh process. Ctrl-C stops the worker and makes the record `interrupted`."""
    number = len(record.sessions)
    keeper = Keeper(record, folder, listeners)
    write_request(folder, request)
    with tempfile.TemporaryDirectory(prefix="metalmark-") as scratch, kept_awake() as sleepy:
        worker = TrainingWorker(request, session=number, out=folder, folder=Path(scratch))
        session = TrainingSession(
            started_at=now_utc(),
            first_epoch=len(record.epochs) + 1,
            machine=identify(),
            software=Software(
                metalmark=metalmark.__version__,
                python=platform.python_version(),
                environment=steering_variables({**os.environ, **worker.variables}),
            ),
            telemetry=UNFINISHED,
        )
        keeper.change(goal=request.goal, ending=Ending.RUNNING, failure=None, sessions=(*record.sessions, session))
        keeper.tell()
        attended = attend(worker, request.hz, on_progress=keeper.hear, on_sampler=on_sampler)
        report = _read_report(worker.outcome_path)
        end: Ending | Failed
        if report is not None and (attended.gave_up is None or attended.gave_up.kind is FailureKind.TIMED_OUT):
            end = report.ending  # also of a framework that hangs while its process ends
        else:
            end = attended.gave_up or died(attended.code, worker.output_path, attended.oom_killed)
        setting = keeper.record.setting
        if setting is not None:
            said = [f"Ran on the CPU for want of a kernel: {name}" for name in fallbacks(worker.output_path)]
            said += filter(None, (attended.gap.note, sleepy))
            setting = msgspec.structs.replace(setting, notes=(*setting.notes, *said))
            session = msgspec.structs.replace(
                session, software=msgspec.structs.replace(session.software, versions=setting.versions)
            )
        keeper.change(
            ending=_ending(end),
            failure=end if isinstance(end, Failed) else None,
            setting=setting,
            memory=report.memory if report else None,
            sessions=(*record.sessions, msgspec.structs.replace(session, telemetry=attended.telemetry)),
        )
    keeper.tell()
    return keeper.record


def curve(folder: Path) -> tuple[Epoch, ...]:
    """The epochs that a resumed training begins with: those of its last checkpoint."""
    path = folder / LAST
    return checkpoint.load(path)[0].epochs if path.exists() else ()


def _ending(end: Ending | Failed) -> Ending:
    if not isinstance(end, Failed):
        return end
    return Ending.INTERRUPTED if end.kind is FailureKind.INTERRUPTED else Ending.FAILED


def _read_report(path: Path) -> TrainingReport | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainingReport)
    except msgspec.DecodeError:
        return None
