"""Trainings without an accuracy, and by figures of their own: tables, answers, charts, exports, comparisons."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from metalmark.model.codec import decode, encode
from metalmark.model.run import Absent, Series, Telemetry
from metalmark.model.training import Ending, EpochPart, Goal, Metric, Target, TrainingRun
from metalmark.report.answer import answer
from metalmark.report.charts.draw import Figure
from metalmark.report.charts.over_time import together_figures, training_figures
from metalmark.report.compare_answer import comparison_answer, try_to_compare
from metalmark.report.content import Content
from metalmark.report.text.exports import csv_text
from metalmark.report.text.run_tables import run_tables, summary, training_table
from metalmark.report.text.terminal import fitted
from metalmark.results.command import train_command
from metalmark.results.comparison import Comparison
from metalmark.results.derived import joules_of_epochs, target_reached
from metalmark.results.pairing import Side
from metalmark.stats.difference import Verdict
from metalmark.store.row import row_of
from metalmark.track.story import epoch_row, history
from metalmark.training.derived import best
from tests.samples import epoch, plan, training_run, training_session

NO_ACCURACY = Absent("a regression has no accuracy")


def regression(*losses: float, goal: Goal | None = None, **changes: Any) -> TrainingRun:
    """A training whose validation came to these losses, with an error of half of each."""
    epochs = tuple(
        msgspec.structs.replace(
            epoch(number, validation_loss=float(loss), top5=NO_ACCURACY, metrics={"mae": loss / 2}),
            accuracy=NO_ACCURACY,
        )
        for number, loss in enumerate(losses, start=1)
    )
    known = training_run()
    assert known.setting is not None
    setting = msgspec.structs.replace(known.setting, task="regression", validation_samples=None)
    fields = {"epochs": epochs, "goal": goal or Goal(epochs=len(losses)), "setting": setting,
              "sessions": (training_session(),)}  # fmt: skip
    return training_run(**{**fields, **changes})


def test_it_is_stored_and_read_as_it_was() -> None:
    goal = Goal(epochs=3, monitor=Metric(name="mae", falls=True), limit_steps=9, limit_samples=4)
    run = regression(3, 2, 1, goal=goal.aimed_at(Target(name="val_loss", falls=True, value=0.5)))
    assert decode(encode(run)) == run
    row = row_of(run)
    assert (row.accuracy, row.epochs) == (None, 3)


def test_the_table_has_what_there_is_and_says_what_made_the_best() -> None:
    goal = Goal(epochs=3, target=Target(name="mae", falls=True, value=0.6))
    table = training_table(regression(3, 1, 2, goal=goal))
    assert table.headers[:5] == ("epoch", "train loss", "val loss", "mae", "rate")
    assert [row[0] for row in table.rows] == ["1", "*2", "3"]
    assert table.rows[1][3] == "0.5000"
    notes = " ".join(table.notes)
    assert "100 samples to train, another to validate" in notes
    assert "Task: regression." in notes
    assert "* best: epoch 2, the lowest val_loss, 1.0000." in notes
    assert "The target of mae 0.6 was reached in epoch 2" in notes
    assert "No accuracy" not in notes, "nobody asks for that of a regression"
    by_highest = training_table(regression(3, 1, 2, goal=Goal(epochs=3, monitor=Metric(name="mae", falls=False))))
    assert "* best: epoch 1, the highest mae, 1.5000." in " ".join(by_highest.notes)


def test_metrics_that_do_not_fit_are_named() -> None:
    many = {f"metric_number_{number}": 0.5 for number in range(6)}
    run = regression(1)
    run = msgspec.structs.replace(run, epochs=(msgspec.structs.replace(run.epochs[0], metrics=many),))
    table = fitted(training_table(run), 80)
    shown = [header for header in table.headers if header.startswith("metric")]
    assert 0 < len(shown) < 6
    assert f"metric_number_{len(shown)}" in table.notes[0], "what does not fit is named"
    assert "val loss" in table.headers


def test_a_line_of_a_log() -> None:
    assert summary(regression(2).epochs[0]) == "loss 1.0000, validation 2.0000, mae 1.0000, 9.00 s"
    unvalidated = msgspec.structs.replace(regression(2).epochs[0], validation_loss=NO_ACCURACY, metrics={})
    assert summary(unvalidated) == "loss 1.0000, 9.00 s"


def test_what_cannot_be_told_is_a_note() -> None:
    why = Absent("what the network learns can't be told")
    run = regression(1)
    run = msgspec.structs.replace(
        run, epochs=(msgspec.structs.replace(run.epochs[0], accuracy=why),),
        setting=msgspec.structs.replace(run.setting, task=""),  # type: ignore[type-var]
    )  # fmt: skip
    assert "No accuracy: what the network learns can't be told." in training_table(run).notes


def test_the_answer_and_several_side_by_side() -> None:
    assert "reached a val_loss of 1.0000 in epoch 2 of 3" in " ".join(answer(Content(runs=(regression(3, 1, 2),))))
    ours, theirs = regression(3, 1), regression(3, 2, plan=plan(framework="jax"))
    text = " ".join(answer(Content(runs=(ours, theirs))))
    assert "val_loss 2: first" in text
    (table,) = run_tables([ours, theirs])
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["best"] == ("val_loss 1.0000 (epoch 2)", "val_loss 2.0000 (epoch 2)")
    assert "best accuracy" not in rows
    assert any("validation loss over epochs" in line for line in table.lines)


def test_charts_and_exports() -> None:
    drawings = [*together_figures([regression(3, 1)]), *training_figures(regression(3, 1))]
    titles = [drawn.title for drawn in drawings if isinstance(drawn, Figure)]
    assert "Validation mae: mnist-mlp" in titles
    assert not any("accuracy" in title for title in titles)
    header, first, *_ = csv_text(Content(runs=(regression(3, 1),))).splitlines()
    assert header.endswith(",metrics")
    assert first.endswith('"{""mae"":1.5}"')


def test_trackers_get_every_metric() -> None:
    row = epoch_row(regression(3).epochs[0], at_ms=0)
    assert row.values["epoch/mae"] == 1.5
    assert "epoch/accuracy" not in row.values
    assert list(history(regression(3, 1)))


def compared(a: list[TrainingRun], b: list[TrainingRun]) -> Comparison:
    (found,) = try_to_compare([Side.of_runs("a", a), Side.of_runs("b", b)])
    return found


def seeds(*losses: float, framework: str = "torch") -> list[TrainingRun]:
    return [regression(9, loss, plan=plan(framework=framework, seed=seed)) for seed, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "verdict", "said"),
    [
        ((1.0, 1.01, 0.99), Verdict.BETTER, "b has a lower val_loss than a: 1.0000 against 2.0000"),
        ((2.0, 2.01, 1.99), Verdict.SAME, "b has the same val_loss as a"),
        ((2.5, 1.2, 3.1), Verdict.CANT_TELL, "Can't tell whether b has a lower val_loss than a"),
        ((3.0, 3.01, 2.99), Verdict.WORSE, "b has a higher val_loss than a"),
    ],
)
def test_a_loss_is_compared_where_there_is_no_accuracy(losses: tuple[float, ...], verdict: Verdict, said: str) -> None:
    found = compared(seeds(2.0, 2.01, 1.99), seeds(*losses, framework="jax"))
    (row,) = found.rows
    assert row.trained is not None
    assert row.trained.monitored is not None
    assert row.trained.monitored.verdict is verdict
    text = comparison_answer(found)
    assert said in text
    assert "accura" not in text


def test_a_limited_training_is_not_a_whole_one() -> None:
    limited = [msgspec.structs.replace(run, goal=Goal(epochs=2, limit_steps=3)) for run in seeds(1, 1.1)]
    assert not try_to_compare([Side.of_runs("a", seeds(1, 1.1)), Side.of_runs("b", limited)])


def test_the_command_that_trains_it_again_says_the_direction() -> None:
    goal = Goal(epochs=4, monitor=Metric(name="f1", falls=False), limit_steps=9).aimed_at(
        Target(name="regret", falls=True, value=0.1)
    )
    assert train_command(plan(), goal).endswith("--epochs 4 --target 'regret<=0.1' --monitor f1:max --limit-steps 9")


def test_an_epoch_over_two_sessions_counts_the_time_and_the_energy_of_both() -> None:
    def session(watts: float) -> Any:
        at_s = tuple(float(second) for second in range(41))
        series = Series(name="gpu0_power", unit="W", source="test", at_s=at_s, values=(watts,) * 41)
        return training_session(telemetry=Telemetry(hz=1.0, series=(series,)))

    split = epoch(1, 0.9, session=1, begin_s=5.0, end_s=15.0, earlier=(EpochPart(session=0, begin_s=10.0, end_s=30.0),))
    run = training_run(epochs=(split,), sessions=(session(10.0), session(30.0)), goal=Goal(epochs=1))
    assert joules_of_epochs(run, run.epochs)["gpu0"] == pytest.approx(20 * 10 + 10 * 30)
    found = target_reached(run, 0.9)
    assert found is not None
    assert found.joules["gpu0"] == pytest.approx(500)


def test_a_run_of_an_older_version_that_reached_its_target() -> None:
    text = encode(training_run(ending=Ending.TARGET)).replace(b"target reached", b"target accuracy reached")
    older = decode(text)
    assert isinstance(older, TrainingRun)
    assert older.ending is Ending.TARGET


def test_a_metric_that_an_epoch_lacks_is_never_the_best() -> None:
    epochs = [epoch(1, metrics={}), epoch(2, metrics={"auc": 0.1}), epoch(3, metrics={"auc": 0.2})]
    top = best(epochs, Metric(name="auc", falls=False))
    assert top is not None
    assert top.number == 3
