"""Runs a Sweep cell by cell, and hands each run over the moment its cell ends."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityMark
from metalmark.model.plan import Sweep
from metalmark.model.run import Failed, FailureKind, new_id, now_utc
from metalmark.runner.ctrl_c import noted_ctrl_c
from metalmark.runner.events import Ended, Listener, Paused, Started, tell_all
from metalmark.runner.flags import flags_of
from metalmark.runner.idle import Cooler, idle_watts
from metalmark.runner.launch import run_cell


def run_sweep(
    sweep: Sweep,
    *,
    previous: Collection[BenchRun],
    keep: Callable[[BenchRun], None],
    listeners: Sequence[Listener] = (),
    marks: Sequence[ParityMark | None] = (),
    cells: Collection[int] | None = None,
) -> bool:
    """Run what is not in `previous` yet; return False when Ctrl-C ended it. `marks`: what each cell's run carries of a
    parity check. `cells`: only these.

    `keep` stores a run, before the listeners are told of its end. A cell that failed once is not repeated: its answer
    is known.
    """
    tell = tell_all(listeners)
    settled = [run for run in previous if not was_interrupted(run)]
    done = {(run.cell, run.repeat) for run in settled}
    failed = {run.cell for run in settled if isinstance(run.outcome, Failed)}
    cooler: Cooler | None = None
    idle_w: dict[str, float] | None = None
    # Around all of it: the machine must not fall asleep in a pause between two cells either.
    with kept_awake() as sleepy, noted_ctrl_c() as was_pressed:
        for cell, repeat in sweep.order():
            if was_pressed():
                return False
            if (cell, repeat) in done or cell in failed or (cells is not None and cell not in cells):
                continue
            plan = sweep.plans[cell]
            note = ""
            try:
                if idle_w is None:
                    idle_w = idle_watts() if sweep.hz else {}
                if cooler is not None:
                    note = cooler.wait(lambda reason: tell(Paused(reason=reason)))
                elif sweep.cooldown is not None:
                    cooler = Cooler(sweep.cooldown)
            except KeyboardInterrupt:
                return False
            started_at = now_utc()
            tell(Started(id=sweep.id, plan=plan, cell=cell, repeat=repeat))
            result = run_cell(plan, repeat=repeat, paths=sweep.paths, hz=sweep.hz, listeners=listeners)
            outcome = result.outcome
            if isinstance(outcome, Completed):
                notes = filter(None, (note, result.note, sleepy))
                outcome = msgspec.structs.replace(outcome, notes=(*outcome.notes, *notes))
            run = BenchRun(
                id=new_id(), sweep=sweep.id, cell=cell, repeat=repeat, started_at=started_at, plan=plan,
                machine=identify(), software=result.software, outcome=outcome,
                telemetry=msgspec.structs.replace(result.telemetry, idle_w=idle_w),
                flags=flags_of(result.outcome, result.telemetry, identify(), result.software.environment),
                parity=marks[cell] if marks else None,
            )  # fmt: skip
            keep(run)
            tell(Ended(run=run))
            if isinstance(run.outcome, Failed):
                failed.add(cell)
            if was_interrupted(run):
                return False
    return True


def was_interrupted(run: BenchRun) -> bool:
    return isinstance(run.outcome, Failed) and run.outcome.kind is FailureKind.INTERRUPTED
