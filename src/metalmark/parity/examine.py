"""The parent's side of a check: a worker for the reference, one for the candidate, and a verdict on their lines."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.machine.orphans import scratch_folder
from metalmark.model.parity import Checked, Compared, ParityRun
from metalmark.model.plan import Mode, Plan
from metalmark.model.run import Failed, FailureKind, Software, Telemetry, new_id, now_utc
from metalmark.parity.conventions import convention
from metalmark.parity.job import Case, Options, Repeating, Setup, SideJob, SideReport
from metalmark.parity.judge import curves_of, judge, variations
from metalmark.parity.lines import is_finished, read_lines
from metalmark.runner.events import Event, Listener, Progress, tell_all
from metalmark.runner.launch import Worker, attend, died, read_report

EVERYTHING = Options()
NO_TELEMETRY = Telemetry(hz=None, absent={"all": "a parity check measures no speed"})
CROSS_LAYERS = "Layers are compared within one framework only; between two, outputs, loss, gradients and updates are."


class SideWorker(Worker):
    module = "metalmark.parity.worker"

    def __init__(self, cases: Sequence[Case], *, is_reference: bool, paths: dict[str, str], folder: Path) -> None:
        self._cases, self._is_reference = tuple(cases), is_reference
        plan = cases[0].reference if is_reference else cases[0].plan
        super().__init__(plan, repeat=0, paths=paths, folder=folder)

    def job(self, repeat: int, paths: dict[str, str]) -> msgspec.Struct:  # noqa: ARG002
        return SideJob(cases=self._cases, is_reference=self._is_reference, paths=paths, spawned_at_s=self.spawned_at_s)


class SideEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a side's worker ended."""

    failure: Failed | None
    failed_case: int
    software: Software

    @property
    def interrupted(self) -> bool:
        return self.failure is not None and self.failure.kind is FailureKind.INTERRUPTED


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What a check came to."""

    outcome: Checked | Failed
    software: Software
    interrupted: bool = False


def examine(
    plan: Plan,
    reference: Plan,
    *,
    options: Options = EVERYTHING,
    paths: dict[str, str] | None = None,
    listeners: Sequence[Listener] = (),
) -> Examined:
    """Check one plan against a reference, in two fresh processes."""
    (found,) = examine_all([(plan, reference)], options=[options], paths=paths, listeners=listeners)
    return found


def examine_all(
    pairs: Sequence[tuple[Plan, Plan]],
    *,
    options: Sequence[Options],
    paths: dict[str, str] | None = None,
    listeners: Sequence[Listener] = (),
) -> list[Examined]:
    """Check several plans of one framework with the same variables of the environment, all in the same two processes.
    Those after one that ended a process are failures too."""
    begin = time.monotonic()
    with scratch_folder() as scratch, kept_awake():
        cases = [_case(scratch, number, pair, options[number]) for number, pair in enumerate(pairs)]
        first = _run_side(cases, scratch, is_reference=True, paths=paths or {}, listeners=listeners)
        able = cases[: first.failed_case] if first.failure is not None else cases
        second = None
        if able and not first.interrupted:
            second = _run_side(able, scratch, is_reference=False, paths=paths or {}, listeners=listeners)
        seconds = time.monotonic() - begin
        return [_examined(case, number, first, second, seconds / len(cases)) for number, case in enumerate(cases)]


def parity_run(plan: Plan, reference: Plan, examined: Examined, *, sweep: str, cell: int, started_at: str) -> ParityRun:
    return ParityRun(
        id=new_id(), started_at=started_at or now_utc(), sweep=sweep, cell=cell, plan=plan, reference=reference,
        machine=identify(), software=examined.software, outcome=examined.outcome, telemetry=NO_TELEMETRY,
    )  # fmt: skip


def _case(scratch: Path, number: int, pair: tuple[Plan, Plan], options: Options) -> Case:
    folder = scratch / f"case{number}"
    folder.mkdir()
    plan, reference = pair
    if plan.framework != reference.framework:
        options = msgspec.structs.replace(options, layers=False)
    return Case(plan=plan, reference=reference, folder=str(folder), options=options)


def _run_side(
    cases: Sequence[Case],
    scratch: Path,
    *,
    is_reference: bool,
    paths: dict[str, str],
    listeners: Sequence[Listener],
) -> SideEnd:
    folder = scratch / ("reference" if is_reference else "candidate")
    folder.mkdir()
    tell = tell_all(listeners)

    def hear(event: Event) -> None:
        if isinstance(event, Progress):
            tell(event)

    worker = SideWorker(cases, is_reference=is_reference, paths=paths, folder=folder)
    attended = attend(worker, None, hear)
    report = read_report(worker.outcome_path, SideReport)
    failure, versions, failed_case = attended.gave_up, {}, 0
    if isinstance(report, SideReport) and (failure is None or failure.kind is FailureKind.TIMED_OUT):
        failure, versions, failed_case = report.failure, report.versions, report.failed_case
    elif failure is None:
        failure = report if isinstance(report, Failed) else died(attended.code, worker.output_path, attended.oom_killed)
    if failure is not None and not isinstance(report, SideReport):
        finished = [is_finished(read_lines(Path(case.folder), reference=is_reference)) for case in cases]
        failed_case = finished.index(False) if False in finished else len(cases) - 1
    if failure is not None and failure.kind not in (FailureKind.UNSUPPORTED, FailureKind.INTERRUPTED):
        whose = f"{worker.plan.framework} on {worker.plan.device}{', the reference' if is_reference else ''}"
        failure = msgspec.structs.replace(failure, message=f"{whose}: {failure.message}")
    return SideEnd(failure=failure, failed_case=failed_case, software=worker.software(versions))


def _examined(case: Case, number: int, first: SideEnd, second: SideEnd | None, seconds: float) -> Examined:
    folder = Path(case.folder)
    reference, candidate = (read_lines(folder, reference=which) for which in (True, False))
    ended = second or first
    interrupted = ended.interrupted
    failure = first.failure if first.failure is not None and number >= first.failed_case else None
    if failure is None and second is not None and second.failure is not None and number >= second.failed_case:
        failure = second.failure
    theirs, mine = _setup(reference), _setup(candidate)
    if theirs is None or mine is None or (failure is not None and not interrupted):
        failure = failure or Failed(kind=FailureKind.CRASHED, message="A side ended before it had compared anything.")
        return Examined(outcome=failure, software=ended.software, interrupted=interrupted)
    if theirs.data_digest != mine.data_digest and case.options.contiguous:
        return Examined(
            outcome=Failed(
                kind=FailureKind.UNSUPPORTED,
                message="The two sides made different batches, so nothing can be compared.",
                hint="Let `batch(params, rng)` draw all of its random numbers from rng.",
            ),
            software=ended.software,
        )
    dtype = case.plan.settings.dtype
    notes = tuple(dict.fromkeys((*theirs.notes, *mine.notes)))
    if case.plan.framework != case.reference.framework:
        notes = (*notes, CROSS_LAYERS)
    compared = tuple(_excused(row, case) for row in judge(reference, candidate, dtype))
    checked = Checked(
        placed_on=mine.placed_on, device_name=mine.device_name, reference_placed_on=theirs.placed_on,
        truth=f"{theirs.truth} on {theirs.placed_on}", noise=variations(reference), compared=compared,
        reference_curves=curves_of(reference), curves=curves_of(candidate),
        repeats=next((line.repeats for line in candidate if isinstance(line, Repeating)), 0),
        complete=is_finished(candidate), notes=notes, seconds=seconds,
    )  # fmt: skip
    if not compared:
        failure = failure or Failed(kind=FailureKind.UNSUPPORTED, message=_nothing_compared(case.plan.mode))
        return Examined(outcome=failure, software=ended.software, interrupted=interrupted)
    return Examined(outcome=checked, software=ended.software, interrupted=interrupted)


def _excused(row: Compared, case: Case) -> Compared:
    """Say of a difference that two frameworks have by convention."""
    if row.agrees:
        return row
    excuse = convention(case.reference.framework, case.plan.framework, row.quantity, row.name)
    return msgspec.structs.replace(row, excused=excuse)


def _nothing_compared(mode: Mode) -> str:
    return f"The two sides have nothing in common that could be compared in {mode.value}."


def _setup(lines: Sequence[object]) -> Setup | None:
    return next((line for line in lines if isinstance(line, Setup)), None)
