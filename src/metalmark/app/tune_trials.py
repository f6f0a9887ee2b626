"""Trials: what a tuner measures, each plan in a fresh process, and what was measured before it was stopped."""

from collections.abc import Callable, Sequence

import msgspec

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, Plan, Sweep
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.events import Listener
from metalmark.runner.sweeping import run_sweep, was_interrupted


class TuningStopped(Exception):  # noqa: N818  it is no error
    """Ctrl-C ended a trial."""


class Trials:
    """The cells of a tuning: they grow as the search goes on, and one that is known is not measured again."""

    def __init__(
        self,
        sweep: Sweep,
        *,
        known: Sequence[BenchRun],
        keep: Callable[[BenchRun], None],
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._sweep, self._keep, self._listeners = sweep, keep, listeners
        self.runs = [run for run in known if not was_interrupted(run) and not _was_out_of_time(run)]
        self._plans: dict[int, Plan] = {run.cell: run.plan for run in self.runs}
        self._first_free = max((run.cell + 1 for run in known), default=0)
        """No cell of a run that is stored is another plan's, though the run counts no more."""
        self.measured = 0
        """Processes that were measured now."""

    def measure(self, plans: Sequence[Plan], *, repeats: int = 1) -> list[list[BenchRun]]:
        """Measure each plan so many times, in turn, and return the runs of each. Raises where Ctrl-C ended it."""
        cells = [self._cell(plan) for plan in plans]
        every = tuple(self._plans.get(cell, plans[0]) for cell in range(max(self._plans) + 1))
        sweep = msgspec.structs.replace(self._sweep, plans=every, repeats=repeats)

        def keep(run: BenchRun) -> None:
            self._keep(run)
            if not was_interrupted(run):
                self.runs.append(run)
                self.measured += 1

        # Measured once: after a trial the machine is not idle for a while.
        idle_w = next((run.telemetry.idle_w for run in self.runs), None)
        if not run_sweep(
            sweep, previous=tuple(self.runs), keep=keep, listeners=self._listeners, cells=set(cells), idle_w=idle_w
        ):
            raise TuningStopped
        return [[run for run in self.runs if run.cell == cell and run.repeat < repeats] for cell in cells]

    def is_known(self, plan: Plan, *, repeats: int = 1) -> bool:
        """Whether measuring it takes no time."""
        cell = next((cell for cell, known in self._plans.items() if _key(known) == _key(plan)), None)
        return sum(run.cell == cell for run in self.runs) >= repeats

    def _cell(self, plan: Plan) -> int:
        for cell, known in self._plans.items():
            if _key(known) == _key(plan):
                self._plans[cell] = plan
                return cell
        cell = self._first_free
        self._first_free += 1
        self._plans[cell] = plan
        return cell


def _was_out_of_time(run: BenchRun) -> bool:
    """Whether a trial was given up because it took too long: a search that goes on may have more time for it."""
    return isinstance(run.outcome, Failed) and run.outcome.kind is FailureKind.TIMED_OUT


def _key(plan: Plan) -> bytes:
    """Tell plans apart, whatever the time after which their process is given up."""
    budget = Budget(steps=plan.budget.steps, seconds=plan.budget.seconds, min_blocks=plan.budget.min_blocks)
    return msgspec.json.encode(msgspec.structs.replace(plan, budget=budget), order="deterministic")
