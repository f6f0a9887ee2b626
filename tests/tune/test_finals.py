"""Which settings are measured last, in turn with the baseline, and what is said where there is no time for it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from metalmark.app.tune_finals import FinalistMeasure, Finals
from metalmark.app.tune_gate import GateVerdict
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import PlanChange
from metalmark.model.tuning import RungStatus, TuningRequest
from metalmark.stats.difference import Verdict
from metalmark.tune.batches import batch_option
from metalmark.tune.ladder import key_of
from metalmark.tune.search import BASELINE, Candidate, Search, TuningOption

LAYOUT: Candidate = frozenset({"layout"})
HALF: Candidate = frozenset({"half"})
LARGER: Candidate = frozenset({"batch 256"})


class Bench:
    """A bench without time, which knows what it has measured once."""

    usual_final_s = 1.0

    def __init__(self, *known: PlanChange, elapsed_s: float = 100.0) -> None:
        self.known = {key_of(change) for change in known}
        self.tried: list[Any] = []
        self._elapsed_s = elapsed_s

    def is_slow(self) -> bool:
        return False

    def elapsed_s(self) -> float:
        return self._elapsed_s

    def has_time(self, until: float) -> bool:
        assert until == 1.0
        return self._elapsed_s < 60.0

    def is_known(self, change: PlanChange, *, final: bool = False, repeats: int = 1) -> bool:
        assert repeats
        return not final and key_of(change) in self.known


def measure(_changes: Sequence[PlanChange], *, repeats: int, with_short: bool) -> list[list[BenchRun]]:
    pytest.fail(f"there is no time for {repeats} processes, {with_short}")


def searched(*, larger: bool = False) -> Search:
    """A layout made the step twice as fast, and half the precision made it slower. `larger`: a batch of 256 made a
    sample of the layout's step faster still."""
    search = Search([
        TuningOption(name=name, axis=name, change=PlanChange(settings={name: True})) for name in ("layout", "half")
    ])  # fmt: skip
    for candidate, value in ((BASELINE, 1.0), (LAYOUT, 0.5), (HALF, 1.1)):
        search.tell(candidate, value)
    if larger:
        search.grow(batch_option(256), 0.4)
    return search


