"""Whole searches on the software device, whose gains are known: every trial is a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import metalmark as mm
from metalmark.app.results import Runs
from metalmark.app.tune import parse_bytes, parse_time, settings_of, snippet_of
from metalmark.backends.fake_landscape import landscape_gain
from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityRun, ParityVerdict
from metalmark.model.plan import Budget, PlanChange, Settings
from metalmark.model.run import Failed, FailureKind, RunKind
from metalmark.model.tuning import RungStatus, Tuned, TuningRun
from metalmark.store.live import read_all
from metalmark.store.store import Store
from tests.processes import heed_ctrl_c, metalmark, run, until

LANDSCAPE = 1003
"""tf32 and fused help, compile and bfloat16 do not, and what has channels_last fails with some of them."""
QUICK: dict[str, Any] = {"framework": "fake", "device": "gpu", "seconds": 0.15, "repeat": 2, "progress": False}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is searched from here has trials of four blocks instead of ten: each step's length is known."""
    monkeypatch.setattr(import_module("metalmark.app.tune"), "Budget", partial(Budget, min_blocks=4))


def tuned(runs: Runs) -> tuple[TuningRun, Tuned]:
    (found,) = runs
    assert isinstance(found, TuningRun)
    assert isinstance(found.outcome, Tuned), found.outcome
    return found, found.outcome


def stored(path: Path) -> list[Any]:
    with Store(path, readonly=True) as store:
        return store.load(store.rows())


def test_a_search_finds_proves_and_goes_on(path: Path, tmp_path: Path) -> None:
    best = tmp_path / "best.json"
    found, outcome = tuned(
        mm.tune("fake", landscape=LANDSCAPE, keep="batch_size", time="4m", output=best, store=path, **QUICK)
    )
    assert [rung.title for rung in outcome.ladder] == ["baseline", "+ tf32", "+ fused"]
    assert [rung.status for rung in outcome.ladder] == [RungStatus.BASELINE, RungStatus.ON_THE_WAY, RungStatus.BEST]
    truth = landscape_gain(LANDSCAPE, Settings(dtype="tf32", fused=True))  # type: ignore[arg-type]
    assert truth is not None
    assert outcome.best.gain == pytest.approx(truth, rel=0.15)  # steps of a known length, on a busy machine
    assert outcome.best.low is not None
    assert outcome.best.low <= outcome.best.gain <= (outcome.best.high or 0)
    assert outcome.best.processes == 2
    assert outcome.ladder[1].processes in (1, 2), "a finalist too, where it is close to the best"
    assert outcome.best.proved
    assert outcome.complete
    failed = [rung for rung in outcome.others if rung.status is RungStatus.FAILED]
    assert failed
    assert all("channels_last" in rung.title and "fail in this landscape" in rung.reason for rung in failed)
    every = stored(path)
    trials, checks = [each for each in every if isinstance(each, BenchRun)], [
        each for each in every if isinstance(each, ParityRun)
    ]  # fmt: skip
    assert len(trials) == outcome.trials
    assert {each.sweep for each in every} == {found.sweep}
    assert {mark.run for mark in (outcome.best.parity, outcome.best.curve) if mark} == {each.id for each in checks}
    assert {name for rung in (*outcome.ladder, *outcome.others) for name in rung.runs} <= {each.id for each in trials}

    # Nothing is measured again, and the same is found.
    again, same = tuned(mm.tune(resume=found.sweep, store=path, progress=False))
    assert again.id == found.id
    assert same.trials == 0
    assert [rung.gain for rung in same.ladder] == [rung.gain for rung in outcome.ladder]
    assert len(stored(path)) == len(every)

    # What bench does with the file.
    assert settings_of(found) is not None
    assert json.loads(best.read_bytes())["settings"]["dtype"] == "tf32"
    (cell,) = mm.bench("fake", settings=best, landscape=LANDSCAPE, steps=20, device="gpu", store=path, progress=False)
    assert isinstance(cell, BenchRun)
    assert cell.plan.settings == outcome.best.change.applied(found.plan).settings
    assert "nothing to write" in snippet_of(found)
    with pytest.raises(UsageError, match="is a tuning"):
        mm.bench(resume=found.sweep, store=path, progress=False)
    with pytest.raises(UsageError, match="is not a tuning"):
        mm.tune(resume=cell.sweep, store=path, progress=False)


