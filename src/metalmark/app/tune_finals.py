"""Finals: the best settings of a search, measured in turn with the baseline; what wins must pass the gate."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from metalmark.app.tune_bench import TrialBench
from metalmark.app.tune_gate import GateVerdict, TuningKeeper
from metalmark.app.tune_trials import TuningStopped
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityMark, ParityVerdict
from metalmark.model.plan import PlanChange
from metalmark.model.tuning import OPEN_GAIN, Rung, RungStatus, TuningRequest
from metalmark.stats.difference import Verdict
from metalmark.tune.figures import compared, excess_of, value_of
from metalmark.tune.ladder import change_words, key_of
from metalmark.tune.search import BASELINE, WORTH, Candidate, Search, simplest

FINALS_SHARE, SLOW_FINALS_SHARE = 0.8, 0.6
"""When the finalists must be done, as shares of the time; the second where steps are long. The rest is the gate's."""
CLOSE = 1.1
"""A second finalist is measured where it is within this factor of the best: short processes of the same settings differ
by so much on a CPU."""
MOST_FINALISTS, MOST_GATES = 2, 3
TOO_MUCH_NOTE = (
    "The baseline needs more memory than --memory-limit allows. What needs no more counts, even where it is slower."
)
MOST_ROUNDS, CLOSE_ROUNDS = 3, 2
"""How many times as many processes as were asked for are measured, where there is time, while they leave open whether
the fastest finalist is faster; and which of two is the better."""
LEAST_REPEATS = 2
"""Of one process nothing shows how processes differ."""
SUSPECTS = (
    "dtype", "environment", "compile_mode", "compile", "graph", "attention_kernel", "conv_search", "channels_last",
    "fused", "recompute", "accumulate", "threads", "batch_size",
)  # fmt: skip
"""What most likely makes a network train differently, the first first."""


class FinalistMeasure(Protocol):
    def __call__(self, changes: Sequence[PlanChange], *, repeats: int, with_short: bool) -> list[list[BenchRun]]:
        """Measure changes in turn, so many times each. `with_short`: their runs of the search count as well."""


