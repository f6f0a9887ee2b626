"""What people and pages see of a sweep and of a training, from events that are played. No timing is asserted."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from rich.console import Console

from metalmark.display import make_display, status, terminal
from metalmark.display.status import LiveStatusFile, Overview, RemainingTime
from metalmark.model.plan import Plan, PlanChange, Sweep
from metalmark.model.run import FailureKind, RunKind, now_utc
from metalmark.model.training import Goal
from metalmark.model.tuning import TuningGoal, TuningPhase
from metalmark.runner.events import (
    Ended,
    Event,
    Listener,
    Paused,
    Progress,
    Sampled,
    Started,
    TrainingProgress,
    TuningProgress,
)
from metalmark.store.live import LiveStatus, read_one
from metalmark.telemetry.sampler import Sampler
from metalmark.training.folder import Request
from tests.samples import (
    BASELINE_RUNG,
    BEST_RUNG,
    OTHER_RUNGS,
    completed,
    epoch,
    failed,
    parity_run,
    plan,
    record,
    training_run,
    tuning_run,
)

SWEEP = Sweep(id="sweep00001", created_at=now_utc(), plans=(plan(), plan(framework="jax")), repeats=2)
REQUEST = Request(id="training01", plan=plan(), goal=Goal(epochs=3))
SAMPLER = cast("Sampler", SimpleNamespace(latest={"process_cpu": 150.0, "gpu0_power": 80.0, "other": 1.0}))

MEASURED: list[Event] = [
    Started(id=SWEEP.id, plan=SWEEP.plans[0]),
    Sampled(sampler=SAMPLER),
    Progress(phase="warm-up", at_s=1.0, step_s=0.2),
    Progress(phase="measure", at_s=2.0, done=0.5, step_s=0.1),
]
CELL: list[Event] = [*MEASURED, Ended(run=record())]
TRAINED: list[Event] = [
    Started(id=REQUEST.id, plan=REQUEST.plan, run=training_run(goal=REQUEST.goal, epochs=(epoch(1),))),
    TrainingProgress(phase="data", at_s=0.1, done=0.3),
    TrainingProgress(phase="ready", at_s=0.5, setting=training_run().setting),
    Sampled(sampler=SAMPLER),
    TrainingProgress(phase="training", at_s=1.0, done=0.5, epoch=2, step=15, losses=(0.5, 0.25)),
    TrainingProgress(phase="training", at_s=2.0, done=1.0, epoch=2, step=20, losses=(0.125,)),
    TrainingProgress(phase="validating", at_s=2.5, done=0.5, epoch=2),
]
EPOCH: list[Event] = [*TRAINED, TrainingProgress(phase="saved", at_s=3.0, epoch=2, step=20, ended=epoch(2, 0.75))]

SEARCH = Sweep(id="tuning0001", created_at=now_utc(), plans=(plan(),))
FUSED, *OTHERS = OTHER_RUNGS
COMPILED = replace(BEST_RUNG, title="bfloat16 + compile")


def trial(change: PlanChange, **budget: Any) -> Plan:
    """The plan of a trial, which is measured for as long as the search says."""
    tried = change.applied(plan())
    return replace(tried, budget=replace(tried.budget, **budget))


def searched(phase: TuningPhase, *trying: PlanChange, rungs: tuple[Any, ...] = (), node: str = "") -> TuningProgress:
    return TuningProgress(
        plan=plan(), goal=TuningGoal.THROUGHPUT, phase=phase, trying=trying, rungs=rungs, node=node
    )  # fmt: skip


TRIED: list[Event] = [
    searched(TuningPhase.BASELINE, PlanChange()),
    Started(id=SEARCH.id, plan=trial(PlanChange(), seconds=1.0)),
    Ended(run=record()),
    searched(TuningPhase.BASELINE, rungs=(BASELINE_RUNG,)),
    searched(TuningPhase.SEARCH, COMPILED.change, rungs=(BASELINE_RUNG,)),
    Started(id=SEARCH.id, plan=trial(COMPILED.change, seconds=1.0)),
    Progress(phase="measure", at_s=2.0, done=0.5, step_s=0.1),
]
FINALS: list[Event] = [
    Ended(run=record(plan=trial(COMPILED.change, seconds=1.0))),
    searched(TuningPhase.SEARCH, rungs=(BASELINE_RUNG, COMPILED, *OTHER_RUNGS)),
    searched(TuningPhase.FINALISTS, PlanChange(), COMPILED.change, rungs=(BASELINE_RUNG, COMPILED, *OTHER_RUNGS)),
    Started(id=SEARCH.id, plan=trial(COMPILED.change, seconds=3.0), repeat=1),
]


def play(listener: Listener, events: list[Event]) -> None:
    for event in events:
        listener(event)


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: 100.0))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is drawn, written and seen with each event."""
    for module, name in (
        (terminal, "REFRESH_S"), (terminal, "WATCH_LINE_EVERY_S"),
        (status, "STATUS_EVERY_S"), (status, "WATCH_EVERY_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.0)


def test_a_sweep_in_words() -> None:
    overview = Overview(SWEEP)
    assert (overview.done, overview.total, overview.left) == (0, 4, "")
    play(overview, MEASURED)
    assert overview.line == (
        "[0/4] mnist-mlp training batch 32 torch cpu, repeat 1 of 2: measure 50%, 100 ms per step  ·  CPU 150%"
    )
    play(overview, [Ended(run=record())])
    assert overview.done == 1
    assert overview.left.startswith("about ")
    assert overview.ended == ["mnist-mlp training batch 32 torch cpu: 100 ms per step ± <0.1%, 320 samples/s"]
    play(overview, [Paused(reason="cooling down: 12 s left")])
    assert "cooling down: 12 s left" in overview.line


def test_a_failed_cell_is_not_repeated_and_an_interrupted_one_is() -> None:
    overview = Overview(SWEEP, [record(failed()), record(failed(FailureKind.INTERRUPTED), cell=1)])
    assert (overview.done, overview.total) == (1, 3)
    play(overview, [Started(id=SWEEP.id, plan=plan(), cell=1), Ended(run=record(failed(), cell=1))])
    assert (overview.done, overview.total, overview.left) == (2, 2, "")
    assert overview.ended == ["mnist-mlp training batch 32 torch cpu: out of memory: no room"]


@pytest.mark.usefixtures("standing_clock")
def test_a_cell_that_ctrl_c_stopped_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = record(failed(FailureKind.INTERRUPTED, "stopped by Ctrl-C"), cell=1)
    overview = Overview(SWEEP)
    lines = terminal.LogLines(overview)
    play(lines, [*CELL, Started(id=SWEEP.id, plan=plan(framework="jax"), cell=1), Ended(run=stopped)])
    assert (overview.done, overview.total) == (1, 4), "neither done nor given up: bench --resume measures it"
    assert overview.runs == [CELL[-1].run]  # type: ignore[union-attr]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[1/4] ")
    assert said[1].startswith("[1/4] ")
    assert "interrupted" in said[1]


@pytest.mark.usefixtures("standing_clock")
def test_a_training_in_words() -> None:
    overview = Overview(REQUEST)
    play(overview, TRAINED[:2])
    assert overview.line == "[1/3] mnist-mlp training batch 32 torch cpu: data 30%"
    play(overview, TRAINED[2:6])
    assert "epoch 2, training 100%, loss 0.1250" in overview.line
    play(overview, EPOCH[6:])
    assert overview.done == 2
    assert overview.left == "about 9 s left", "the epoch took 9 s by its own clock"
    assert overview.ended == ["epoch 2: loss 1.0000, validation 0.2500, accuracy 75.00%, 9.00 s"]


def test_what_is_left_is_measured_by_what_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    remaining = RemainingTime()
    assert remaining.text(3) == ""
    now_s[0] += 5
    assert remaining.text(3, 0.01) == "", "too little to tell"
    assert remaining.text(3, 0.5) == "about 25 s left"
    remaining.end()
    assert remaining.text(2) == "about 10 s left"
    remaining.end(15.0)
    now_s[0] += 4
    assert remaining.text(2) == "about 16 s left"
    now_s[0] += 100
    assert remaining.text(2) == "about 10 s left"
    assert remaining.text(0) == ""


def test_a_log_has_a_line_per_cell_and_one_per_pause(capsys: pytest.CaptureFixture[str]) -> None:
    pauses: list[Event] = [Paused(reason="cooling down: 2 s left"), Paused(reason="cooling down: 1 s left")]
    with make_display(SWEEP, quiet=False) as display:
        play(display, [*CELL, *pauses, Started(id=SWEEP.id, plan=SWEEP.plans[1], cell=1), *pauses])
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("[1/4] mnist-mlp training batch 32 torch cpu: 100 ms per step")
    assert first.endswith(" left)")
    assert others == ["cooling down: 2 s left", "cooling down: 2 s left"]


@pytest.mark.usefixtures("standing_clock")
def test_a_log_has_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(REQUEST, quiet=False) as display:
        play(display, [*EPOCH, Ended(run=training_run())])
    line = "[2/3] loss 1.0000, validation 0.2500, accuracy 75.00%, 9.00 s  (about 9 s left)\n"
    assert capsys.readouterr().err == line


@pytest.mark.usefixtures("at_once")
def test_a_log_that_watches_has_the_newest_readings(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(SWEEP, quiet=False, watch=True) as display:
        play(display, MEASURED)
    assert capsys.readouterr().err.endswith(" s: throughput 320 samples/s, process_cpu 150 %, gpu0_power 80.0 W\n")


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(SWEEP, quiet=True, watch=True) as display:
        play(display, CELL)
    assert capsys.readouterr() == ("", "")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("what", "events"), [(SWEEP, CELL), (REQUEST, EPOCH)], ids=["sweep", "training"])
def test_a_terminal_shows_what_runs_and_what_ended(
    what: Sweep | Request, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "Console", lambda **_: Console(file=screen, force_terminal=True, width=150))
    with make_display(what, quiet=False, watch=True) as display:
        assert isinstance(display, terminal.LiveView)
        play(display, events)
    shown = screen.getvalue()
    assert "mnist-mlp" in shown
    assert "gpu0_power" in shown
    assert "80.0 W (80.0 W to 80.0 W)" in shown
    if what is SWEEP:
        assert "320 samples/s" in shown
        assert "measure 50%, 100 ms per step" in shown
    else:
        # 5 steps of 32 samples in a second, by the worker's clock.
        assert "160 samples/s" in shown
        assert "epoch 2, validating 50%" in shown
        assert "epoch 2: loss 1.0000" in shown


class Notebook:
    """Stands in for IPython with a kernel: keeps what the cell's one output shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.shown.append(data)
        return SimpleNamespace(update=self.update)

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data)


def start_kernel(monkeypatch: pytest.MonkeyPatch, *, kernel: object) -> Notebook:
    started = Notebook()
    module = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=kernel), __path__=[])
    monkeypatch.setitem(sys.modules, "IPython", module)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=started.display))  # type: ignore[arg-type]
    return started


@pytest.mark.usefixtures("at_once")
def test_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = start_kernel(monkeypatch, kernel=object())
    assert terminal.in_notebook()
    with make_display(SWEEP, quiet=False, watch=True) as display:
        play(display, CELL[:-1])
        running = kernel.shown[-1]
        play(display, CELL[-1:])
    assert "measure 50%" in running["text/plain"]
    assert "throughput" in running["text/plain"]
    assert "\x1b" not in running["text/plain"]
    assert running["text/html"].startswith("<pre>")
    assert kernel.shown[-1]["text/plain"].endswith("1 of 4 runs done.")


@pytest.mark.usefixtures("at_once")
def test_a_notebook_keeps_the_epochs_and_escapes_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = start_kernel(monkeypatch, kernel=object())
    with make_display(REQUEST, quiet=False) as display:
        play(display, [*EPOCH, Started(id=REQUEST.id, plan=plan(workload="<b>.py:net"), run=training_run())])
    assert "&lt;b&gt;.py:net" in kernel.shown[-2]["text/html"]
    assert "epoch 2: loss 1.0000" in kernel.shown[-2]["text/plain"]
    assert kernel.shown[-1]["text/plain"].splitlines()[0].startswith("epoch 2: loss")


def test_ipython_in_a_terminal_is_not_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = start_kernel(monkeypatch, kernel=None)
    assert not terminal.in_notebook()
    with make_display(SWEEP, quiet=False) as display:
        play(display, CELL)
    assert kernel.shown == []
    assert "[1/4]" in capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
def test_the_live_page_gets_a_sweep(store_file: Path) -> None:
    with LiveStatusFile(store_file, SWEEP, [record(completed(0.2), cell=1)]) as file:
        assert live(store_file, SWEEP.id).phase == "starting"
        play(file, MEASURED)
        running = live(store_file, SWEEP.id)
        play(file, [Ended(run=record())])
        ended = live(store_file, SWEEP.id)
    assert (running.kind, running.done, running.total, running.share) == (RunKind.BENCH, 1, 4, 0.5)
    assert running.what == "mnist-mlp training batch 32 torch cpu, repeat 1 of 2"
    assert running.phase == "measure, 100 ms per step"
    traces = {trace.name: (trace.unit, trace.values) for trace in running.traces}
    assert traces == {
        "throughput": ("samples/s", (160.0, 320.0)),
        "process_cpu": ("%", (150.0, 150.0)),
        "gpu0_power": ("W", (80.0, 80.0)),
    }
    assert (ended.done, len(ended.ended)) == (2, 1)
    assert read_one(store_file, SWEEP.id) is None


@pytest.mark.usefixtures("at_once")
def test_the_live_page_gets_a_training(store_file: Path) -> None:
    with LiveStatusFile(store_file, REQUEST) as file:
        play(file, TRAINED[:6])
        running = live(store_file, REQUEST.id)
        play(file, EPOCH[6:])
        ended = live(store_file, REQUEST.id)
    assert (running.kind, running.done, running.total) == (RunKind.TRAINING, 1, 3)
    assert running.phase == "epoch 2, training, loss 0.1250"
    (throughput,) = (trace for trace in running.traces if trace.name == "throughput")
    assert throughput.values == (160.0,)
    assert (ended.done, ended.ended) == (2, ("epoch 2: loss 1.0000, validation 0.2500, accuracy 75.00%, 9.00 s",))


def live(store_file: Path, identifier: str) -> LiveStatus:
    found = read_one(store_file, identifier)
    assert found is not None
    return found


def test_a_log_says_how_far_a_long_epoch_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    overview = Overview(REQUEST)
    play(terminal.LogLines(overview), EPOCH)
    assert len(capsys.readouterr().err.splitlines()) == 1, "a short one says nothing before its end"
    monkeypatch.setattr(terminal, "EPOCH_LINE_EVERY_S", 0.0)
    unknown = TrainingProgress(phase="training", at_s=4.0, epoch=3, step=2021, losses=(0.5,))
    play(terminal.LogLines(Overview(REQUEST)), [*EPOCH, unknown])
    said = [line.partition("  (")[0] for line in capsys.readouterr().err.splitlines()]
    assert said[:3] == [
        "[1/3] epoch 2, training 50%, loss 0.2500",
        "[1/3] epoch 2, training 100%, loss 0.1250",
        "[1/3] epoch 2, validating 50%",
    ]
    assert said[3].startswith("[2/3] loss 1.0000"), "nothing before the first step, one line for the end"
    assert said[4] == "[2/3] epoch 3, training, step 2,021, loss 0.5000"


@pytest.mark.usefixtures("standing_clock")
def test_a_search_says_what_it_tries_and_the_best_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    overview = Overview(SEARCH, checks=True, limit_s=90.0)
    lines = terminal.LogLines(overview)
    play(lines, TRIED)
    assert overview.line == "[0 s of 1 min 30 s] search, bfloat16 + compile: measure 50%, 100 ms per step"
    play(lines, FINALS)
    assert overview.line == (
        "[0 s of 1 min 30 s] finalists, bfloat16 + compile, process 2: starting  ·  "
        "best so far: bfloat16 + compile, 2.00x (1.94 to 2.06)"
    )
    finalist = record(plan=trial(COMPILED.change, seconds=3.0), repeat=1)
    checked = parity_run()
    play(lines, [
        Ended(run=finalist),
        # The baseline, measured once more, is in every gain: that is no news of what was not measured again.
        searched(TuningPhase.FINALISTS, rungs=(BASELINE_RUNG, COMPILED, replace(FUSED, gain=0.9), *OTHERS)),
        searched(TuningPhase.GATE, COMPILED.change, rungs=overview.tunings[""].rungs),
        Started(id=SEARCH.id, plan=trial(replace(COMPILED.change, params={"batch_size": 4}))), Ended(run=checked),
        Ended(run=tuning_run()),
    ])  # fmt: skip
    said = [line.removeprefix("[0 s of 1 min 30 s] ") for line in capsys.readouterr().err.splitlines()]
    assert said[:5] == [
        "baseline: 3.20 ms per step",
        "bfloat16 + compile: 1.60 ms per step, gain 2.00x (1.94 to 2.06), best so far",
        "fused: 3.30 ms per step, gain 0.97x",
        "float16: 1.00 ms per step, gain 3.20x, trains differently, parity_failed: torch mps differs: in bn1.",
        "channels_last: failed: the worker was killed",
    ], "each trial once, with its gain"
    assert said[5].startswith("finalists, bfloat16 + compile, process 2: 100 ms per step")
    assert said[6].startswith("gate, bfloat16 + compile, against ")
    assert said[7] == "mnist-mlp training batch 32 torch cpu: 2.00x"
    assert len(said) == 8


@pytest.mark.usefixtures("at_once")
def test_the_live_page_gets_a_search(store_file: Path) -> None:
    with LiveStatusFile(store_file, SEARCH, tuning_limit_s=90.0) as file:
        assert (live(store_file, SEARCH.id).kind, live(store_file, SEARCH.id).tunings) == (RunKind.TUNE, ())
        play(file, TRIED)
        running = live(store_file, SEARCH.id)
        play(file, FINALS)
        finals = live(store_file, SEARCH.id)
        play(file, [Ended(run=tuning_run())])
        ended = live(store_file, SEARCH.id)
    (found,) = running.tunings
    assert (found.baseline, found.goal) == ("mnist-mlp training batch 32 torch cpu", TuningGoal.THROUGHPUT)
    assert (found.phase, found.trying, found.rungs) == (TuningPhase.SEARCH, "bfloat16 + compile", (BASELINE_RUNG,))
    assert (running.what, running.phase, running.share) == (found.baseline, "measure, 100 ms per step", 0.5)
    assert (running.limit_s, running.done) == (90.0, 1)
    assert finals.tunings[0].trying == "bfloat16 + compile, process 2"
    assert [rung.title for rung in finals.tunings[0].rungs][-1] == "channels_last"
    assert (finals.ended, ended.ended) == ((), ("mnist-mlp training batch 32 torch cpu: 2.00x",))
    assert ended.tunings == ()
    assert read_one(store_file, SEARCH.id) is None


def test_what_a_process_begins_with_is_written_at_once(store_file: Path) -> None:
    """It may compile for minutes without a word, and the page must not show the trial before it."""
    with LiveStatusFile(store_file, SEARCH, tuning_limit_s=90.0) as file:
        play(file, [*TRIED, *FINALS])
        assert live(store_file, SEARCH.id).tunings[0].phase is TuningPhase.FINALISTS


def test_searches_of_a_cluster_are_told_apart() -> None:
    overview = Overview(replace(SEARCH, plans=(plan(), plan(framework="jax"))), checks=True, limit_s=90.0)
    for node, framework in (("one", "torch"), ("two", "jax")):
        baseline = plan(framework=framework)
        progress = replace(searched(TuningPhase.SEARCH, FUSED.change, rungs=(BASELINE_RUNG,), node=node), plan=baseline)
        play(overview, [progress, Started(id=SEARCH.id, plan=FUSED.change.applied(baseline), node=node)])
    assert overview.running == {
        "one": "mnist-mlp training batch 32 torch cpu: search, fused: starting",
        "two": "mnist-mlp training batch 32 jax cpu: search, fused: starting",
    }
    assert overview.trying == {"one": "fused", "two": "fused"}


@pytest.mark.usefixtures("at_once")
def test_a_notebook_keeps_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = start_kernel(monkeypatch, kernel=object())
    with make_display(SEARCH, quiet=False, checks=True, limit_s=90.0) as display:
        play(display, [*TRIED, *FINALS])
        running = kernel.shown[-1]["text/plain"]
        play(display, [Ended(run=tuning_run())])
    assert "bfloat16 + compile: 1.60 ms per step, gain 2.00x" in running
    assert "best so far: bfloat16 + compile, 2.00x" in running
    assert "2 runs done in 0 s of 1 min 30 s." in kernel.shown[-1]["text/plain"]
