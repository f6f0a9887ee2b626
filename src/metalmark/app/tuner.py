"""Tuner: makes one baseline faster. It measures what the search proposes, then the finalists; then the gate judges."""

from collections.abc import Callable, Sequence

import msgspec

from metalmark.app.tune_bench import TrialBench
from metalmark.app.tune_finals import Finals, finals_share
from metalmark.app.tune_gate import GateVerdict, TuneGate, TuningKeeper
from metalmark.app.tune_trials import Trials, TuningStopped
from metalmark.explain.from_bench import explain_bench
from metalmark.explain.instructions import device_type
from metalmark.explain.verify import failure_of
from metalmark.machine.identity import identify
from metalmark.model.explanation import Bottleneck, Cause
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityRun
from metalmark.model.plan import Mode, Plan, PlanChange, Sweep
from metalmark.model.run import Absent, Failed, FailureKind, Software, Telemetry, new_id, now_utc
from metalmark.model.tuning import Rung, RungStatus, Tuned, TuningGoal, TuningPhase, TuningRequest, TuningRun
from metalmark.results.cells import Cell
from metalmark.runner.events import Ended, Listener, TuningProgress, tell_all
from metalmark.runner.flags import flags_of_several
from metalmark.runner.spares import Spares, kept_ready
from metalmark.tune.batches import BatchClimb, batch_option, memory_limit
from metalmark.tune.figures import completed, excess_of, figures_of, value_of
from metalmark.tune.ladder import change_words, combined, key_of, ladder_of, rungs_so_far
from metalmark.tune.search import BASELINE, Candidate, Search, TuningOption
from metalmark.tune.space import BATCH_AXIS, LOADER_AXES, space_of, unsupported

SEARCH_SHARE, BATCH_SHARE = 0.45, 0.55
"""When the search and the batch sizes must be done, as shares of the time. The rest is for finalists and the gate."""
SLOW_SEARCH_SHARE = 0.3
"""The same where steps are long: the gate takes tens of them, and what gains most has been tried first."""
BATCH_STEPS = 40
"""About how many steps, with the best settings, are as long as what a larger batch takes: its trial, and in the gate
the short trainings, of which two have the baseline's settings."""
FIRST_SHARE = 0.5
"""Until when the strongest option is tried, whatever the baseline took: a search that tries nothing answers nothing."""
MOST_WAITING = 0.5
"""A step that still waits so much of its time for its loader gains little elsewhere."""
PARTS = (2, 4, 8, 16)
IN_PARTS_NOTE = (
    "A batch of {size} does not fit into the memory, so the baseline runs it in {parts} parts and updates once "
    "(--accumulate {parts})."
)
NO_TIME_TO_COMPILE = "{}: it takes long to compile, and there is too little time for it (--time)"
NO_TIME_FOR_BATCH = "batch size {}: there is too little time for it and its checks (--time)"
GIVEN_UP = "{} was given up: {} With more --time, --resume tries it again."
SWAPPING = "swapping"
BATCH_NOTE = (
    "A batch of {new} instead of {old} trains differently: raise the learning rate with it (with Adam by about the "
    "square root of the ratio) and see that the accuracy stays: metalmark train."
)


