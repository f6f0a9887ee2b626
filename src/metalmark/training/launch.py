"""The parent's side of a training: spawn a worker, sample, wait, and keep the run up to date on the disk."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.machine.orphans import scratch_folder
from metalmark.model.run import Failed, FailureKind, Telemetry, now_utc
from metalmark.model.training import Ending, TrainingRun, TrainingSession
from metalmark.runner.events import Ended, Event, Listener, Started, TrainingProgress, tell_all
from metalmark.runner.launch import Worker, attend, died, fallbacks, node_failure, read_report
from metalmark.runner.world import Meeting
from metalmark.training.folder import Request, TrainingJob, TrainingReport, write_record, write_request

UNFINISHED = Telemetry(hz=None, absent={"all": "this session was killed, or still runs"})


class TrainingWorker(Worker):
    module = "metalmark.training.worker"
    progress_type = TrainingProgress

    def __init__(
        self, request: Request, *, session: int, out: Path, folder: Path, meeting: Meeting | None = None
    ) -> None:
        self._request, self._session, self._out = request, session, out
        super().__init__(request.plan, repeat=request.repeat, paths=request.paths, folder=folder, meeting=meeting)

    def job(self, repeat: int, paths: dict[str, str]) -> msgspec.Struct:  # noqa: ARG002
        return TrainingJob(
            request=self._request, folder=str(self._out), session=self._session, spawned_at_s=self.spawned_at_s
        )


class RunKeeper:
    """Puts the run together as the worker's lines come, and writes it after each epoch. Then it passes them on."""

    def __init__(self, run: TrainingRun, folder: Path, listeners: Sequence[Listener]) -> None:
        self.run, self._folder, self.tell = run, folder, tell_all(listeners)

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrainingProgress):
            if event.setting is not None:
                self.change(setting=event.setting)
            if event.ended is not None:
                self.change(epochs=(*self.run.epochs, event.ended))
        self.tell(event)

    def change(self, **fields: object) -> None:
        self.run = msgspec.structs.replace(self.run, **fields)
        write_record(self._folder, self.run)


def train(
    request: Request,
    run: TrainingRun,
    folder: Path,
    *,
    listeners: Sequence[Listener] = (),
    meeting: Meeting | None = None,
) -> TrainingRun:
    """Run one session in a fresh process. Ctrl-C stops the worker and makes the run `interrupted`. `meeting`: where the
    processes of several machines meet."""
    keeper = RunKeeper(run, folder, listeners)
    write_request(folder, request)
    with scratch_folder() as scratch, kept_awake() as sleepy:
        worker = TrainingWorker(request, session=len(run.sessions), out=folder, folder=scratch, meeting=meeting)
        session = TrainingSession(
            started_at=now_utc(),
            first_epoch=len(run.epochs) + 1,
            machine=identify(),
            software=worker.software(),
            telemetry=UNFINISHED,
        )
        keeper.change(goal=request.goal, ending=Ending.RUNNING, failure=None, sessions=(*run.sessions, session))
        keeper.tell(Started(id=run.id, plan=request.plan, cell=request.cell, repeat=request.repeat, run=keeper.run))
        attended = attend(worker, request.hz, keeper)
        report = read_report(worker.outcome_path, TrainingReport)
        end: Ending | Failed
        if report is not None and (attended.gave_up is None or attended.gave_up.kind is FailureKind.TIMED_OUT):
            # Also of a framework that hangs while its process ends.
            end = report.ending if isinstance(report, TrainingReport) else report
        else:
            end = attended.gave_up or died(attended.code, worker.output_path, attended.oom_killed)
        if attended.gave_up is None and isinstance(end, Failed):
            end = worker.first_failure(end, oom_killed=attended.oom_killed)
        ending = end if isinstance(end, Ending) else Ending.FAILED
        if isinstance(end, Failed) and end.kind is FailureKind.INTERRUPTED:
            ending = Ending.INTERRUPTED
        setting = keeper.run.setting
        if setting is not None:
            notes = [f"Ran on the CPU for want of a kernel: {name}" for name in fallbacks(worker.output_path)]
            notes += filter(None, (attended.gap.note, sleepy))
            setting = msgspec.structs.replace(setting, notes=(*setting.notes, *notes))
            session = msgspec.structs.replace(session, software=worker.software(setting.versions))
        keeper.change(
            ending=ending,
            failure=end if isinstance(end, Failed) else None,
            setting=setting,
            memory=report.memory if isinstance(report, TrainingReport) else None,
            sessions=(*run.sessions, msgspec.structs.replace(session, telemetry=attended.telemetry)),
        )
    keeper.tell(Ended(run=keeper.run))
    return keeper.run


def take_part(request: Request, meeting: Meeting, *, listeners: Sequence[Listener] = ()) -> Failed | None:
    """Train together with other machines, the first of which keeps the run. Return why it failed here."""
    with scratch_folder() as scratch, kept_awake():
        worker = TrainingWorker(request, session=0, out=scratch, folder=scratch, meeting=meeting)
        return node_failure(worker, attend(worker, None, tell_all(listeners)))
