"""Tunings as they are shown: in sentences, in tables of any width, on the page and in charts."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import unescape
from typing import Any

import msgspec
import pytest
from rich.console import Console

from metalmark.model.parity import ParityVerdict
from metalmark.model.plan import Feed, Mode, PlanChange
from metalmark.model.run import PARITY_FAILED, FailureKind
from metalmark.model.tuning import RungStatus, Tuned, TuningGoal, TuningRequest
from metalmark.report.content import Content
from metalmark.report.html.document import document
from metalmark.report.text.exports import markdown_text
from metalmark.report.text.run_page import run_facts
from metalmark.report.text.tables import Table
from metalmark.report.text.terminal import print_table
from metalmark.report.text.tune_page import (
    ladder_table,
    parity_words,
    settings_words,
    so_far_table,
    tried_table,
    tuning_answers,
    tuning_sentence,
    tuning_tables,
)
from metalmark.results.command import change_options
from metalmark.tune.ladder import best_so_far
from tests.samples import (
    BASELINE_RUNG,
    BEST_RUNG,
    DIFFERS,
    OTHER_RUNGS,
    failed,
    parity_mark,
    plan,
    rung,
    tuned,
    tuning_run,
)

replace = msgspec.structs.replace
NOTHING = tuned(ladder=(BASELINE_RUNG,), others=OTHER_RUNGS[:1])
UNTESTED = parity_mark(ParityVerdict.UNTESTED)
UNPROVED = replace(
    BEST_RUNG, status=RungStatus.UNPROVED, parity=UNTESTED, curve=None, reason="The CPU has no bfloat16 for it."
)
ENERGY = tuned(
    ladder=(replace(BASELINE_RUNG, joules_per_sample=0.004), replace(BEST_RUNG, joules_per_sample=0.002)), others=()
)


def printed(columns: int, tables: Sequence[Table]) -> list[str]:
    out = io.StringIO()
    console = Console(width=columns, highlight=False, color_system=None, file=out)
    for table in tables:
        print_table(table, console)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def said(outcome: Tuned | None = None, **changes: Any) -> str:
    return tuning_sentence(tuning_run(outcome, **changes))


def asked(**changes: Any) -> TuningRequest:
    return TuningRequest(**changes)


# Sentences


def test_what_was_found_is_one_sentence() -> None:
    assert said() == (
        "bfloat16 and compile make mnist-mlp on torch, cpu 2.00x as fast (1.94x to 2.06x): 3.20 ms per step became "
        "1.60 ms; it trains the same network."
    )
    alone = rung("+ compile", RungStatus.BEST, 0.0016, change=PlanChange(settings={"compile": True}), parity=None)
    assert said(tuned(ladder=(BASELINE_RUNG, alone)), request=asked(gate=False)) == (
        "compile makes mnist-mlp on torch, cpu 2.00x as fast: 3.20 ms per step became 1.60 ms; whether it trains the "
        "same network was not checked."
    )
    larger = replace(BEST_RUNG, samples_per_step=64)
    assert "10,000 samples/s became 40,000 samples/s;" in said(tuned(ladder=(BASELINE_RUNG, larger)))
    assert "2.00x as fast (1.94x to 2.06x) over 500 steps, the first one included:" in said(
        request=asked(steps_planned=500)
    )
    inference = said(plan=plan(mode=Mode.INFERENCE))
    assert inference.startswith("bfloat16 and compile make mnist-mlp inference on torch, cpu 2.00x")
    assert inference.endswith("it computes the same outputs.")


def test_a_larger_batch_is_not_said_to_train_the_same_network_as_the_smaller_one() -> None:
    larger = replace(BEST_RUNG, change=PlanChange(params={"batch_size": 64}), samples_per_step=64)
    assert said(tuned(ladder=(BASELINE_RUNG, larger))).endswith(
        "; it trains the same network as the baseline does with that batch."
    )


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (TuningGoal.LATENCY, "make mnist-mlp on torch, cpu 2.00x as fast"),
        (TuningGoal.ENERGY, "make the energy per sample of mnist-mlp on torch, cpu 2.00x lower (1.94x to 2.06x): "
         "4.00 mJ became 2.00 mJ;"),
        (TuningGoal.MEMORY, "make the memory peak of mnist-mlp on torch, cpu 2.00x lower (1.94x to 2.06x): 512 MiB "
         "became 300 MiB;"),
    ],
)  # fmt: skip
def test_each_goal_is_said_in_its_own_unit(goal: TuningGoal, words: str) -> None:
    assert words in said(ENERGY, request=asked(goal=goal))
    nothing = said(NOTHING, request=asked(goal=goal))
    assert nothing.startswith("No setting helps: the one that was tried does not make mnist-mlp on torch, cpu ")


def test_that_nothing_helps_is_said_with_what_is_faster_and_fails_the_gate() -> None:
    assert said(NOTHING) == (
        "No setting helps: the one that was tried does not make mnist-mlp on torch, cpu faster (3.20 ms per step)."
    )
    assert said(tuned(ladder=(BASELINE_RUNG,))) == (
        "No setting helps: none of 3 that were tried makes mnist-mlp on torch, cpu faster (3.20 ms per step) and "
        "passes the gate; float16 would gain 3.20x, but trains differently, parity_failed."
    )
    unproved = replace(OTHER_RUNGS[1], status=RungStatus.UNPROVED, parity=UNTESTED)
    assert said(tuned(ladder=(BASELINE_RUNG,), others=(unproved,))).endswith(
        "float16 would gain 3.20x, but is not proved."
    )
    assert said(tuned(ladder=(BASELINE_RUNG,), others=())) == (
        "No setting helps: there was nothing to try on mnist-mlp on torch, cpu (3.20 ms per step)."
    )


def test_where_processes_differ_too_much_it_is_not_said_that_nothing_helps() -> None:
    noisy = replace(OTHER_RUNGS[0], status=RungStatus.NO_GAIN, gain=5.75, low=0.32, high=103.79, reason="noise")
    found = tuned(ladder=(BASELINE_RUNG,), others=(noisy,))
    assert found.undecided == noisy
    assert said(found).startswith("It can't be told what makes mnist-mlp on torch, cpu faster (3.20 ms per step): ")
    assert "measured 5.75x (0.32 to 103.79)" in said(found)
    assert tuning_run(found).header.ending == "can't tell what helps"
    flat = replace(noisy, gain=1.01, low=0.98, high=1.04)
    assert tuned(ladder=(BASELINE_RUNG,), others=(flat,)).undecided is None
    assert tuned(others=(noisy,)).undecided is None, "something else helps"


def test_a_baseline_that_failed_has_the_reason() -> None:
    lost = tuning_run(failed(FailureKind.OUT_OF_MEMORY, "no room"))
    assert tuning_sentence(lost) == "mnist-mlp on torch, cpu could not be tuned: out of memory: no room."
    (table,) = tuning_tables([lost])
    assert table.rows == (("mnist-mlp training batch 32 torch cpu", "out of memory", "-", "", "", ""),)
    assert table.caption == tuning_sentence(lost)


def test_a_search_that_was_stopped_says_so() -> None:
    assert said(tuned(complete=False)).startswith(
        "Stopped after 11 trials: so far, bfloat16 and compile make mnist-mlp on torch, cpu 2.00x as fast"
    )
    early = replace(NOTHING, complete=False, trials=1)
    assert said(early) == (
        "Stopped after 1 trial, before any setting was seen to make mnist-mlp on torch, cpu faster (3.20 ms per step)."
    )
    at_once = tuned(ladder=(replace(BASELINE_RUNG, step_s=None),), others=(), complete=False, trials=0)
    assert said(at_once) == "Stopped before the baseline of mnist-mlp on torch, cpu was measured."
    notes = tuning_tables([tuning_run(early)])[-1].notes
    assert "Stopped before the search came to its end." in notes


def test_what_is_not_proved_or_trains_differently_is_never_called_the_same_network() -> None:
    assert said(tuned(ladder=(BASELINE_RUNG, UNPROVED))).endswith(
        "1.60 ms; whether it trains the same network is not proved."
    )
    unmarked = replace(BEST_RUNG, parity=None, curve=None)
    assert said(tuned(ladder=(BASELINE_RUNG, unmarked))).endswith("whether it trains the same network is not proved.")
    half = replace(BEST_RUNG, curve=DIFFERS)
    assert said(tuned(ladder=(BASELINE_RUNG, half))).endswith("it does not train the same network (parity_failed).")


def test_settings_are_named_as_people_speak_of_them() -> None:
    change = PlanChange(
        settings={"dtype": "bfloat16", "channels_last": True, "compile": False, "threads": 4},
        loader={"workers": 2}, params={"batch_size": 64}, feed=Feed.RESIDENT,
    )  # fmt: skip
    assert settings_words(change) == (
        "bfloat16, channels last, no compile, threads 4, workers 2, batch size 64 and data from resident"
    )
    assert settings_words(PlanChange()) == ""
    assert settings_words(PlanChange(settings={"fused": True})) == "fused"
    assert change_options(change) == (
        "--dtype=bfloat16 --channels-last=on --compile=off --threads=4 --workers=2 --batch-size=64 --data-from=resident"
    )


# Tables


def test_the_ladder_has_a_row_per_rung_and_no_column_without_a_value() -> None:
    table = ladder_table(tuning_run(), tuned())
    assert table.headers == ("settings", "step", "samples/s", "gain", "first step", "memory", "parity")
    assert table.rows == (
        ("baseline", "3.20 ms", "10,000", "", "10.0 ms", "512 MiB", "-"),
        ("+ bfloat16", "2.00 ms", "16,000", "1.60x", "", "", "not checked"),
        ("+ compile", "1.60 ms", "20,000", "2.00x (1.94 to 2.06)", "8.20 s", "300 MiB", "agrees"),
    )
    assert table.caption.startswith(said())
    assert "To measure or train with the best settings, add: --dtype=bfloat16 --compile=on" in table.notes
    assert any("over 3 processes of each, in turn" in note for note in table.notes)
    energy = ladder_table(tuning_run(ENERGY), ENERGY)
    assert energy.headers[-2:] == ("energy per sample", "parity")
    assert [row[-2] for row in energy.rows] == ["4.00 mJ", "2.00 mJ"]
    bare = ladder_table(tuning_run(NOTHING), NOTHING)
    assert not any(note.startswith(("Gain", "To measure")) for note in bare.notes)
    assert bare.headers == ("settings", "step", "samples/s", "first step", "memory", "parity")


def test_what_else_was_tried_has_its_status_and_the_reason() -> None:
    table = tried_table(tuned())
    assert table.headers == ("tried", "step", "gain", "status", "because")
    assert table.rows == (
        ("fused", "3.30 ms", "0.97x", "no gain", ""),
        ("float16", "1.00 ms", "3.20x", "trains differently, parity_failed", "torch mps differs: in bn1."),
        ("channels last", "-", "-", "failed", "the worker was killed"),
    )
    assert tried_table(NOTHING).headers == ("tried", "step", "gain", "status")
    second = msgspec.structs.replace(tuned(), others=(rung("fused", RungStatus.NO_GAIN, 0.0016),))
    assert tried_table(second).rows == (("fused", "1.60 ms", "2.00x", "not the best"),)


def test_the_answer_comes_first_and_what_was_not_tried_last() -> None:
    lines = printed(200, tuning_tables([tuning_run()]))
    assert lines[0] == said()
    assert lines[-1] == "• Not tried: graph: torch has no graphs on cpu."
    text = "\n".join(lines)
    order = ["settings", "+ compile", "Gain:", "What else was tried", "The batch size was kept.", "11 trials in 1 min"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize("columns", [80, 100])
def test_it_fits_the_window_and_keeps_every_mark(columns: int) -> None:
    wrong = rung("+ float16", RungStatus.DIFFERS, 0.001, parity=DIFFERS, low=3.1, high=3.3, peak_bytes=1 << 30)
    for outcome in (tuned(), tuned(ladder=(BASELINE_RUNG, wrong)), ENERGY):
        lines = printed(columns, tuning_tables([tuning_run(outcome)]))
        assert max(map(len, lines)) <= columns
        assert "…" not in "".join(lines)
        assert any(line.startswith(" baseline") for line in lines)
    (line,) = [
        line
        for line in printed(columns, tuning_tables([tuning_run(tuned(ladder=(BASELINE_RUNG, wrong), others=()))]))
        if line.startswith(" + float16")
    ]
    assert "3.20x (3.10 to 3.30)" in line
    assert f"differs, {PARITY_FAILED}" in line
    memory = printed(columns, tuning_tables([tuning_run(request=asked(goal=TuningGoal.MEMORY))]))
    assert any("300 MiB" in line for line in memory if line.startswith(" + compile"))


def test_what_the_checks_found_is_one_word() -> None:
    assert parity_words(BEST_RUNG) == "agrees"
    assert parity_words(UNPROVED) == "could not be tested"
    assert parity_words(BASELINE_RUNG) == "-"
    assert parity_words(OTHER_RUNGS[0]) == "not checked"
    assert parity_words(replace(BEST_RUNG, curve=DIFFERS)) == f"differs, {PARITY_FAILED}"
    by_its_curve = replace(OTHER_RUNGS[1], parity=None, reason="its loss curve leaves the baseline's")
    assert parity_words(by_its_curve) == f"differs, {PARITY_FAILED}"


def test_reasons_on_the_ladder_and_a_gate_that_was_off_are_said_below_it() -> None:
    outcome = tuned(ladder=(BASELINE_RUNG, UNPROVED))
    assert "+ compile: The CPU has no bfloat16 for it." in ladder_table(tuning_run(outcome), outcome).notes
    ungated = ladder_table(tuning_run(request=asked(gate=False)), tuned()).notes
    assert any(note.startswith("The gate was switched off") for note in ungated)
    planned = ladder_table(tuning_run(request=asked(steps_planned=100)), tuned()).notes
    assert any("The first step counts too, spread over 100 steps." in note for note in planned)


def test_several_tunings_are_one_table() -> None:
    runs = [tuning_run(), tuning_run(NOTHING, plan=plan(framework="jax")), tuning_run(failed(message="no room"))]
    (table,) = tuning_tables(runs)
    assert [row[1] for row in table.rows] == ["bfloat16 and compile", "nothing helps", "out of memory"]
    assert table.rows[0][2:] == ("1.60 ms", "20,000", "2.00x (1.94 to 2.06)", "agrees")
    assert len(tuning_answers(runs)) == 3
    assert tuning_answers(runs)[1].startswith("mnist-mlp training batch 32 jax cpu: No setting helps")
    assert tuning_tables([]) == []


def test_the_facts_of_a_tuning() -> None:
    facts = dict(run_facts(tuning_run(request=asked(fixed=("batch_size",), memory_limit_bytes=1 << 30))))
    assert (facts["goal"], facts["gate"], facts["kept as they are"]) == ("throughput", "on", "batch size")
    assert (facts["memory limit"], facts["ran on"]) == ("1.00 GiB", "cpu (Test CPU)")
    assert (facts["best settings"], facts["its runs"]) == ("bfloat16 and compile", "trial00001")
    assert dict(run_facts(tuning_run(NOTHING)))["best settings"] == "the baseline"
    assert "took" not in dict(run_facts(tuning_run(failed())))


# Pages and charts


def titles(page: str) -> list[str]:
    return [unescape(text) for text in re.findall(r"<title>([^<]*)</title>", page)]


def test_the_page_has_the_answer_the_ladder_and_then_the_chart() -> None:
    pytest.importorskip("vl_convert")
    page = document(Content(runs=(tuning_run(),)))
    order = ["2.00x as fast (1.94x to 2.06x)", "<td", "What each setting gains", "<svg", "What else was tried"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    shown = titles(page)
    assert (
        "+ compile, best: 2.00x, 1.60 ms per step, 95% interval 1.94 to 2.06 (times as many samples per second as the "
        "baseline)" in shown
    )
    assert any(text.startswith("baseline, baseline: 1.00x, 3.20 ms per step") for text in shown)
    assert any(text.startswith(f"float16, trains differently: 3.20x, {PARITY_FAILED}, 1.00 ms") for text in shown)
    assert "1 tuning" in page
    # What the sensors read is with its trials.
    assert "elemetry was switched off" not in page


def test_the_chart_of_a_ladder() -> None:
    pytest.importorskip("vl_convert")
    from metalmark.report.charts.draw import Figure, Missing
    from metalmark.report.charts.tune import tuning_figures

    ladder, tried = tuning_figures(tuning_run())
    assert isinstance(ladder, Figure)
    assert isinstance(tried, Figure)
    assert [row[0] for row in ladder.numbers.rows] == ["baseline", "+ bfloat16", "+ compile"]
    assert ladder.numbers.rows[-1] == ("+ compile", "best", "2.00x (1.94 to 2.06)", "1.60 ms", "agrees")
    # What failed has no bar.
    assert [row[0] for row in tried.numbers.rows] == ["fused", "float16"]
    assert tried.numbers.rows[1][1] == f"trains differently, {PARITY_FAILED}"
    (nothing, others) = tuning_figures(tuning_run(NOTHING))
    assert (type(nothing), type(others)) == (Missing, Figure)
    (lost,) = tuning_figures(tuning_run(failed()))
    assert isinstance(lost, Missing)
    same = rung("fused", RungStatus.NO_GAIN, 0.003, change=PlanChange(settings={"fused": True}))
    again = tuning_figures(tuning_run(tuned(others=(same,) * 40)))[1]
    assert isinstance(again, Figure)
    assert [row[0] for row in again.numbers.rows[:2]] == ["fused", "fused (2)"]
    assert again.about.startswith("The first 24 of 40.")


def test_every_case_has_a_page() -> None:
    pytest.importorskip("vl_convert")
    wrong = tuned(ladder=(BASELINE_RUNG, rung("+ float16", RungStatus.DIFFERS, 0.001, parity=DIFFERS, reason="x")))
    for outcome, words in (
        (NOTHING, "No setting helps"), (failed(message="no room"), "no room"), (tuned(complete=False), "Stopped after"),
        (tuned(ladder=(BASELINE_RUNG, UNPROVED)), "is not proved"), (ENERGY, "4.00 mJ"), (wrong, PARITY_FAILED),
    ):  # fmt: skip
        assert words in document(Content(runs=(tuning_run(outcome),)))
    page = document(Content(runs=(tuning_run(wrong),)))
    assert f'<strong class="flag">{PARITY_FAILED}</strong>' in page
    assert any(f"3.20x, {PARITY_FAILED}, 1.00 ms" in text for text in titles(page))
    both = document(Content(runs=(tuning_run(), tuning_run(NOTHING, plan=plan(framework="jax")))))
    assert "2 tunings" in both


def test_nothing_that_a_user_wrote_is_run() -> None:
    pytest.importorskip("vl_convert")
    evil = "<script>alert(1)</script>"
    outcome = tuned(
        ladder=(BASELINE_RUNG, replace(BEST_RUNG, title=evil, reason=evil)), notes=(evil,), left_out=(evil,),
        others=(replace(OTHER_RUNGS[0], reason=evil, change=PlanChange(params={evil: 1})),),
    )  # fmt: skip
    assert "<script>alert" not in document(Content(runs=(tuning_run(outcome),)))


def test_markdown_has_the_ladder() -> None:
    text = markdown_text(Content(runs=(tuning_run(),)))
    for words in ("| + compile | 1.60 ms | 20,000 | 2.00x (1.94 to 2.06) |", "| fused | 3.30 ms | 0.97x | no gain |"):
        assert words in text


# While a search goes on


def test_the_best_so_far_is_what_may_still_win() -> None:
    fused, differs, crashed = OTHER_RUNGS
    assert best_so_far(()) is None
    assert best_so_far((replace(BASELINE_RUNG, value=None), BEST_RUNG)) is None, "the baseline failed"
    assert best_so_far((BASELINE_RUNG, fused, differs, crashed)) is None, "slower, refused by the gate, failed"
    compiled = replace(BEST_RUNG, status=RungStatus.NO_GAIN)
    assert best_so_far((BASELINE_RUNG, fused, compiled)) == compiled
    refused = replace(compiled, reason="Measured in turn with the baseline, it is no better than the baseline.")
    assert best_so_far((BASELINE_RUNG, refused)) is None
    # What needs more memory than is allowed has a worse value, however fast it is.
    assert best_so_far((BASELINE_RUNG, replace(compiled, value=1.0), UNPROVED)) == UNPROVED


def test_what_was_tried_so_far_is_a_table_of_the_goal() -> None:
    rungs = (replace(BASELINE_RUNG, joules_per_sample=0.004), BEST_RUNG, *OTHER_RUNGS)
    table = so_far_table(rungs, TuningGoal.THROUGHPUT)
    assert table.headers == ("tried", "step", "samples/s", "gain", "what came of it")
    assert [row[-1] for row in table.rows] == [
        "", "best so far", "", f"trains differently, {PARITY_FAILED}: torch mps differs: in bn1.",
        "failed: the worker was killed",
    ]  # fmt: skip
    assert "energy per sample" in so_far_table(rungs, TuningGoal.ENERGY).headers
    assert "memory" in so_far_table(rungs, TuningGoal.MEMORY).headers
