"""Tuner: makes one baseline faster. It measures what the search proposes, then the finalists; then the gate judges."""

from collections.abc import Callable, Sequence

import msgspec

from metalmark.app.tune_bench import TrialBench
from metalmark.app.tune_gate import GateVerdict, TuneGate, TuningKeeper
from metalmark.app.tune_trials import Trials, TuningStopped
from metalmark.explain.from_bench import explain_bench
from metalmark.explain.instructions import device_type
from metalmark.explain.verify import failure_of
from metalmark.machine.identity import identify
from metalmark.model.explanation import Bottleneck, Cause
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityMark, ParityRun, ParityVerdict
from metalmark.model.plan import Mode, Plan, PlanChange, Sweep
from metalmark.model.run import Absent, Failed, FailureKind, Software, Telemetry, new_id, now_utc
from metalmark.model.tuning import Rung, RungStatus, Tuned, TuningGoal, TuningPhase, TuningRequest, TuningRun
from metalmark.results.cells import Cell
from metalmark.runner.events import Ended, Listener, TuningProgress, tell_all
from metalmark.runner.spares import Spares, kept_ready
from metalmark.stats.difference import Verdict
from metalmark.tune.batches import BatchClimb, memory_limit
from metalmark.tune.figures import compared, completed, excess_of, figures_of, value_of
from metalmark.tune.ladder import chain_of, change_words, combined, key_of, ladder_of, rungs_so_far
from metalmark.tune.search import BASELINE, Candidate, Search, TuningOption
from metalmark.tune.space import BATCH_AXIS, LOADER_AXES, space_of, unsupported