def test_of_long_steps_the_search_counts_and_a_stored_check_is_not_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step counts as a long one, and there is no time for two more processes of each finalist."""
    monkeypatch.setattr("metalmark.app.tune_bench.SLOW_S", 0.0)
    monkeypatch.setattr("metalmark.app.tuner.SLOW_SEARCH_SHARE", 0.2)
    monkeypatch.setattr("metalmark.app.tune_finals.SLOW_FINALS_SHARE", 0.0)
    search = partial(
        mm.tune, "fake", landscape=LANDSCAPE, keep="batch_size,compile,channels_last,fused", time="4m", store=path,
        **QUICK,
    )  # fmt: skip
    found, outcome = tuned(search())
    assert outcome.best.title == "+ tf32"  # 1.35 times as fast, which a busy machine does not hide
    assert outcome.best.processes == 2, "one of the search, and one in turn with the baseline"
    assert outcome.best.low is not None
    assert outcome.best.proved
    finals = [run for run in stored(path) if isinstance(run, BenchRun) and run.id in outcome.best.runs]
    assert sorted(run.plan.budget.min_blocks for run in finals) == [2, 3]

    other, again = tuned(search())
    assert other.sweep != found.sweep
    assert again.best.proved
    assert again.best.parity is not None
    assert again.best.parity.run in {run.id for run in stored(path) if run.sweep == found.sweep}
    assert any("was checked before" in note for note in again.notes)
    assert not [run for run in stored(path) if isinstance(run, ParityRun) and run.sweep == other.sweep]


def test_what_compiles_for_too_long_is_given_up_and_tried_again_with_more_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The software device compiles for twelve seconds, and the search gives a trial two seconds."""
    monkeypatch.setattr("metalmark.app.tune_bench.LEAST_TRIAL_S", 2.0)
    monkeypatch.setattr("metalmark.app.tune_bench.GIVE_UP_SHARE", 0.0)
    found, outcome = tuned(
        mm.tune(
            "fake", landscape=LANDSCAPE, compile_s=12, keep="batch_size,channels_last", time="4m", store=path, **QUICK
        )
    )
    assert outcome.best.title == "+ fused"
    assert outcome.best.proved
    given_up = [rung for rung in outcome.others if rung.status is RungStatus.FAILED]
    assert [rung.change.settings["compile"] for rung in given_up] == [True], "one trial, and no other that compiles"
    assert "Not done after" in given_up[0].reason
    assert any("compile" in note and "was given up" in note and "--time" in note for note in outcome.notes)

    # With more time for a trial, what was given up is tried again, and what was measured is not.
    monkeypatch.setattr("metalmark.app.tune_bench.LEAST_TRIAL_S", 200.0)
    before = {run.id: run for run in stored(path) if isinstance(run, BenchRun)}
    _, again = tuned(mm.tune(resume=found.sweep, time="5m", store=path, progress=False))
    tried = [run for run in stored(path) if isinstance(run, BenchRun) and run.id not in before]
    assert given_up[0].change.applied(found.plan).settings in [run.plan.settings for run in tried]
    measured = [run for run in before.values() if isinstance(run.outcome, Completed)]
    once, anew = (
        {(run.plan.settings, run.plan.budget.seconds, run.repeat) for run in runs} for runs in (measured, tried)
    )
    assert once
    assert not once & anew
    cells = {run.plan.settings: run.cell for run in tried}
    assert not set(cells.values()) & {run.cell for run in before.values()}, "no cell has two plans"
    assert not any(rung.status is RungStatus.FAILED for rung in again.others)


def test_where_the_baseline_takes_half_of_the_time_that_is_the_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metalmark.app.tuner.FIRST_SHARE", 0.0)
    (run,) = mm.tune("fake", landscape=LANDSCAPE, keep="batch_size", time="1m", store=path, **QUICK)
    assert isinstance(run.outcome, Failed)
    assert run.outcome.kind is FailureKind.TIMED_OUT
    assert "too little" in run.outcome.message