class Tuner:
    def __init__(
        self,
        plan: Plan,
        request: TuningRequest,
        *,
        sweep: Sweep,
        cell: int,
        store: TuningKeeper,
        listeners: Sequence[Listener],
        say: Callable[[str], None],
        known: Sequence[BenchRun] = (),
        checks: Sequence[ParityRun] = (),
        before: TuningRun | None = None,
    ) -> None:
        self._plan, self._request, self._sweep, self._cell = plan, request, sweep, cell
        self._store, self._listeners, self._say = store, listeners, say
        self._id = before.id if before is not None else new_id()
        self._started_at = before.started_at if before is not None else now_utc()
        trials = Trials(sweep, known=known, keep=store.add, listeners=listeners)
        self._bench = TrialBench(plan, request, trials)
        self._checks = checks
        self._finals = Finals(
            request, self._bench, measure=self._measure_finalists, check=self._gated, store=store, say=say
        )  # fmt: skip
        self._options: tuple[TuningOption, ...] = ()
        self._search = Search(self._options)
        self._waiting_share = 0.0
        """Of a step with the best settings so far, what it waits for its loader."""
        self._waits_note = ""
        self._no_larger = ""
        """Why no batch is tried that is larger than the best."""
        self._batch_fails = False
        """Whether that is because it failed, or made the machine swap."""
        self._left_out: tuple[str, ...] = ()
        self._notes: list[str] = []
        self.stopped = False
        """Whether Ctrl-C ended it."""

    def run(self) -> TuningRun:
        """Search until nothing is likely to help, or the time is over; store the result, whatever ends the search."""
        # There from the start, so that a search that is killed can be found and go on.
        self._save(Tuned(ladder=(Rung(title="baseline", status=RungStatus.BASELINE),), complete=False))
        try:
            with kept_ready(self._plan) as spares:
                outcome = self._tune(spares)
        except (TuningStopped, KeyboardInterrupt):
            self.stopped = True
            outcome = self._outcome(self._search.best, complete=False)
        run = self._save(outcome)
        tell_all(self._listeners)(Ended(run=run))
        return run

    def _tune(self, spares: Spares) -> Tuned | Failed:
        if spares.room and not self._bench.is_known(PlanChange()):
            self._say(f"Importing {self._plan.framework} in {spares.room} processes, which the trials will take.")
            spares.prepare()
        (baseline,) = self._measure(TuningPhase.BASELINE, [PlanChange()])
        failure = failure_of(baseline)
        if failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY:
            baseline = self._in_parts(baseline)
            failure = failure_of(baseline)
        if failure is not None:
            return msgspec.structs.replace(failure, message=f"The baseline itself fails: {failure.message}")
        figures = figures_of(baseline, self._request)
        if isinstance(figures, Absent):
            what = self._request.goal.value
            return Failed(
                kind=FailureKind.UNSUPPORTED, message=f"Nothing here measures {what}: {figures.reason}.",
                hint="Use --for throughput; `metalmark doctor` says which sensors are missing.",
            )  # fmt: skip
        if self._bench.elapsed_s() > SEARCH_SHARE * self._request.time_s:
            return self._too_little_time()
        self._begin_search(baseline[0])
        self._climb(until=SLOW_SEARCH_SHARE if self._bench.is_slow() else SEARCH_SHARE)
        if self._search.propose() is not None and len(self._search.values) == 1:
            return self._too_little_time()
        while self._climb_batches():
            # What gained nothing on the smaller batch may help on this one, and the other way round.
            if not self._climb(until=SLOW_SEARCH_SHARE if self._bench.is_slow() else BATCH_SHARE):
                break
        return self._outcome(self._finals.decide(self._search), complete=True)

    def _measure(
        self,
        phase: TuningPhase,
        changes: Sequence[PlanChange],
    ) -> list[list[BenchRun]]:
        """Measure changes once, and let listeners know before and after."""
        self._tell(phase, changes)
        found = self._bench.measure(changes)
        self._tell(phase)
        return found

    def _measure_finalists(
        self, changes: Sequence[PlanChange], *, repeats: int, with_short: bool
    ) -> list[list[BenchRun]]:
        self._tell(TuningPhase.FINALISTS, changes)
        found = self._bench.measure(changes, final=True, repeats=repeats, with_short=with_short)
        self._tell(TuningPhase.FINALISTS)
        return found

    def _tell(self, phase: TuningPhase, trying: Sequence[PlanChange] = ()) -> None:
        rungs = rungs_so_far(self._bench.tried, self._request, self._finals.marked)
        progress = TuningProgress(
            plan=self._plan, goal=self._request.goal, phase=phase, trying=tuple(trying), rungs=rungs
        )  # fmt: skip
        tell_all(self._listeners)(progress)

    def _in_parts(self, baseline: list[BenchRun]) -> list[BenchRun]:
        """Let the baseline, which does not fit, run its batch in as few parts as do; return its runs."""
        asked, size = self._plan, self._plan.params.get("batch_size")
        for parts in PARTS:
            change = PlanChange(settings={"accumulate": parts})
            plan = change.applied(asked)
            refused = asked.mode is not Mode.TRAINING or unsupported(asked, change, asked.device.kind.value)
            if refused or plan == asked or not isinstance(size, int) or size % parts:
                break
            self._plan = self._bench.plan = plan
            (runs,) = self._measure(TuningPhase.BASELINE, [PlanChange()])
            if failure_of(runs) is None:
                self._notes.append(IN_PARTS_NOTE.format(size=size, parts=parts))
                return runs
        self._plan = self._bench.plan = asked
        return baseline

    def _begin_search(self, baseline: BenchRun) -> None:
        assert isinstance(baseline.outcome, Completed)
        self._waiting_share = self._waiting(baseline)
        space = space_of(
            self._plan, device_type=device_type(_placed_on(baseline)), goal=self._request.goal,
            machine=baseline.machine, idle=baseline.outcome.idle_settings, waiting_share=self._waiting_share,
            fixed=self._request.fixed, tight=excess_of([baseline], self._request) > 1,
        )  # fmt: skip
        self._options, self._left_out = space.options, space.left_out
        self._search = Search(space.options)
        self._search.tell(BASELINE, value_of([baseline], self._request))

    def _climb(self, *, until: float) -> bool:
        """Measure what the search proposes until a share of the time is over; return whether something was better."""
        before, self._waits_note = self._search.best, ""
        while (candidate := self._search.propose()) is not None:
            change = self._search.change(candidate)
            if self._waits_too_much(change):
                break
            share = FIRST_SHARE if len(self._search.values) == 1 else until
            cost = self._search.cost(self._search.added(candidate))
            if cost > 1 and not self._bench.has_time(share, cost=cost) and not self._bench.is_known(change):
                # What the best has is not left out, though it may be what makes the rest costly to try.
                added = candidate - self._search.best
                costly = self._search.costliest(added or candidate)
                tried = any(costly in each for each in self._search.values)
                self._search.leave_out(costly)
                if added:
                    self._left_out += (NO_TIME_TO_COMPILE.format(f"{costly} on top of the best" if tried else costly),)
                continue
            if not self._bench.has_time(share) and not self._bench.is_known(change):
                self._notes.append("The search was out of time before everything was tried: --time gives it more.")
                break
            (runs,) = self._measure(TuningPhase.SEARCH, [change])
            self._heed_failure(candidate, runs)
            self._search.tell(candidate, value_of(runs, self._request))
            if candidate == self._search.best:
                self._waiting_share = self._waiting(runs[0])
            self._save(self._outcome(self._search.best, complete=False))
        return self._search.best != before

    def _heed_failure(self, candidate: Candidate, runs: Sequence[BenchRun]) -> None:
        """Try an option no more that was refused by itself: no image layout in a network without images. Say what a
        trial that was given up would need."""
        failure, added = failure_of(runs), candidate - self._search.best
        if failure is not None and failure.kind is FailureKind.UNSUPPORTED and len(added) == 1:
            self._search.leave_out(*added)
        if failure is not None and failure.kind is FailureKind.TIMED_OUT:
            self._search.leave_out(self._search.costliest(added or candidate))
            self._notes.append(GIVEN_UP.format(change_words(self._search.change(candidate)), failure.message))

    def _waiting(self, run: BenchRun) -> float:
        """Return the share of a step that waits for input, by the verdict of `explain`."""
        explained = explain_bench(run)
        if explained.bottleneck is Bottleneck.INPUT:
            return explained.share(Cause.INPUT)
        return Cell(plan=run.plan, records=(run,)).waiting_share or 0.0

    def _waits_too_much(self, change: PlanChange) -> bool:
        """Whether a step still waits for its input after all loaders were tried."""
        untried = any(
            option.axis in LOADER_AXES and not any(option.name in candidate for candidate in self._search.values)
            for option in self._options
        )
        waiting, loader = self._waiting_share, self._search.change(self._search.best).loader
        if waiting < MOST_WAITING or untried or change.loader != loader:
            return False
        self._waits_note = (
            f"A step waits {waiting * 100:.0f}% of its time for its input whatever the loader, so settings of the step "
            "itself were not tried: they would gain next to nothing. Make the data cheaper to load."
        )
        return True

    def _climb_batches(self) -> bool:
        """Measure larger batches on top of the best settings while there is time; return whether one helped."""
        best = self._search.best
        settings = self._search.change(best)
        size = settings.params.get("batch_size", self._plan.params.get("batch_size"))
        wanted = self._request.goal in (TuningGoal.THROUGHPUT, TuningGoal.ENERGY)
        if self._batch_fails or not wanted or not isinstance(size, int) or BATCH_AXIS in self._request.fixed:
            return False
        (runs,) = self._bench.measure([settings])
        limit = memory_limit(runs[0].machine, device_type(_placed_on(runs[0])), self._request.memory_limit_bytes)
        climb = BatchClimb(size, limit_bytes=limit)
        climb.tell(size, value_of(runs, self._request), _peak_bytes(runs))
        cost = self._search.cost(best)  # a batch of another size is compiled anew
        while (batch := climb.propose()) is not None:
            larger = batch_option(batch)
            change = combined(settings, larger.change)
            more_s = BATCH_STEPS * 2 * Cell(plan=runs[0].plan, records=tuple(completed(runs))).step_s
            if not self._bench.has_time(BATCH_SHARE, cost=cost, more_s=more_s) and not self._bench.is_known(change):
                self._left_out += (NO_TIME_FOR_BATCH.format(batch),)
                break
            (runs,) = self._measure(TuningPhase.BATCH, [change])
            value = value_of(runs, self._request)
            climb.tell(batch, value, _peak_bytes(runs), spoilt=_spoilt(runs, batch))
            if value is not None and climb.best == batch:
                self._search.grow(larger, value)
                self._waiting_share = self._waiting(runs[0])
            self._batch_fails = bool(climb.ended)
            self._save(self._outcome(self._search.best, complete=False))
        if self._search.best != best:
            self._no_larger = climb.ended
        return self._search.best != best

    def _gated(self, change: PlanChange) -> GateVerdict:
        (baseline,) = self._bench.measure([PlanChange()])
        # The other half of the gate's time is for the candidate and for the short trainings.
        reference_s = (1 - finals_share(self._bench)) * self._request.time_s / 2
        gate = TuneGate(
            baseline[0], sweep=self._sweep.id, store=self._store, paths=self._sweep.paths, reference_s=reference_s
        )
        gate.remember(self._checks)
        self._say(f"Checking that {change_words(change)} trains the same network.")
        self._tell(TuningPhase.GATE, [change])
        left_s = self._request.time_s - self._bench.elapsed_s()
        return gate.check(change.applied(self._plan), seconds=max(20.0, left_s), listeners=self._listeners)

    def _too_little_time(self) -> Failed:
        needed_s = max(60.0, 8 * self._bench.elapsed_s())
        return Failed(
            kind=FailureKind.TIMED_OUT,
            message=f"{self._request.time_s:g} s are too little: the baseline took {self._bench.elapsed_s():.1f} s.",
            hint=f"Give it about --time {max(1, round(needed_s / 60))}m. The baseline is stored.",
        )

    # The outcome

    def _outcome(self, best: Candidate, *, complete: bool) -> Tuned:
        tried = [each for each in self._bench.tried if each.short or each.final]
        baseline = next((run for each in tried if each.change == PlanChange() for run in completed(each.short)), None)
        if baseline is None:
            return Tuned(ladder=(Rung(title="baseline", status=RungStatus.BASELINE),), complete=complete)
        measured = {key_of(each.change) for each in tried}
        path = map(self._search.change, self._search.path(best))
        chain = [change for change in path if key_of(change) in measured]
        ladder, others = ladder_of(tried, chain, self._request, self._finals.marked)
        if not complete and len(ladder) > 1 and ladder[-1].status is RungStatus.BEST:
            reason = "The search was stopped before this was measured in turn with the baseline and checked."
            last = msgspec.structs.replace(ladder[-1], status=RungStatus.UNPROVED, reason=reason)
            ladder = (*ladder[:-1], last)
        outcome = baseline.outcome
        assert isinstance(outcome, Completed)
        new, old = (each.get(BATCH_AXIS) for each in (chain[-1].params, self._plan.params))
        larger = [BATCH_NOTE.format(new=new, old=old)] if new and self._plan.mode is Mode.TRAINING else []
        if new and self._no_larger:
            larger.append(f"No larger batch: {self._no_larger}.")
        notes = [*larger, *self._notes, *filter(None, [self._waits_note]), *self._finals.notes]
        return Tuned(
            ladder=ladder, others=others, placed_on=outcome.placed_on, device_name=outcome.device_name,
            trials=self._bench.trials.measured, elapsed_s=self._bench.elapsed_s(), complete=complete,
            left_out=tuple(dict.fromkeys(self._left_out)), notes=tuple(dict.fromkeys(notes)),
        )  # fmt: skip

    def _save(self, outcome: Tuned | Failed) -> TuningRun:
        newest = self._bench.trials.runs[-1] if self._bench.trials.runs else None
        run = TuningRun(
            id=self._id, started_at=self._started_at, sweep=self._sweep.id, cell=self._cell, plan=self._plan,
            request=self._request, machine=identify(),
            software=newest.software if newest is not None else Software(metalmark="", python=""), outcome=outcome,
            telemetry=Telemetry(hz=None, absent={"all": "each trial has its own"}),
            flags=flags_of_several(self._bench.trials.runs),
        )  # fmt: skip
        self._store.put(run)
        return run


def _placed_on(run: BenchRun) -> str:
    return run.outcome.placed_on if isinstance(run.outcome, Completed) else ""


def _spoilt(runs: Sequence[BenchRun], batch: int) -> str:
    """Return why no batch is tried that is larger than one of these runs, though that one did not fail by itself."""
    failure = failure_of(runs)
    if failure is not None and failure.kind is FailureKind.TIMED_OUT:
        return f"for a batch of {batch} there was too little time (--time)"
    if any(flag.name == SWAPPING for run in runs for flag in run.flags):
        return f"a batch of {batch} made the machine swap"
    return ""


def _peak_bytes(runs: Sequence[BenchRun]) -> int | None:
    done = completed(runs)
    return Cell(plan=done[0].plan, records=tuple(done)).memory_bytes if done else None
