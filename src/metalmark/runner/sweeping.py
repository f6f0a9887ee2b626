"""Runs a Sweep cell by cell, and hands each run over the moment its cell ends."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityMark
from metalmark.model.plan import Plan, Sweep
from metalmark.model.run import Failed, FailureKind, new_id, now_utc
from metalmark.runner.ctrl_c import noted_ctrl_c
from metalmark.runner.events import Ended, Listener, Paused, Started, tell_all
from metalmark.runner.flags import flags_of
from metalmark.runner.idle import Cooler, idle_watts
from metalmark.runner.launch import run_cell
from metalmark.runner.world import Meeting


class Measurer:
    """Measures cells of a sweep on this machine, one after another, and knows what the machine was like at first."""

    def __init__(
        self,
        sweep: Sweep,
        *,
        sleepy: str = "",
        meeting: Meeting | None = None,
        idle_w: dict[str, float] | None = None,
    ) -> None:
        """`sleepy`: why nothing keeps the machine awake; mostly empty. `meeting`: where several machines meet.
        `idle_w`: the power it draws when idle; None: it is measured before the first cell."""
        self._sweep, self._sleepy, self._meeting = sweep, sleepy, meeting
        self._cooler: Cooler | None = None
        self._idle_w = idle_w

    def measure(
        self, plan: Plan, cell: int, repeat: int, *, listeners: Sequence[Listener], mark: ParityMark | None = None
    ) -> BenchRun | None:
        """Wait until the machine is cool, measure, and return the run; None where Ctrl-C ended the wait."""
        sweep, tell, note = self._sweep, tell_all(listeners), ""
        try:
            if self._idle_w is None:
                self._idle_w = idle_watts() if sweep.hz else {}
            if self._cooler is not None:
                note = self._cooler.wait(lambda reason: tell(Paused(reason=reason)))
            elif sweep.cooldown is not None:
                self._cooler = Cooler(sweep.cooldown)
        except KeyboardInterrupt:
            return None
        started_at = now_utc()
        tell(Started(id=sweep.id, plan=plan, cell=cell, repeat=repeat))
        result = run_cell(
            plan, repeat=repeat, paths=sweep.paths, hz=sweep.hz, listeners=listeners, meeting=self._meeting
        )
        outcome = result.outcome
        if isinstance(outcome, Completed):
            notes = filter(None, (note, result.note, self._sleepy))
            outcome = msgspec.structs.replace(outcome, notes=(*outcome.notes, *notes))
        return BenchRun(
            id=new_id(), sweep=sweep.id, cell=cell, repeat=repeat, started_at=started_at, plan=plan,
            machine=identify(), software=result.software, outcome=outcome,
            telemetry=msgspec.structs.replace(result.telemetry, idle_w=self._idle_w),
            flags=flags_of(result.outcome, result.telemetry, identify(), result.software.environment),
            parity=mark,
        )  # fmt: skip


def run_sweep(
    sweep: Sweep,
    *,
    previous: Collection[BenchRun],
    keep: Callable[[BenchRun], None],
    listeners: Sequence[Listener] = (),
    marks: Sequence[ParityMark | None] = (),
    cells: Collection[int] | None = None,
    meeting: Meeting | None = None,
    idle_w: dict[str, float] | None = None,
) -> bool:
    """Run what is not in `previous` yet; return False when Ctrl-C ended it. `marks`: what each cell's run carries of a
    parity check. `cells`: only these. `meeting`: where the processes of several machines meet. `idle_w`: the power that
    the machine draws when idle, where it is known.

    `keep` stores a run, before the listeners are told of its end. A cell that failed once is not repeated: its answer
    is known.
    """
    tell = tell_all(listeners)
    settled = [run for run in previous if not was_interrupted(run)]
    done = {(run.cell, run.repeat) for run in settled}
    failed = {run.cell for run in settled if isinstance(run.outcome, Failed)}
    # Around all of it: the machine must not fall asleep in a pause between two cells either.
    with kept_awake() as sleepy, noted_ctrl_c() as was_pressed:
        measurer = Measurer(sweep, sleepy=sleepy, meeting=meeting, idle_w=idle_w)
        for cell, repeat in sweep.order():
            if was_pressed():
                return False
            if (cell, repeat) in done or cell in failed or (cells is not None and cell not in cells):
                continue
            mark = marks[cell] if marks else None
            run = measurer.measure(sweep.plans[cell], cell, repeat, listeners=listeners, mark=mark)
            if run is None:
                return False
            keep(run)
            tell(Ended(run=run))
            if isinstance(run.outcome, Failed):
                failed.add(cell)
            if was_interrupted(run):
                return False
    return True


def was_interrupted(run: BenchRun) -> bool:
    return isinstance(run.outcome, Failed) and run.outcome.kind is FailureKind.INTERRUPTED