def test_what_trains_differently_does_not_win(path: Path) -> None:
    _, outcome = tuned(
        mm.tune(
            "fake", landscape=LANDSCAPE, fault="parity-gradient-scale", keep="batch_size,compile,channels_last",
            time="4m", store=path, **QUICK,
        )
    )  # fmt: skip
    assert [rung.status for rung in outcome.ladder] == [RungStatus.BASELINE]
    marked = [rung for rung in outcome.others if rung.status is RungStatus.DIFFERS]
    assert marked
    for rung in marked:
        assert rung.parity is not None
        assert rung.parity.verdict is ParityVerdict.DIFFERS
        assert rung.gain is not None  # it is in the ladder with its speed, and marked
        assert rung.reason
    assert any("trains differently, so tf32 was left out" in note for note in outcome.notes)


def test_nothing_helps_where_the_landscape_is_flat(path: Path) -> None:
    found, outcome = tuned(mm.tune("fake", keep="batch_size,compile,channels_last", time="4m", store=path, **QUICK))
    assert outcome.best.status is RungStatus.BASELINE
    assert found.header.ending == "nothing helps"
    assert (settings_of(found), snippet_of(found)) == (None, "")


def test_a_larger_batch_and_settings_that_gain_only_with_it(path: Path) -> None:
    """A step of a small batch waits for its host, so that no setting gains; one of 256 waits for its device. By how
    much is a matter of how busy this machine is. A sample needs 1 MiB."""
    _, outcome = tuned(
        mm.tune("fake", landscape=LANDSCAPE, host_ms=4, compute_ms=0.7, memory_limit="400M", time="4m",
                keep="dtype,compile,channels_last", store=path, **QUICK)
    )  # fmt: skip
    assert outcome.best.change.params == {"batch_size": 256}
    assert outcome.best.proved
    tried = [rung.change for rung in (*outcome.ladder, *outcome.others)]
    with_256 = [change.settings for change in tried if change.params == {"batch_size": 256}]
    assert {"fused": True} in with_256
    assert {} in with_256
    assert any("raise the learning rate" in note for note in outcome.notes)
    assert [note for note in outcome.notes if note.startswith("No larger batch: a batch of 512 should need 0.5 GiB")]


def test_a_loader_that_is_waited_for_comes_first(path: Path) -> None:
    """It takes three times as long as the step."""
    _, outcome = tuned(
        mm.tune("fake", step_ms=5, input_ms=15, data_from="pipeline", keep="batch_size,prefetch", time="4m",
                store=path, **QUICK)
    )  # fmt: skip
    assert outcome.ladder[1].change.loader == {"workers": 2}
    assert outcome.best.gain is not None
    assert outcome.best.gain > 1.0  # how much is a matter of how busy this machine is
    assert outcome.best.proved  # a loader changes nothing of what is computed
    if os.cpu_count() == 2:
        assert any("whatever the loader" in note for note in outcome.notes)


def test_what_a_larger_batch_gained_is_kept_when_finalists_are_stopped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("metalmark.app.tuner.Finals.decide", stop)
    runs = mm.tune(
        "fake", fixed_ms=2, memory_limit="100M", keep="dtype,compile,fused,channels_last", time="4m", store=path,
        raise_interrupt=False, **QUICK,
    )  # fmt: skip
    _, outcome = tuned(runs)
    assert not runs.complete
    assert outcome.best.change == PlanChange(params={"batch_size": 64})
    assert outcome.best.status is RungStatus.UNPROVED
    assert any("A batch of 64 instead of 32 trains differently" in note for note in outcome.notes)


def test_what_fits_comes_first(path: Path) -> None:
    """A sample needs 1 MiB on the software device. A batch that does not fit is run in parts; and of one that fits, but
    not into what is allowed, what saves memory is found though it is slower."""
    kept = "dtype,compile,fused,channels_last,batch_size"
    _, outcome = tuned(mm.tune("fake", batch_size=64, memory_mb=40, keep=kept, time="4m", store=path, **QUICK))
    assert any("runs it in 2 parts and updates once (--accumulate 2)" in note for note in outcome.notes)
    assert outcome.ladder[0].peak_bytes == 32 * 2**20

    _, outcome = tuned(
        mm.tune("fake", batch_size=64, memory_limit="20M", keep=kept, time="4m", store=path, **QUICK)
    )  # fmt: skip
    assert outcome.best.change == PlanChange(settings={"accumulate": 4})
    assert outcome.best.peak_bytes == 16 * 2**20
    assert outcome.best.gain is not None
    assert outcome.best.gain < 1.05
    assert any("needs more memory than --memory-limit allows" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("oom", FailureKind.OUT_OF_MEMORY, "The baseline itself fails: "),
        ("nan", FailureKind.WRONG_RESULT, "The baseline itself fails: The result is nan"),
    ],
)
def test_a_baseline_that_fails(path: Path, fault: str, kind: FailureKind, words: str) -> None:
    (found,) = mm.tune("fake", fault=fault, store=path, **QUICK)
    assert isinstance(found, TuningRun)
    assert isinstance(found.outcome, Failed)
    assert found.outcome.kind is kind
    assert words in found.outcome.message


