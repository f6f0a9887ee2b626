"""Explanations and watched scripts as they are shown: in words, in tables of any width, on the page and in charts."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import unescape

import msgspec
import pytest
from rich.console import Console

from metalmark.model.explanation import (
    Bottleneck,
    Cause,
    Experiment,
    ExperimentKind,
    Explained,
    MeasuredGain,
    OperationCost,
    Profile,
    Proposal,
    Roofline,
    StepShare,
)
from metalmark.model.plan import Feed, PlanChange
from metalmark.model.run import Absent
from metalmark.model.watch import WatchedRun
from metalmark.report.content import Content
from metalmark.report.html.document import document
from metalmark.report.text.explain_page import (
    change_words,
    experiments_table,
    explanation_sentence,
    explanation_tables,
    gain_words,
    measured_words,
    operations_table,
    proposals_table,
    roofline_lines,
    roofline_words,
    scaled,
    shown_percentages,
    shown_shares,
)
from metalmark.report.text.exports import markdown_text
from metalmark.report.text.run_page import run_facts
from metalmark.report.text.tables import Table
from metalmark.report.text.terminal import print_table
from metalmark.report.text.watch_page import exit_words, step_parts, watched_tables, watched_verdict
from tests.samples import INPUT_SHARES, explained, explanation_run, failed, watched_run, watched_script

LINE = explained().roofline
assert isinstance(LINE, Roofline)
SCRIPT_RUN = watched_run(elapsed_s=6.0, script=watched_script())


def printed(columns: int, tables: Sequence[Table]) -> list[str]:
    out = io.StringIO()
    console = Console(width=columns, highlight=False, color_system=None, file=out)
    for table in tables:
        print_table(table, console)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def page_of(columns: int, outcome: Explained | None = None) -> list[str]:
    return printed(columns, explanation_tables([explanation_run(outcome)], columns=columns))


# Shares


@pytest.mark.parametrize(
    "values", [(1, 1, 1), (0.0115, 0.001, 0.002, 0.0017), (1e-9, 1, 1, 1, 1, 1, 1), (5,), (2, 1e-12), (1 / 7,) * 7]
)
def test_shown_percentages_add_up(values: tuple[float, ...]) -> None:
    shown = shown_percentages(values)
    assert sum(round(float(text.removesuffix("%")) * 10) for text in shown) == 1000
    for text, value in zip(shown, values, strict=True):
        assert abs(float(text.removesuffix("%")) - value / sum(values) * 100) < 0.1


def test_of_nothing_there_are_no_percentages() -> None:
    assert shown_percentages([0.0, 0.0]) == ["0.0%", "0.0%"]
    assert shown_percentages([]) == []


def test_the_largest_share_stands_first_and_the_unexplained_last() -> None:
    left = StepShare(cause=Cause.UNEXPLAINED, seconds=0.5, error_s=0.1, evidence="what is left")
    found = explained(step_s=0.6, shares=(left, StepShare(cause=Cause.HOST, seconds=0.1, error_s=0.0, evidence="x")))
    assert [one.cause for one in shown_shares(found)] == [Cause.HOST, Cause.UNEXPLAINED]
    (shares, *_) = explanation_tables([explanation_run()])
    assert [row[0] for row in shares.rows] == [
        "input wait", "device compute", "host", "memory traffic", "optimiser", "unexplained", "one step",
    ]  # fmt: skip
    assert shares.rows[0] == ("input wait", "11.5", "71.0%", "1.9%", "the loop waited 11.5 ms for each batch")
    assert shares.rows[-1] == ("one step", "16.2", "100.0%", "1.9%", "1,975 samples/s")
    assert shares.headers[1] == "ms"
    assert shares.notes == ("No time was found for: synchronisation.",)
    assert sum(float(row[2].removesuffix("%")) for row in shares.rows[:-1]) == pytest.approx(100)


# The page as a whole


def test_the_verdict_comes_first_and_what_is_missing_last() -> None:
    lines = page_of(200, explained(missing=("Time it with 4 workers: metalmark explain mnist-mlp --workers 4",)))
    assert lines[0].startswith("Input-bound: 71% of each step waits for the loader")
    assert lines[-1] == "• To know more: Time it with 4 workers: metalmark explain mnist-mlp --workers 4"
    text = "\n".join(lines)
    order = ["cause", "What would make it faster", "Roofline:", "The most expensive operations", "What was tried",
             "Not tried: captured", "Parts of a step: forward 1.40 ms", "5 experiments in 41 s"]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize("columns", [80, 100])
def test_it_fits_the_window(columns: int) -> None:
    lines = page_of(columns)
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    text = "\n".join(lines)
    for words in ("71.0%", "3.18x (2.90 to 3.40)", "3.09x (3.01 to 3.16)", "14.0 TFLOP/s", "31.5%"):
        assert words in text


def test_what_failed_or_took_no_step_is_one_row() -> None:
    lost = explanation_run(failed(message="no room"))
    (table,) = explanation_tables([lost])
    assert table.rows[0][1] == "out of memory"
    assert explanation_sentence(lost).endswith("could not be told: out of memory: no room.")
    (several,) = explanation_tables([lost, explanation_run()])
    assert [row[1] for row in several.rows] == ["out of memory", "input-bound"]
    assert several.rows[1][3:] == ("input wait 71.0%", "4 loader workers", "3.18x", "3.09x (3.01 to 3.16)")
    assert explanation_tables([]) == []
    bare = explained(
        proposals=(), experiments=(), profile=Absent("no profiler on mps"), roofline=Absent("not counted"), parts={},
        complete=False, fallbacks=("aten::foo",),
    )  # fmt: skip
    (only,) = explanation_tables([explanation_run(bare)])
    notes = " ".join(only.notes)
    for words in ("No roofline: not counted.", "No operations: no profiler on mps.", "Stopped before every",
                  "On the CPU for want of a kernel: aten::foo."):  # fmt: skip
        assert words in notes


# Proposals, experiments and operations


def test_a_proposal_says_what_to_type_what_to_write_and_why() -> None:
    table = proposals_table(explained())
    assert table.headers == ("", "change", "type", "expected", "measured")
    assert table.rows[0][1:] == ("4 loader workers", "--workers 4", "3.18x (2.90 to 3.40)", "3.09x (3.01 to 3.16)")
    assert table.rows[1][-1] == "-"
    assert table.notes[0].endswith("In a script: DataLoader(..., num_workers=4)")
    unmeasured = explained(proposals=(Proposal(title="less Python", gain=None, reason="nothing tells"),))
    assert proposals_table(unmeasured).headers == ("", "change", "type", "expected")
    assert proposals_table(unmeasured).rows == (("1.", "less Python", "-", "?"),)
    assert gain_words(1.5) == "1.50x"
    assert measured_words(MeasuredGain(baseline_s=1.0, changed_s=None, gain=None, failed="no room")) == (
        "failed: no room"
    )


def test_a_change_is_named() -> None:
    change = PlanChange(
        settings={"compile": True}, loader={"workers": 4}, params={"batch_size": 64}, feed=Feed.RESIDENT
    )
    assert change_words(change) == "compile on, workers 4, batch size 64, data from resident"
    assert change_words(PlanChange()) == ""


def test_experiments_that_could_not_be_done_are_named_below() -> None:
    table = experiments_table(explained())
    assert [row[0] for row in table.rows] == [
        "as asked", "resident batch", "another loader", "another batch size",
    ]  # fmt: skip
    assert table.rows[2] == ("another loader", "workers 4", "5.10 ms", "3.9%", "31.5%", "400 µs", "")
    assert "Not tried: captured: mps has no graphs." in table.notes
    plain = explained(experiments=(Experiment(kind=ExperimentKind.FORWARD, seconds=0.0, error_s=0.0),))
    assert experiments_table(plain).headers == ("experiment", "time")


def test_ten_operations_at_most() -> None:
    many = [OperationCost(name=f"op {at}", calls=1, seconds=0.01, share=0.05) for at in range(20)]
    table = operations_table(Profile(source="torch.profiler", operations=tuple(many), total_s=0.2))
    assert len(table.rows) == 10
    assert "torch.profiler" in table.caption


# Roofline


def roofline(**changes: float) -> Roofline:
    assert isinstance(LINE, Roofline)
    return msgspec.structs.replace(LINE, **changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"bytes": 1e10}, {"bytes": 1e4}, {"bytes": 3e8}, {"step_s": 8.6e-4}, {"step_s": 100.0}, {"flops": 1.0}],
)
def test_the_drawing_of_the_roofline_fits_and_has_the_step_below_its_roof(changes: dict[str, float]) -> None:
    lines = roofline_lines(roofline(**changes))
    assert max(map(len, lines)) <= 80
    drawn = lines[:-1]
    (at,) = [number for number, line in enumerate(drawn) if "●" in line]
    column = drawn[at].index("●")
    above = [number for number, line in enumerate(drawn[:at]) if line[column : column + 1] in ("─", "·")]
    found = roofline(**changes)
    assert bool(above) == (found.achieved_flops_per_s < 0.6 * found.reachable_flops_per_s)
    assert scaled(roofline(**changes).achieved_flops_per_s, "FLOP/s") in drawn[at]
    assert "FLOP per byte" in lines[-1]


def test_the_roofline_in_words() -> None:
    assert roofline_words(roofline()) == (
        "120 FLOP per byte, the ridge is at 40.0: at its best arithmetic would limit it, to 14.0 TFLOP/s; it reached "
        "5.3% of that."
    )
    cached = roofline_words(roofline(bytes=1e10))
    assert "at its best memory would limit it, to 420 GFLOP/s" in cached
    assert cached.endswith("it reached 176.4% of that, since much of what it reads stays in a cache.")
    assert scaled(1.2e16, "FLOP") == "12.0 PFLOP"
    assert scaled(12.0, "FLOP") == "12.0 FLOP"


# A script that was watched


def test_the_pages_of_a_watched_script() -> None:
    passes, steps, phases, syncs, copies, processes = watched_tables(SCRIPT_RUN)
    assert "python train.py --epochs 2: exit code 0." in passes.notes
    assert [row[0] for row in steps.rows] == [
        "input wait", "forward", "backward", "optimiser", "everything else", "one step",
    ]  # fmt: skip
    assert steps.rows[0] == ("input wait", "4.00 ms", "40.0%")
    assert any("First step: 800 ms, 80.0 times the others." in note for note in steps.notes)
    assert [row[0] for row in phases.rows] == ["start-up", "training", "validation", "checkpoint", "other"]
    assert syncs.rows[0][:3] == ("train.py:41", ".item()", "100")
    assert syncs.rows[0][-1] == "5.0%"
    assert copies.rows[1] == ("256 KiB", "101", "19.3 MiB", "16.0 ms")
    assert [row[:2] for row in processes.rows] == [("main", "1"), ("loader worker", "1"), ("loader worker", "1")]
    facts = dict(run_facts(SCRIPT_RUN))
    assert (facts["command"], facts["ended with"], facts["ran on"]) == (
        "python train.py --epochs 2", "exit code 0", "mps (Test GPU)",
    )  # fmt: skip
    assert "40%" in watched_verdict(SCRIPT_RUN)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": None, "signal": "SIGKILL"}, "ended by SIGKILL"),
        ({"exit_code": None}, "exit code not known"),
    ],
)
def test_how_a_script_ended(changes: dict[str, object], words: str) -> None:
    assert exit_words(watched_script(**changes)) == words


def empty_script() -> WatchedRun:
    script = watched_script(
        steady=None, phases={}, syncs=(), copies=(), processes=(), first_step_s=None, batch_size=None, device=""
    )
    return watched_run(passes=(), stretches={}, script=script)


def test_a_script_of_which_little_was_seen_has_little_to_show() -> None:
    (table,) = watched_tables(empty_script())
    assert table.rows == ()
    assert watched_verdict(empty_script()) == ""
    assert watched_verdict(watched_run()) == ""
    whole = watched_script().steady
    assert whole is not None
    apart = msgspec.structs.replace(whole, forward_s=None, backward_s=None, optimizer_s=None)
    assert step_parts(apart) == [("input wait", 0.4), ("the step itself", pytest.approx(0.6))]


def test_the_tables_of_a_script_fit_the_window() -> None:
    lines = printed(80, watched_tables(SCRIPT_RUN))
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)


# Pages and charts


def titles(page: str) -> list[str]:
    return [unescape(text) for text in re.findall(r"<title>([^<]*)</title>", page)]


def test_the_page_has_the_sentence_the_bar_the_roofline_and_the_gains() -> None:
    pytest.importorskip("vl_convert")
    page = document(Content(runs=(explanation_run(),)))
    assert "Input-bound: 71% of each step waits for the loader" in page
    for title in ("What a step is made of", "Roofline", "What changes gain", "What was tried"):
        assert title in page
    said = titles(page)
    assert "input wait: 11.5 ms, 71.0% ± 300 µs: the loop waited 11.5 ms for each batch" in said
    assert "this step: 741 GFLOP/s of 14.0 TFLOP/s that this intensity allows" in said
    assert "memory: 350 GB/s in a copy" in said
    assert any(text.startswith("4 loader workers, measured: 3.09x") for text in said)
    assert page.index("What would make it faster") < page.index("What changes gain") < page.index("What was tried")


def test_the_bar_adds_up_to_the_step() -> None:
    pytest.importorskip("vl_convert")
    from metalmark.report.charts.draw import Figure
    from metalmark.report.charts.explain import explanation_figures

    bar, _, gains = explanation_figures(explanation_run())
    assert isinstance(bar, Figure)
    assert isinstance(gains, Figure)
    assert sum(float(row[2].removesuffix("%")) for row in bar.numbers.rows) == pytest.approx(100)
    assert "measured 3.09x (3.01 to 3.16)" in gains.label


def test_more_causes_than_colours_are_drawn_as_one_part() -> None:
    pytest.importorskip("vl_convert")
    from metalmark.report.charts.explain import COLOURS, explanation_figures

    causes = [
        StepShare(cause=cause, seconds=0.001 * number, error_s=0.0, evidence="seen")
        for number, cause in enumerate(Cause, start=1)
    ]
    total = sum(one.seconds for one in causes)
    run = explanation_run(explained(shares=tuple(causes), step_s=total))
    bar = explanation_figures(run)[0]
    said = titles(getattr(bar, "svg", ""))
    assert len(said) == len(COLOURS) + 1
    assert any(text.startswith("others: ") and "input wait 1.00 ms" in text for text in said)


def test_nothing_is_drawn_of_what_failed_and_nothing_that_a_user_wrote_is_run() -> None:
    pytest.importorskip("vl_convert")
    page = document(Content(runs=(explanation_run(failed(message="<script>alert(1)</script>")),)))
    assert "<script>alert" not in page
    evil = StepShare(cause=Cause.INPUT, seconds=0.0162, error_s=0.0, evidence="<script>alert(2)</script>")
    profile = Profile(
        source="x", total_s=0.1, operations=(OperationCost(name="<img src=x>", calls=1, seconds=0.1, share=1),)
    )
    run = explanation_run(explained(shares=(evil,), profile=profile), subject="<b>me</b>")
    page = document(Content(runs=(run,)))
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
    assert "<b>me</b>" not in page


def test_the_page_of_a_watched_script() -> None:
    pytest.importorskip("vl_convert")
    page = document(Content(runs=(SCRIPT_RUN, empty_script())))
    for words in ("train.py:41", "What a step is made of", "Copies from the host", "python train.py --epochs 2"):
        assert words in page
    assert "input wait: 4.00 ms, 40.0%" in titles(page)


def test_markdown_has_the_tables() -> None:
    text = markdown_text(Content(runs=(explanation_run(), SCRIPT_RUN)))
    for words in ("| input wait | 11.5 | 71.0% |", "| 4 loader workers |", "train.py:41"):
        assert words in text


def test_a_balanced_step_and_every_verdict_have_a_sentence() -> None:
    for bottleneck in Bottleneck:
        run = explanation_run(explained(bottleneck=bottleneck))
        said = explanation_sentence(run)
        assert said.endswith(".")
        assert explanation_tables([run], columns=80)[0].caption.startswith(said)
    assert sum(one.seconds for one in INPUT_SHARES) == pytest.approx(0.0162)