class Finals:
    """What became of settings is in `marked`, and what a reader should know in `notes`."""

    def __init__(
        self,
        request: TuningRequest,
        bench: TrialBench,
        *,
        measure: FinalistMeasure,
        check: Callable[[PlanChange], GateVerdict],
        store: TuningKeeper,
        say: Callable[[str], None],
    ) -> None:
        self._request, self._bench = request, bench
        self._measure, self._check = measure, check
        self._store, self._say = store, say
        self.marked: dict[bytes, Rung] = {}
        self.notes: list[str] = []

    def decide(self, search: Search) -> Candidate:
        """Measure finalists in turn with the baseline, and return the best that passes the gate."""
        refused = rest = BASELINE
        for attempt in range(MOST_GATES):
            finalists = self._finalists(search, refused, rest=rest)
            if not finalists:
                break
            winner = self._measured_winner(search, finalists)
            if winner is None:
                break
            change = search.change(winner)
            if key_of(change) in self.marked:  # there was no time to measure it again, so there is none to check it
                return winner
            if not self._request.gate:
                self._mark(change, RungStatus.BEST, GateVerdict(), "The gate was switched off (--no-gate).")
                return winner
            verdict = self._check(change)
            self.notes += verdict.notes
            if verdict.interrupted:
                raise TuningStopped
            marks = [mark for mark in (verdict.parity, verdict.curve) if mark is not None]
            differs = [mark for mark in marks if _differs(mark)]
            untested = [mark for mark in marks if mark.verdict is ParityVerdict.UNTESTED]
            if not differs:
                status = RungStatus.UNPROVED if untested else RungStatus.BEST
                if not marks:
                    self.notes.append(f"{change_words(change)} changes nothing that a parity check could compare.")
                self._mark(change, status, verdict, _sentences(untested))
                return winner
            self._mark(change, RungStatus.DIFFERS, verdict, _sentences(differs))
            suspect = self._suspect(search, winner)
            refused |= {suspect}
            rest = winner - refused
            self._say(f"{change_words(change)} trains differently; trying the best without {suspect}.")
            self.notes.append(f"{change_words(change)} was fast and trains differently, so {suspect} was left out.")
            if attempt == MOST_GATES - 1:
                self.notes.append(f"{MOST_GATES} sets of settings failed the gate, so no more were tried.")
        return BASELINE

    def _finalists(self, search: Search, refused: Candidate, *, rest: Candidate) -> list[Candidate]:
        """Return the best by the search that are close to each other, at most two. `rest`: what is left of settings
        that failed the gate, which comes first where the search has not measured it."""
        values, baseline = search.values, search.values[BASELINE] or 0.0
        # What is slower than the baseline is no finalist, nor is the baseline itself.
        ranked = [each for each in search.ranking() if (values[each] or 0.0) < baseline and not each & refused]
        known = {each: values[each] or 0.0 for each in ranked if key_of(search.change(each)) not in self.marked}
        untried = [rest] if rest and rest not in values and not search.is_hopeless(rest) else []
        if not known:
            return untried
        first, fastest = simplest(known), next(iter(known))
        close = [each for each in [*known][:2] if each != first and known[each] < known[fastest] * CLOSE]
        return [*untried, first, *close][:MOST_FINALISTS]

    def _measured_winner(self, search: Search, finalists: Sequence[Candidate]) -> Candidate | None:
        """Return the fastest finalist if it is faster than the baseline beyond noise; None: it is not."""
        is_over = not self._bench.has_time(1.0)
        if is_over:
            finalists = [each for each in finalists if self._bench.is_known(search.change(each))] or finalists
        room_s = self._room_s()
        if len(finalists) > 1 and room_s < LEAST_REPEATS * self._bench.usual_final_s * (1 + len(finalists)):
            finalists = finalists[:1]
        changes = [search.change(each) for each in finalists]
        fit = int(room_s / max(self._bench.usual_final_s * (1 + len(finalists)), 1e-3))
        # Of long steps there is time for few: the search has measured each of them once, and they follow once more.
        with_short = self._bench.is_slow() and fit < LEAST_REPEATS
        repeats = 1 if with_short else max(LEAST_REPEATS, min(self._request.repeats, fit))
        known = all(self._bench.is_known(each, final=True, repeats=min(repeats, LEAST_REPEATS)) for each in changes)
        if is_over and not known:
            self.notes.append("The time was over before the best could be measured in turn with the baseline: --time.")
            if not self._bench.is_known(changes[0]):
                return None
            self._mark(changes[0], RungStatus.UNPROVED, GateVerdict(), "It was measured in one short process only.")
            return finalists[0]
        baseline, *measured = self._measured_in_turn(changes, repeats=repeats, with_short=with_short)
        values = {
            each: value for each, runs in zip(finalists, measured, strict=True)
            if (value := value_of(runs, self._request)) is not None
        }  # fmt: skip
        if not values:
            return None
        too_much = excess_of(baseline, self._request) > 1
        if too_much:
            self.notes.append(TOO_MUCH_NOTE)
        winner = simplest(values)
        place = finalists.index(winner)
        why = self._why_not(baseline, measured[place], too_much=too_much)
        if why:
            self._mark(changes[place], RungStatus.NO_GAIN, GateVerdict(), why)
            return None
        for each, change in zip(finalists, changes, strict=True):
            if each > winner and each in values:
                reason = f"Measured in turn with {change_words(changes[place])}, it gains less than {WORTH * 100:g}%."
                self._mark(change, RungStatus.NO_GAIN, GateVerdict(), reason)
        return winner

    def _measured_in_turn(
        self, changes: Sequence[PlanChange], *, repeats: int, with_short: bool
    ) -> list[list[BenchRun]]:
        """Measure the baseline and changes in turn, so many times each, and more often while there is time and the runs
        leave open whether anything is gained, or which of two finalists is the better; return the runs of each, the
        baseline's first."""
        names = " and ".join(change_words(change) for change in changes)
        times = "once more" if with_short else f"{repeats} times each"
        self._say(f"Measuring {names} in turn with the baseline, {times}.")
        every = [PlanChange(), *changes]
        found = self._measure(every, repeats=repeats, with_short=with_short)
        while repeats < MOST_ROUNDS * self._request.repeats:
            first = 0
            if not self._leaves_open(found[0], found[1:]):
                first = 1
                if repeats >= CLOSE_ROUNDS * self._request.repeats or not self._too_close(found[1:]):
                    break
            if self._bench.usual_final_s * len(every[first:]) > self._room_s():
                break
            repeats += 1
            what = "which of the two is the better" if first else "whether anything is gained"
            self._say(f"That leaves open {what}: once more each.")
            found[first:] = self._measure(every[first:], repeats=repeats, with_short=with_short)
        return found

    def _room_s(self) -> float:
        """Return how much of the finalists' time is left."""
        return finals_share(self._bench) * self._request.time_s - self._bench.elapsed_s()

    def _leaves_open(self, baseline: Sequence[BenchRun], measured: Sequence[Sequence[BenchRun]]) -> bool:
        """Whether processes differ too much to tell if the fastest finalist gains much or nothing."""
        found = [each for runs in measured if (each := compared(baseline, runs, self._request)) is not None]
        fastest = max(found, key=lambda each: each.ratio, default=None)
        if fastest is None or fastest.high is None:
            return False
        return fastest.verdict is Verdict.CANT_TELL and fastest.high > OPEN_GAIN

    def _too_close(self, measured: Sequence[Sequence[BenchRun]]) -> bool:
        """Whether processes differ too much to tell which of two finalists is the better, perhaps by much."""
        if len(measured) < MOST_FINALISTS:
            return False
        found = compared(measured[0], measured[1], self._request)
        if found is None or found.low is None or found.high is None:
            return False
        return found.verdict is Verdict.CANT_TELL and max(found.high, 1 / found.low) > OPEN_GAIN

    def _why_not(self, baseline: Sequence[BenchRun], runs: Sequence[BenchRun], *, too_much: bool) -> str:
        """Return why the fastest finalist is no answer; empty where it is. `too_much`: the baseline needs more memory
        than it may, so what needs no more counts even where it is slower."""
        if excess_of(runs, self._request) > 1:
            return "It needs more memory than --memory-limit allows."
        found = compared(baseline, runs, self._request)
        if too_much or (found is not None and found.verdict is Verdict.FASTER):
            return ""
        why = found.reason if found is not None and found.reason else "it is no better than the baseline"
        return f"Measured in turn with the baseline, {why}."

    def _suspect(self, search: Search, candidate: Candidate) -> str:
        """Return the option that is left out after a candidate has failed the gate."""
        axes = {search.axis(name): name for name in candidate}
        return next((axes[axis] for axis in SUSPECTS if axis in axes), min(candidate))

    def _mark(self, change: PlanChange, status: RungStatus, verdict: GateVerdict, reason: str) -> None:
        """Note what became of settings, and let the runs that measured them carry the verdict of their check."""
        mark = verdict.curve if _differs(verdict.curve) else verdict.parity or verdict.curve
        if mark is not None:
            measured = next(each for each in self._bench.tried if key_of(each.change) == key_of(change))
            for run in (*measured.short, *measured.final):
                self._store.put(msgspec.structs.replace(run, parity=mark))
        self.marked[key_of(change)] = Rung(
            title="", change=change, status=status, parity=verdict.parity, curve=verdict.curve, reason=reason
        )


def finals_share(bench: TrialBench) -> float:
    """Return the share of the time after which only the gate is left."""
    return SLOW_FINALS_SHARE if bench.is_slow() else FINALS_SHARE


def _differs(mark: ParityMark | None) -> bool:
    return mark is not None and mark.verdict is ParityVerdict.DIFFERS


def _sentences(marks: Sequence[ParityMark]) -> str:
    return " ".join(mark.sentence for mark in marks)