SEARCH_SHARE, BATCH_SHARE, FINALS_SHARE = 0.45, 0.55, 0.8
"""When the search, the batch sizes and the finalists must be done, as shares of the time. The rest is the gate's."""
SLOW_SEARCH_SHARE, SLOW_FINALS_SHARE = 0.3, 0.6
"""The same where steps are long: the gate takes tens of them, and what gains most has been tried first."""
FIRST_SHARE = 0.5
"""Until when the strongest option is tried, whatever the baseline took: a search that tries nothing answers nothing."""
CLOSE = 1.05
"""A second finalist is measured where it is within this factor of the best."""
MOST_WAITING = 0.5
"""A step that still waits so much of its time for its loader gains little elsewhere."""
MOST_GATES = 3
PARTS = (2, 4, 8, 16)
IN_PARTS_NOTE = (
    "A batch of {size} does not fit into the memory, so the baseline runs it in {parts} parts and updates once "
    "(--accumulate {parts})."
)
TOO_MUCH_NOTE = (
    "The baseline needs more memory than --memory-limit allows. What needs no more counts, even where it is slower."
)
LEAST_REPEATS = 2
"""Of one process nothing shows how processes differ."""
SUSPECTS = (
    "dtype", "environment", "compile_mode", "compile", "graph", "attention_kernel", "conv_search", "channels_last",
    "fused",
)  # fmt: skip
"""What most likely makes a network train differently, the first first."""
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
        self._search = Search([])
        self._marked: dict[bytes, Rung] = {}
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
            outcome = self._outcome(self._best_so_far(), complete=False)
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
        self._climb(baseline[0])
        if self._search.propose() is not None and len(self._search.values) == 1:
            return self._too_little_time()
        more = self._climb_batches(self._search.best)
        best = self._decide(more)
        return self._outcome(best, complete=True)

    def _measure(
        self,
        phase: TuningPhase,
        changes: Sequence[PlanChange],
        *,
        final: bool = False,
        repeats: int = 1,
        with_short: bool = False,
    ) -> list[list[BenchRun]]:
        """Measure changes, and let listeners know before and after."""
        self._tell(phase, changes)
        found = self._bench.measure(changes, final=final, repeats=repeats, with_short=with_short)
        self._tell(phase)
        return found

    def _tell(self, phase: TuningPhase, trying: Sequence[PlanChange] = ()) -> None:
        rungs = rungs_so_far(self._bench.tried, self._request, self._marked)
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

    def _climb(self, baseline: BenchRun) -> None:
        """Measure what the search proposes while there is time."""
        waiting, placed_on = self._waiting(baseline), _placed_on(baseline)
        space = space_of(
            self._plan, device_type=device_type(placed_on), goal=self._request.goal, machine=baseline.machine,
            waiting_share=waiting, fixed=self._request.fixed, tight=excess_of([baseline], self._request) > 1,
        )  # fmt: skip
        self._left_out = space.left_out
        self._search = Search(space.options)
        self._search.tell(BASELINE, value_of([baseline], self._request))
        while (candidate := self._search.propose()) is not None:
            change = self._search.change(candidate)
            if self._waits_too_much(space.options, waiting, change):
                break
            until = SLOW_SEARCH_SHARE if self._bench.is_slow() else SEARCH_SHARE
            if len(self._search.values) == 1:
                until = FIRST_SHARE
            # What the best has already costs little: its code is in the compiler's cache.
            added = candidate - self._search.best
            cost = self._search.cost(added)
            if cost > 1 and not self._bench.has_time(until, cost=cost) and not self._bench.is_known(change):
                costly = self._search.costliest(added)
                self._search.leave_out(costly)
                self._left_out += (f"{costly}: it takes long to compile, and there is too little time for it (--time)",)
                continue
            if not self._bench.has_time(until) and not self._bench.is_known(change):
                self._notes.append("The search was out of time before everything was tried: --time gives it more.")
                break
            (runs,) = self._measure(TuningPhase.SEARCH, [change])
            self._leave_out_refused(candidate, runs)
            self._search.tell(candidate, value_of(runs, self._request))
            if candidate == self._search.best:
                waiting = self._waiting(runs[0])
            self._save(self._outcome(self._best_so_far(), complete=False))

    def _leave_out_refused(self, candidate: Candidate, runs: Sequence[BenchRun]) -> None:
        """Try an option no more that was refused by itself: no image layout in a network without images."""
        failure, added = failure_of(runs), candidate - self._search.best
        if failure is not None and failure.kind is FailureKind.UNSUPPORTED and len(added) == 1:
            (name,) = added
            self._search.leave_out(name)
            self._left_out += (f"{name}: {failure.message}",)

    def _waiting(self, run: BenchRun) -> float:
        """Return the share of a step that waits for input, by the verdict of `explain`."""
        explained = explain_bench(run)
        if explained.bottleneck is Bottleneck.INPUT:
            return explained.share(Cause.INPUT)
        return Cell(plan=run.plan, records=(run,)).waiting_share or 0.0

    def _waits_too_much(self, options: Sequence[TuningOption], waiting: float, change: PlanChange) -> bool:
        """Whether a step still waits for its input after all loaders were tried."""
        untried = any(
            option.axis in LOADER_AXES and not any(option.name in candidate for candidate in self._search.values)
            for option in options
        )
        if waiting < MOST_WAITING or untried or change.loader != self._search.change(self._search.best).loader:
            return False
        self._notes.append(
            f"A step waits {waiting * 100:.0f}% of its time for its input whatever the loader, so settings of the step "
            "itself were not tried: they would gain next to nothing. Make the data cheaper to load."
        )
        return True

    def _climb_batches(self, best: Candidate) -> PlanChange:
        """Return the batch size that helps, on top of the best settings; an empty change where the asked one stays."""
        size = self._plan.params.get("batch_size")
        wanted = self._request.goal in (TuningGoal.THROUGHPUT, TuningGoal.ENERGY)
        if not wanted or not isinstance(size, int) or BATCH_AXIS in self._request.fixed:
            return PlanChange()
        settings = self._search.change(best)
        (runs,) = self._bench.measure([settings])
        limit = memory_limit(runs[0].machine, device_type(_placed_on(runs[0])), self._request.memory_limit_bytes)
        climb = BatchClimb(size, limit_bytes=limit)
        climb.tell(size, value_of(runs, self._request), _peak_bytes(runs))
        while (batch := climb.propose()) is not None:
            change = combined(settings, PlanChange(params={"batch_size": batch}))
            if not self._bench.has_time(BATCH_SHARE) and not self._bench.is_known(change):
                break
            (runs,) = self._measure(TuningPhase.BATCH, [change])
            swapped = any(flag.name == SWAPPING for run in runs for flag in run.flags)
            spoilt = f"a batch of {batch} made the machine swap" if swapped else ""
            climb.tell(batch, value_of(runs, self._request), _peak_bytes(runs), spoilt=spoilt)
        if climb.best == size:
            return PlanChange()
        self._notes.append(BATCH_NOTE.format(new=climb.best, old=size))
        if climb.ended:
            self._notes.append(f"No larger batch: {climb.ended}.")
        return PlanChange(params={"batch_size": climb.best})

    def _decide(self, more: PlanChange) -> tuple[Candidate, PlanChange]:
        """Measure finalists in turn with the baseline, and return the best that passes the gate."""
        refused: set[str] = set()
        for attempt in range(MOST_GATES):
            finalists = self._finalists(more, refused)
            if not finalists:
                break
            winner = self._measured_winner(finalists, more)
            if winner is None:
                break
            change = combined(self._search.change(winner), more)
            if key_of(change) in self._marked:  # there was no time to measure it again, so there is none to check it
                return winner, more
            if not self._request.gate:
                self._mark(change, RungStatus.BEST, GateVerdict(), "The gate was switched off (--no-gate).")
                return winner, more
            verdict = self._gated(change)
            marks = [mark for mark in (verdict.parity, verdict.curve) if mark is not None]
            differs = [mark for mark in marks if _differs(mark)]
            untested = [mark for mark in marks if mark.verdict is ParityVerdict.UNTESTED]
            if not differs:
                status = RungStatus.UNPROVED if untested else RungStatus.BEST
                if not marks:
                    self._notes.append(f"{change_words(change)} changes nothing that a parity check could compare.")
                self._mark(change, status, verdict, _sentences(untested))
                return winner, more
            self._mark(change, RungStatus.DIFFERS, verdict, _sentences(differs))
            suspect = self._suspect(winner)
            refused.add(suspect)
            self._say(f"{change_words(change)} trains differently; trying the best without {suspect}.")
            self._notes.append(f"{change_words(change)} was fast and trains differently, so {suspect} was left out.")
            if attempt == MOST_GATES - 1:
                self._notes.append(f"{MOST_GATES} sets of settings failed the gate, so no more were tried.")
        return BASELINE, PlanChange()

    def _finalists(self, more: PlanChange, refused: set[str]) -> list[Candidate]:
        """Return the best by the search that are close to each other, at most two."""
        values = self._search.values
        ranked = [
            each for each in self._search.ranking() if each and not each & refused
            and key_of(combined(self._search.change(each), more)) not in self._marked
        ]  # fmt: skip
        if not ranked and more != PlanChange() and not refused:
            ranked = [BASELINE]
        if not ranked:
            return []
        first, baseline = values[ranked[0]] or 0.0, values[BASELINE] or 0.0
        if first >= baseline and more == PlanChange():
            return []
        return [each for each in ranked[:2] if (values[each] or first * CLOSE) < first * CLOSE] or ranked[:1]

    def _measured_winner(self, finalists: Sequence[Candidate], more: PlanChange) -> Candidate | None:
        """Return the fastest finalist if it is faster than the baseline beyond noise; None: it is not."""
        room_s = self._finals_share() * self._request.time_s - self._bench.elapsed_s()
        if len(finalists) > 1 and room_s < LEAST_REPEATS * self._bench.usual_s * (1 + len(finalists)):
            finalists = finalists[:1]
        changes = [combined(self._search.change(each), more) for each in finalists]
        fit = int(room_s / max(self._bench.usual_s * (1 + len(finalists)), 1e-3))
        # Of long steps there is time for few: the search has measured each of them once, and they follow once more.
        with_short = self._bench.is_slow() and fit < LEAST_REPEATS
        repeats = 1 if with_short else max(LEAST_REPEATS, min(self._request.repeats, fit))
        known = all(self._bench.is_known(each, final=True, repeats=min(repeats, LEAST_REPEATS)) for each in changes)
        if not self._bench.has_time(1.0) and not known:
            self._notes.append("The time was over before the best could be measured in turn with the baseline: --time.")
            for change in changes[:1]:
                self._mark(change, RungStatus.UNPROVED, GateVerdict(), "It was measured in one short process only.")
            return finalists[0]
        names = " and ".join(change_words(change) for change in changes)
        times = "once more" if with_short else f"{repeats} times each"
        self._say(f"Measuring {names} in turn with the baseline, {times}.")
        every = [PlanChange(), *changes]
        baseline, *measured = self._measure(
            TuningPhase.FINALISTS, every, final=True, repeats=repeats, with_short=with_short
        )
        order = sorted(
            (value, place) for place, runs in enumerate(measured)
            if (value := value_of(runs, self._request)) is not None
        )  # fmt: skip
        too_much = excess_of(baseline, self._request) > 1
        if too_much:
            self._notes.append(TOO_MUCH_NOTE)
        for _, place in order[:1]:
            if excess_of(measured[place], self._request) > 1:
                reason = "It needs more memory than --memory-limit allows."
                self._mark(changes[place], RungStatus.NO_GAIN, GateVerdict(), reason)
                continue
            if too_much:
                return finalists[place]
            found = compared(baseline, measured[place], self._request)
            if found is not None and found.verdict is Verdict.FASTER:
                return finalists[place]
            why = found.reason if found is not None and found.reason else "it is no better than the baseline"
            self._mark(changes[place], RungStatus.NO_GAIN, GateVerdict(), f"Measured in turn with the baseline, {why}.")
        return None

    def _gated(self, change: PlanChange) -> GateVerdict:
        (baseline,) = self._bench.measure([PlanChange()])
        # The other half of the gate's time is for the candidate and for the short trainings.
        reference_s = (1 - self._finals_share()) * self._request.time_s / 2
        gate = TuneGate(
            baseline[0], sweep=self._sweep.id, store=self._store, paths=self._sweep.paths, reference_s=reference_s
        )
        gate.remember(self._checks)
        self._say(f"Checking that {change_words(change)} trains the same network.")
        self._tell(TuningPhase.GATE, [change])
        left_s = self._request.time_s - self._bench.elapsed_s()
        verdict = gate.check(change.applied(self._plan), seconds=max(20.0, left_s), listeners=self._listeners)
        self._notes += verdict.notes
        if verdict.interrupted:
            raise TuningStopped
        return verdict

    def _finals_share(self) -> float:
        return SLOW_FINALS_SHARE if self._bench.is_slow() else FINALS_SHARE

    def _suspect(self, candidate: Candidate) -> str:
        """Return the option that is left out after a candidate has failed the gate."""
        axes = {self._search.axis(name): name for name in candidate}
        return next((axes[axis] for axis in SUSPECTS if axis in axes), next(iter(candidate), ""))

    def _mark(self, change: PlanChange, status: RungStatus, verdict: GateVerdict, reason: str) -> None:
        """Note what became of settings, and let the runs that measured them carry the verdict of their check."""
        mark = verdict.curve if _differs(verdict.curve) else verdict.parity or verdict.curve
        if mark is not None:
            measured = next(each for each in self._bench.tried if key_of(each.change) == key_of(change))
            for run in (*measured.short, *measured.final):
                self._store.put(msgspec.structs.replace(run, parity=mark))
        self._marked[key_of(change)] = Rung(
            title="", change=change, status=status, parity=verdict.parity, curve=verdict.curve, reason=reason
        )

    def _too_little_time(self) -> Failed:
        needed_s = max(60.0, 8 * self._bench.elapsed_s())
        return Failed(
            kind=FailureKind.TIMED_OUT,
            message=f"{self._request.time_s:g} s are too little: the baseline took {self._bench.elapsed_s():.1f} s.",
            hint=f"Give it about --time {max(1, round(needed_s / 60))}m. The baseline is stored.",
        )

    # The outcome

    def _best_so_far(self) -> tuple[Candidate, PlanChange]:
        return self._search.best, PlanChange()

    def _outcome(self, best: tuple[Candidate, PlanChange], *, complete: bool) -> Tuned:
        candidate, more = best
        tried = [each for each in self._bench.tried if each.short or each.final]
        baseline = next((run for each in tried if each.change == PlanChange() for run in completed(each.short)), None)
        if baseline is None:
            return Tuned(ladder=(Rung(title="baseline", status=RungStatus.BASELINE),), complete=complete)
        measured = {key_of(each.change) for each in tried}
        chain = [change for change in chain_of(self._search, candidate, more) if key_of(change) in measured]
        ladder, others = ladder_of(tried, chain, self._request, self._marked)
        if not complete and len(ladder) > 1 and ladder[-1].status is RungStatus.BEST:
            reason = "The search was stopped before this was measured in turn with the baseline and checked."
            last = msgspec.structs.replace(ladder[-1], status=RungStatus.UNPROVED, reason=reason)
            ladder = (*ladder[:-1], last)
        outcome = baseline.outcome
        assert isinstance(outcome, Completed)
        return Tuned(
            ladder=ladder, others=others, placed_on=outcome.placed_on, device_name=outcome.device_name,
            trials=self._bench.trials.measured, elapsed_s=self._bench.elapsed_s(), complete=complete,
            left_out=self._left_out, notes=tuple(dict.fromkeys(self._notes)),
        )  # fmt: skip

    def _save(self, outcome: Tuned | Failed) -> TuningRun:
        newest = self._bench.trials.runs[-1] if self._bench.trials.runs else None
        run = TuningRun(
            id=self._id, started_at=self._started_at, sweep=self._sweep.id, cell=self._cell, plan=self._plan,
            request=self._request, machine=identify(),
            software=newest.software if newest is not None else Software(metalmark="", python=""), outcome=outcome,
            telemetry=Telemetry(hz=None, absent={"all": "each trial has its own"}),
        )  # fmt: skip
        self._store.put(run)
        return run


def _differs(mark: ParityMark | None) -> bool:
    return mark is not None and mark.verdict is ParityVerdict.DIFFERS


def _placed_on(run: BenchRun) -> str:
    return run.outcome.placed_on if isinstance(run.outcome, Completed) else ""


def _peak_bytes(runs: Sequence[BenchRun]) -> int | None:
    done = completed(runs)
    return Cell(plan=done[0].plan, records=tuple(done)).memory_bytes if done else None


def _sentences(marks: Sequence[ParityMark]) -> str:
    return " ".join(mark.sentence for mark in marks)