def finals(bench: Bench, measure: FinalistMeasure = measure, *, time_s: float = 60.0) -> Finals:
    request = TuningRequest(time_s=time_s, repeats=2, seconds=1.0, gate=False)
    return Finals(
        request, bench, measure=measure, check=lambda _: GateVerdict(), store=None, say=lambda _: None,  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_was_measured_once_is_the_answer_and_is_not_proved() -> None:
    search = searched(larger=True)
    fastest = search.change(LAYOUT | LARGER)
    last = finals(Bench(fastest))
    assert last.decide(search) == LAYOUT | LARGER
    assert last.marked[key_of(fastest)].status is RungStatus.UNPROVED
    assert "The time was over" in last.notes[0]


def test_what_was_never_measured_is_no_answer() -> None:
    last = finals(Bench())
    assert last.decide(searched()) == BASELINE
    assert not last.marked
    assert "The time was over" in last.notes[0]


@pytest.mark.parametrize(
    ("larger", "refused", "left"),
    [
        (False, BASELINE, [LAYOUT]),
        (False, LAYOUT, []),
        (True, BASELINE, [LAYOUT | LARGER]),
        (True, LARGER, [LAYOUT]),
        pytest.param(True, LAYOUT, [LARGER], id="the larger batch alone, not with what made it slower"),
    ],
)
def test_what_is_slower_than_the_baseline_is_no_finalist(
    larger: bool, refused: Candidate, left: list[Candidate]
) -> None:
    rest = (LAYOUT | LARGER if larger else LAYOUT) - refused if refused else BASELINE
    assert finals(Bench())._finalists(searched(larger=larger), refused, rest=rest) == left


def test_after_the_gate_the_rest_of_what_failed_it_comes_first() -> None:
    """The search has not measured it; where a part of it has failed, it is not measured now either."""
    search = searched(larger=True)
    search.tell(HALF | LAYOUT, 0.45)
    search.tell(HALF | LAYOUT | LARGER, 0.3)
    last = finals(Bench())
    assert last._finalists(search, LAYOUT, rest=HALF | LARGER) == [HALF | LARGER]
    assert last._finalists(search, HALF, rest=LAYOUT | LARGER) == [LAYOUT | LARGER]
    search.tell(LARGER, None)
    assert last._finalists(search, LAYOUT, rest=HALF | LARGER) == []


def test_where_the_time_is_over_the_rest_of_what_failed_the_gate_is_not_the_answer() -> None:
    search = searched()
    search.tell(HALF | LAYOUT, 0.45)
    last = finals(Bench(search.change(LAYOUT)))
    assert last._measured_winner(search, [LARGER, LAYOUT]) == LAYOUT


def test_a_part_of_the_fastest_that_is_nearly_as_fast_is_measured_first() -> None:
    """Where there is time for one only, it is the answer."""
    search = searched()
    both = LAYOUT | HALF
    search.tell(both, 0.497)
    assert finals(Bench())._finalists(search, BASELINE, rest=BASELINE) == [LAYOUT, both]
    search.tell(both, 0.49)
    assert finals(Bench())._finalists(search, BASELINE, rest=BASELINE) == [both, LAYOUT]
    search.tell(both, 0.4)
    assert finals(Bench())._finalists(search, BASELINE, rest=BASELINE) == [both]


@pytest.mark.parametrize(("with_both", "answer"), [(0.497, LAYOUT), (0.48, LAYOUT | HALF)])
def test_what_gains_less_than_a_hundredth_in_the_finals_is_left_out_and_says_so(
    monkeypatch: pytest.MonkeyPatch, with_both: float, answer: Candidate
) -> None:
    """Runs are their own figures here."""
    monkeypatch.setattr("metalmark.app.tune_finals.value_of", lambda runs, _: runs[0])
    monkeypatch.setattr("metalmark.app.tune_finals.excess_of", lambda _runs, _request: 1.0)
    faster = SimpleNamespace(verdict=Verdict.FASTER, ratio=2.0, low=1.9, high=2.1)
    monkeypatch.setattr("metalmark.app.tune_finals.compared", lambda _baseline, _runs, _request: faster)
    search = searched()
    both = LAYOUT | HALF
    search.tell(both, 0.49)

    def measured(changes: Sequence[PlanChange], *, repeats: int, with_short: bool) -> list[list[Any]]:
        assert (repeats, with_short) == (2, False)
        return [[{0: 1.0, 1: 0.5, 2: with_both}[len(change.settings)]] for change in changes]

    last = finals(Bench(elapsed_s=0.0), measured)
    assert last.decide(search) == answer
    reasons = {key: rung.reason for key, rung in last.marked.items() if rung.status is RungStatus.NO_GAIN}
    if answer == both:
        assert not reasons
    else:
        assert reasons == {key_of(search.change(both)): "Measured in turn with layout, it gains less than 1%."}


@pytest.mark.parametrize(
    ("verdict", "high", "time_s", "rounds"),
    [
        (Verdict.FASTER, 2.0, 60.0, 2),
        pytest.param(Verdict.CANT_TELL, 1.05, 60.0, 2, id="what it might gain is not worth it"),
        pytest.param(Verdict.CANT_TELL, 9.0, 60.0, 6, id="three times as many as were asked for"),
        pytest.param(Verdict.CANT_TELL, 9.0, 12.0, 4, id="as many as there is time for"),
    ],
)
def test_more_processes_are_measured_while_they_leave_open_what_is_gained(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, high: float, time_s: float, rounds: int
) -> None:
    judged = SimpleNamespace(verdict=verdict, high=high, ratio=1.5, reason="noise")
    monkeypatch.setattr("metalmark.app.tune_finals.value_of", lambda runs, _: runs[0])
    monkeypatch.setattr("metalmark.app.tune_finals.excess_of", lambda _runs, _request: 1.0)
    monkeypatch.setattr("metalmark.app.tune_finals.compared", lambda _baseline, _runs, _request: judged)
    bench, asked = Bench(elapsed_s=0.0), []

    def measured(changes: Sequence[PlanChange], *, repeats: int, with_short: bool) -> list[list[Any]]:
        asked.append(repeats)
        bench._elapsed_s = float(repeats * len(changes))
        assert not with_short
        return [[1.0], [0.5]]

    last = finals(bench, measured, time_s=time_s)
    assert last.decide(searched()) == (LAYOUT if verdict is Verdict.FASTER else BASELINE)
    assert asked == list(range(2, rounds + 1))


@pytest.mark.parametrize(("with_both", "answer"), [((0.5, 0.48), LAYOUT | HALF), ((0.47, 0.5), LAYOUT)])
def test_two_finalists_that_processes_do_not_tell_apart_are_measured_on(
    monkeypatch: pytest.MonkeyPatch, with_both: tuple[float, float], answer: Candidate
) -> None:
    """Twice as many processes as were asked for, and none more of the baseline. The layout alone takes 0.49."""
    baseline = [1.0, 1.0]
    faster = SimpleNamespace(verdict=Verdict.FASTER, ratio=2.0, low=1.9, high=2.1)
    close = SimpleNamespace(verdict=Verdict.CANT_TELL, ratio=1.0, low=0.8, high=1.2)
    monkeypatch.setattr("metalmark.app.tune_finals.value_of", lambda runs, _: runs[-1])
    monkeypatch.setattr("metalmark.app.tune_finals.excess_of", lambda _runs, _request: 1.0)
    monkeypatch.setattr(
        "metalmark.app.tune_finals.compared", lambda one, _other, _request: faster if one is baseline else close
    )
    search = searched()
    search.tell(LAYOUT | HALF, 0.49)
    asked: list[tuple[int, int]] = []

    def measured(changes: Sequence[PlanChange], *, repeats: int, with_short: bool) -> list[list[Any]]:
        asked.append((len(changes), repeats))
        assert not with_short
        finalists = [[0.49], [with_both[0] if repeats < 4 else with_both[1]]]
        ordered = finalists if len(changes[-1].settings) == 2 else finalists[::-1]
        return [baseline, *ordered] if changes[0] == PlanChange() else ordered

    assert finals(Bench(elapsed_s=0.0), measured).decide(search) == answer
    assert asked == [(3, 2), (2, 3), (2, 4)]
