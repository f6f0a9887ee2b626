"""TrialBench: measures changes of one plan, short ones for a search and longer ones for finalists, within a time."""

import time
from collections.abc import Sequence

import msgspec

from metalmark.app.tune_trials import Trials
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Plan, PlanChange
from metalmark.model.tuning import TuningRequest
from metalmark.results.cells import Cell
from metalmark.stats.summary import median
from metalmark.tune.figures import completed
from metalmark.tune.ladder import TriedSettings, key_of

SHORT_SHARE, SHORT_BLOCKS, LONG_BLOCKS = 1 / 3, 4, 6
"""Of the time for which a finalist is measured, that of a trial of the search; and the fewest blocks of each."""
USUAL_OF = 3
"""Number of the last processes that tell how long the next one takes."""
GIVE_UP_SHARE, LEAST_TRIAL_S = 0.55, 15.0
"""Of the time, when a trial of the search is given up, so that what has helped can still be measured in turn and
checked; and what every trial may take."""
SLOW_S, SLOW_SHORT_BLOCKS, SLOW_BLOCKS = 1.0, 2, 3
"""Of a step that is so long there are fewer blocks, of trials and of finalists: one averages much noise away by
itself."""


class TrialBench:
    def __init__(self, plan: Plan, request: TuningRequest, trials: Trials) -> None:
        self.plan, self._request, self.trials = plan, request, trials
        self._begin_s = time.monotonic()
        self.tried: list[TriedSettings] = []
        self._took_s: list[float] = []
        self._compiled_s = 0.0
        """The longest first step of what was compiled."""

    def measure(
        self, changes: Sequence[PlanChange], *, final: bool = False, repeats: int = 1, with_short: bool = False
    ) -> list[list[BenchRun]]:
        """Measure each change so many times, in turn, and return its runs. One that is known takes no time.
        `with_short`: a finalist's runs of the search count as well."""
        begin_s = time.monotonic()
        plans = [self._trial_plan(change, final=final) for change in changes]
        known = all(self.trials.is_known(plan, repeats=repeats) for plan in plans)
        found = self.trials.measure(plans, repeats=repeats)
        if not known:
            self._took_s.append((time.monotonic() - begin_s) / (len(changes) * repeats))
        for run in (run for runs in found for run in completed(runs)):
            assert isinstance(run.outcome, Completed)
            if run.plan.settings.compile:
                self._compiled_s = max(self._compiled_s, run.outcome.measurement.first_step_s)
        for change, runs in zip(changes, found, strict=True):
            held = next((each for each in self.tried if key_of(each.change) == key_of(change)), None)
            if held is None:
                self.tried.append(TriedSettings(change=change))
                held = self.tried[-1]
            if final and with_short:
                runs[:0] = held.short
            field = {"final": tuple(runs)} if final else {"short": tuple(runs)}
            self.tried[self.tried.index(held)] = msgspec.structs.replace(held, **field)
        return found

    def is_known(self, change: PlanChange, *, final: bool = False, repeats: int = 1) -> bool:
        return self.trials.is_known(self._trial_plan(change, final=final), repeats=repeats)

    @property
    def baseline_step_s(self) -> float:
        """How long a step of the baseline takes, as its first process has it; 0 before that is known."""
        baseline = next((each.short for each in self.tried if each.change == PlanChange()), ())
        done = tuple(completed(baseline))
        return Cell(plan=self.plan, records=done).step_s if done else 0.0

    def is_slow(self) -> bool:
        """Whether the baseline's steps are long ones."""
        return self.baseline_step_s > SLOW_S

    @property
    def usual_s(self) -> float:
        """How long a process takes, from its start to its end, by the last ones. One that compiled for a minute says
        little: the next has its code from the compiler's cache."""
        return median(self._took_s[-USUAL_OF:]) if self._took_s else 0.0

    @property
    def usual_final_s(self) -> float:
        """How long a process of a finalist takes, which is measured for longer."""
        return self.usual_s + (1 - SHORT_SHARE) * self._request.seconds

    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin_s

    def has_time(self, until: float, *, cost: float = 1.0, more_s: float = 0.0) -> bool:
        """Whether one more trial would end before that share of the time. `cost`: so many times as long as the last
        ones; one that costs more compiles, and takes at least as long as that took before. `more_s`: what comes on top
        of it."""
        expected_s = max(cost * self.usual_s, self.usual_s + self._compiled_s if cost > 1 else 0.0)
        return self.elapsed_s() + expected_s + more_s <= until * self._request.time_s

    def _trial_plan(self, change: PlanChange, *, final: bool) -> Plan:
        plan = change.applied(self.plan)
        share, blocks = (1.0, LONG_BLOCKS) if final else (SHORT_SHARE, SHORT_BLOCKS)
        # Of the baseline's first process nobody knows yet.
        if self.is_slow() and (final or change != PlanChange()):
            blocks = SLOW_BLOCKS if final else SLOW_SHORT_BLOCKS
        budget = msgspec.structs.replace(
            plan.budget, seconds=self._request.seconds * share, min_blocks=blocks,
            timeout_s=self._limit_s(is_search=not final and change != PlanChange()),
        )  # fmt: skip
        return msgspec.structs.replace(plan, budget=budget)

    def _limit_s(self, *, is_search: bool) -> float:
        """Return how long a process may take. Of a search's trial nobody knows beforehand how long it compiles."""
        if is_search:
            left_s = GIVE_UP_SHARE * self._request.time_s - self.elapsed_s()
            return float(round(max(LEAST_TRIAL_S, 2 * self.usual_s, left_s)))
        return max(60.0, self._request.time_s - self.elapsed_s())
