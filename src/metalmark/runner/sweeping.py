"""Runs a Sweep cell by cell, and hands each Record over the moment its cell ends."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Sequence

import msgspec

import metalmark
from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.machine.steering import steering_variables
from metalmark.model.measurement import BenchRun, Outcome
from metalmark.model.run import Failed, FailureKind, Software
from metalmark.model.sweep import Sweep, new_id, now_utc
from metalmark.runner.cooling import Cooler
from metalmark.runner.flags import flags_of
from metalmark.runner.idle import idle_watts
from metalmark.runner.launch import run_cell
from metalmark.runner.listening import Listener, Listeners


def run_sweep(
    sweep: Sweep,
    *,
    previous: Collection[BenchRun],
    keep: Callable[[BenchRun], None],
    listeners: Sequence[Listener] = (),
) -> bool:
    """False when Ctrl-C ended it. A cell that failed once is not repeated: the answer is known."""
    # Around all of it: the machine must not fall asleep in a pause between two cells either.
    with kept_awake() as sleepy:
        return _run_cells(sweep, previous, keep, Listeners(listeners), sleepy)


def _run_cells(
    sweep: Sweep, previous: Collection[BenchRun], keep: Callable[[BenchRun], None], heard_by: Listeners, sleepy: str
) -> bool:
    settled = [record for record in previous if not was_interrupted(record)]
    done = {(record.cell, record.repeat) for record in settled}
    failed = {record.cell for record in settled if isinstance(record.outcome, Failed)}
    cooler: Cooler | None = None
    idle_w: dict[str, float] | None = None
    for cell, repeat in sweep.order():
        if (cell, repeat) in done or cell in failed:
            continue
        plan = sweep.plans[cell]
        note = ""
        try:
            if idle_w is None:
                idle_w = idle_watts() if sweep.hz else {}
            if cooler is not None:
                note = cooler.wait(heard_by.cooling)
            elif sweep.cooldown is not None:
                cooler = Cooler(sweep.cooldown)
        except KeyboardInterrupt:
            return False
        started_at = now_utc()
        heard_by.started(cell, repeat)
        ended = run_cell(
            plan,
            repeat=repeat,
            paths=sweep.paths,
            hz=sweep.hz,
            on_progress=heard_by.progress,
            on_sampler=heard_by.sampling,
        )
        environment = steering_variables({**os.environ, **ended.environment})
        record = BenchRun(
            id=new_id(),
            sweep=sweep.id,
            cell=cell,
            repeat=repeat,
            started_at=started_at,
            plan=plan,
            machine=identify(),
            software=Software(
                metalmark=metalmark.__version__,
                python=platform.python_version(),
                versions=ended.versions,
                environment=environment,
            ),
            outcome=_noted(ended.outcome, note, ended.note, sleepy),
            telemetry=msgspec.structs.replace(ended.telemetry, idle_w=idle_w),
            flags=flags_of(ended.outcome, ended.telemetry, identify(), environment),
        )
        keep(record)
        heard_by.ended(record)
        if isinstance(record.outcome, Failed):
            failed.add(cell)
        if was_interrupted(record):
            return False
    return True


def _noted(outcome: Outcome, *notes: str) -> Outcome:
    if isinstance(outcome, Failed):
        return outcome
    return msgspec.structs.replace(outcome, notes=(*outcome.notes, *filter(None, notes)))


def was_interrupted(record: BenchRun) -> bool:
    return isinstance(record.outcome, Failed) and record.outcome.kind is FailureKind.INTERRUPTED
