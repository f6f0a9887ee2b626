"""Loops that a library runs, as its hooks tell of them: times, passes, and every way in which a fit can end."""

from __future__ import annotations

import gc
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metalmark as mm
from metalmark.errors import NotInstalledError, UsageError
from metalmark.kit import callbacks
from metalmark.kit.fits import FitOptions, FitRecorder, FitWatch, LoopWatch
from metalmark.kit.running import RunRecorder
from metalmark.model.watch import WatchedRun, WatchEnding
from metalmark.report.text.watch_page import watched_table


def options(store: Path, **given: Any) -> FitOptions:
    return FitOptions(**{"name": None, "track": None, "params": {}, "hz": None, "store": store, **given})


def ended(recorder: FitRecorder | RunRecorder) -> WatchedRun:
    result = recorder.run.result if isinstance(recorder, FitRecorder) else recorder.result
    assert result is not None
    return result


def times(run: WatchedRun, loop: str) -> list[tuple[float, float, float | None]]:
    return [(step.at_s, step.elapsed_s, step.waited_s) for step in run.stretches[loop]]


@pytest.fixture
def fits(store_file: Path) -> FitRecorder:
    return FitRecorder(options(store_file))


def test_a_step_lasts_until_the_next_batch_is_asked_for(fits: FitRecorder) -> None:
    fits.begin("net", {"rate": 0.1}, {"library": "1.0"})
    origin, train = fits.run._began_s, fits.train
    train.begin(origin + 10)
    for asked, waited in ((11, 2), (15, 1)):  # the first waits for its loader's workers too
        train.asked(origin + asked)
        train.got(waited)
        train.done()
    validation = fits.validate(origin + 20)
    for asked in (20.5, 21):
        validation.asked(origin + asked)
        validation.got(0.25)
        validation.done()
    validation.close(origin + 22)
    train.asked(origin + 30)  # what went by since validation belongs to no step
    train.got(0.5)
    train.done()
    train.close(origin + 33)
    fits.end()
    run = ended(fits)
    assert times(run, "train") == [pytest.approx(each) for each in ((10, 5, 3), (15, 5, 1), (30, 3, 0.5))]
    assert times(run, "validation") == [pytest.approx(each) for each in ((20, 1, 0.75), (21, 1, 0.25))]
    assert [(one.loop, one.steps, one.elapsed_s, one.waited_s, one.first_wait_s) for one in run.passes] == [
        ("train", 3, pytest.approx(13), pytest.approx(4.5), pytest.approx(3)),
        ("validation", 2, pytest.approx(2), pytest.approx(1), pytest.approx(0.75)),
    ]
    assert (run.name, run.params, run.software.versions["library"]) == ("net", {"rate": 0.1}, "1.0")
    assert run.input_wait_share() == pytest.approx(4.5 / 13)


def test_a_step_of_many_batches_and_one_that_was_not_completed(fits: FitRecorder) -> None:
    fits.begin("net", {}, {})
    origin, train = fits.run._began_s, fits.train
    train.begin(origin)
    for asked in (1, 3):  # two batches, one step
        train.asked(origin + asked)
        train.got(0.5)
    train.done()
    train.asked(origin + 5)
    train.got(0.5)
    train.pause(origin + 6)
    train.asked(origin + 7)
    train.got(0.25)
    train.done(4)  # four that could not be told apart
    train.close(origin + 9)
    fits.end()
    first, rest = ended(fits).stretches["train"]
    assert (first.steps, first.elapsed_s, first.waited_s) == (1, pytest.approx(5), pytest.approx(2))
    assert (rest.steps, rest.at_s, rest.elapsed_s) == (4, pytest.approx(7), pytest.approx(2))


def test_waiting_that_cant_be_told_is_not_called_none_at_all(fits: FitRecorder) -> None:
    fits.begin("net", {}, {})
    fits.train.asked(fits.run._began_s + 1)
    fits.train.blind()
    fits.train.done()
    fits.train.close(fits.run._began_s + 3)
    fits.end()
    run = ended(fits)
    (stretch,) = run.stretches["train"]
    assert (stretch.elapsed_s, stretch.waited_s, run.passes[0].waited_s) == (pytest.approx(2), None, None)
    assert run.input_wait_share() is None
    assert "waiting" not in str(fits.run)
    assert watched_table(run).rows[0][-2:] == ("-", "-")