def test_too_little_time_and_no_sensor(path: Path, tmp_path: Path) -> None:
    words = ["tune", "fake", "-f", "fake", "-d", "gpu", "--store", path]
    done = run(metalmark(*words, "--time", "0.5s", "--seconds", "0.5"), folder=tmp_path)
    assert done.returncode == 1
    assert "0.5 s are too little: the baseline took" in done.stderr
    assert "--time" in done.stderr
    assert done.stdout == ""
    (found,) = mm.tune("fake", goal="energy", store=path, **QUICK)
    assert isinstance(found, TuningRun)
    if isinstance(found.outcome, Failed):  # a machine whose energy can be read goes on
        assert found.outcome.message.startswith("Nothing here measures energy: ")
    assert sum(isinstance(each, BenchRun) for each in stored(path)) >= 2  # the baselines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_search_that_is_stopped_is_kept(path: Path, tmp_path: Path, number: signal.Signals) -> None:
    words = [
        "tune",
        "fake",
        "-f",
        "fake",
        "-d",
        "gpu",
        "--landscape",
        LANDSCAPE,
        "--keep",
        "batch_size,compile,channels_last",
    ]
    command = subprocess.Popen(
        metalmark(*words, "--seconds", "0.15", "--repeat", 2, "--store", path), cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c,
    )  # fmt: skip

    def trials() -> int:
        return sum(isinstance(each, BenchRun) for each in stored(path)) if path.exists() else 0

    until(lambda: trials() >= 4)  # the third one helps
    (status,) = read_all(path)
    assert (status.kind, status.limit_s, status.alive) == (RunKind.TUNE, 600.0, True)
    assert len(status.tunings[0].rungs) >= 2
    command.send_signal(number)
    printed, told = command.communicate(timeout=60)
    every = stored(path)
    (found,) = [each for each in every if isinstance(each, TuningRun)]
    assert isinstance(found.outcome, Tuned)
    assert not found.outcome.complete
    assert found.outcome.baseline.title == "baseline"
    assert [left.alive for left in read_all(path)] == ([] if number is signal.SIGINT else [False])
    if number is signal.SIGINT:
        assert command.returncode == 130
        assert f"metalmark tune --resume={found.sweep}" in told
        assert "+ tf32" in printed
        assert found.outcome.best.status is RungStatus.UNPROVED
        before = trials()
        _, outcome = tuned(mm.tune(resume="last", store=path, progress=False))
        assert outcome.complete
        assert outcome.best.proved
        assert outcome.trials == trials() - before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"goal": "speed"}, "--for"),
        ({"keep": "dtpye"}, "dtpye"),
        ({"time": "soon"}, "--time"),
        ({"memory_limit": "much"}, "--memory-limit"),
        ({"repeat": 1}, "--repeat"),
        ({"batch_size": [16, 32]}, "one value of each parameter"),
        ({"output": "/no/such/folder/best.json"}, "does not exist"),
        ({"resume": "nothing12"}, "nothing12"),
        ({"steps_planned": 0}, "--steps-planned"),
        ({"dtype": "bfloat16"}, "--keep dtype"),
    ],
)
def test_bad_words_are_answered_before_anything_runs(path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        mm.tune("fake", store=path, **{**QUICK, **options})
    assert words in f"{refused.value.message} {refused.value.hint}"
    assert not path.exists() or not stored(path)


def test_times_and_sizes_as_people_write_them() -> None:
    assert [parse_time(each) for each in ("90s", "10m", "1h", "1h30m", "2.5m", "45", 30)] == [
        90, 600, 3600, 5400, 150, 45, 30,
    ]  # fmt: skip
    assert [parse_bytes(each) for each in ("16G", "512MiB", "1024", "1.5gb")] == [2**34, 2**29, 1024, 3 * 2**29]