def test_each_fit_is_a_run(fits: FitRecorder) -> None:
    for number in range(2):
        fits.begin("net", {}, {})
        fits.step = 10 * number
        fits.log({"loss": 1.0})
        fits.end()
        fits.end()
    first, second = (ended(run) for run in fits.runs)
    assert first.id != second.id
    assert [run.curves[0].steps for run in (first, second)] == [(0,), (10,)]


def test_what_is_no_number_costs_itself_alone(fits: FitRecorder) -> None:
    fits.begin("net", {}, {})
    for _ in range(3):
        fits.step += 1
        fits.log({"loss": 1.0, "matrix": np.ones((2, 2)), "word": "high"})
    fits.end()
    run = ended(fits)
    assert [(curve.name, curve.steps) for curve in run.curves] == [("loss", (1, 2, 3))]
    assert [note.partition(" was not logged")[0] for note in run.notes] == ["matrix", "word"]


def test_a_fit_whose_end_nobody_tells(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next fit ends it, in the same thread; Python knows the exception that nobody caught."""
    first, second = FitRecorder(options(store_file)), FitRecorder(options(store_file))
    first.begin("first", {}, {})
    second.begin("second", {}, {})
    assert ended(first).ended is WatchEnding.FAILED
    assert "did not come to its end" in ended(first).error
    assert second.is_open
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    first.begin("third", {}, {})
    assert ended(second).ended is WatchEnding.INTERRUPTED
    second.begin("fourth", {}, {})  # that exception was there before the third began
    assert ended(first).ended is WatchEnding.FAILED
    second.end()


class Library(FitWatch):
    LIBRARY = "library"


def test_a_callback_ends_its_run_when_nobody_has_it_any_more(store_file: Path) -> None:
    callback = Library(options(store_file))
    assert (str(callback), callback.run, callback.result) == ("library callback, no fit yet", None, None)
    callback._fits.begin("net", {}, {})
    run = callback.run
    assert run is not None
    assert run.result is None
    del callback
    gc.collect()
    assert ended(run).ended is WatchEnding.FAILED


def test_a_callback_around_the_fit_knows_what_ended_it(store_file: Path) -> None:
    callback = Library(options(store_file))

    def fit() -> None:
        callback._fits.begin("net", {}, {})
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError), callback:
        fit()
    assert callback.result is not None
    assert callback.result.ended is WatchEnding.FAILED
    assert callback.result.error == "ZeroDivisionError: division by zero"
    with callback:
        callback._fits.begin("net", {}, {})
        callback._fits.end()
    assert [ended(run).ended.value for run in callback.runs] == ["failed", "completed"]


def test_a_wrong_option_is_told_before_the_fit(store_file: Path) -> None:
    for given, words in (({"track": "excel"}, "no tracker 'excel'"), ({"hz": 99}, "hz"), ({"name": ""}, "empty")):
        with pytest.raises(UsageError, match=words):
            FitRecorder(options(store_file, **given))


@pytest.mark.parametrize("library", ["keras", "lightning", "transformers"])
def test_a_library_that_is_not_there(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.setattr(callbacks, "import_module", missing)
    with pytest.raises(NotInstalledError, match=f"{library}_callback.. needs {library}"):
        getattr(mm, f"{library}_callback")()


def test_options_travel_to_another_process(store_file: Path) -> None:
    _, (library, given) = Library(options(store_file, name="net")).__reduce__()
    assert library == "library"
    assert pickle.loads(pickle.dumps(given)) == given


def test_a_pass_that_begins_anew_closes_the_one_before(fits: FitRecorder) -> None:
    fits.begin("net", {}, {})
    loop = LoopWatch(fits.run, "train")
    assert not loop.is_open
    loop.asked(fits.run._began_s + 1)  # a fit that goes on in the middle of an epoch says no beginning
    assert loop.is_open
    loop.begin(fits.run._began_s + 2)
    loop.close(fits.run._began_s + 3)
    assert not loop.is_open
    fits.end()
    assert [one.at_s for one in ended(fits).passes] == pytest.approx([1, 2])
