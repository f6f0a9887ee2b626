"""Time and joules to a target, over two sessions whose telemetry is known."""

from __future__ import annotations

import msgspec
import pytest

from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.run import Absent, Machine, Series, Software, Telemetry
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession
from metalmark.report.text.run_tables import training_table
from metalmark.report.text.terminal import fitted
from metalmark.results.derived import target_reached
from metalmark.training.derived import best, ending, flags

MACHINE = Machine(chip="c", architecture="a", physical_cores=1, logical_cores=1, usable_cores=1, memory_bytes=1, os="o")
PLAN = Plan(
    workload="w", params={"batch_size": 4}, mode=Mode.TRAINING, framework="torch", device=Device(kind=DeviceKind.CPU)
)


def epoch(number: int, accuracy: float, *, session: int, begin_s: float) -> Epoch:
    return Epoch(
        number=number, session=session, begin_s=begin_s, end_s=begin_s + 10, samples=8, steps=2, losses=(2.0, 1.0),
        train_loss=1.5, validation_loss=1.0, accuracy=accuracy, top5=1.0, validation_samples=5, learning_rate=0.1,
        input_s=1.0, compute_s=6.0, first_steps_s=1.0, first_steps_samples=4, validation_s=3.0,
    )  # fmt: skip


def session(*, watts: float | None) -> TrainingSession:
    at_s = tuple(float(second) for second in range(41))
    series = Series(name="gpu0_power", unit="W", source="test", at_s=at_s, values=(watts or 0.0,) * 41)
    telemetry = Telemetry(hz=1.0, series=() if watts is None else (series,))
    software = Software(metalmark="0", python="3")
    return TrainingSession(started_at="now", first_epoch=1, machine=MACHINE, software=software, telemetry=telemetry)


def record(*watts: float | None) -> TrainingRun:
    epochs = (
        epoch(1, 0.5, session=0, begin_s=5),
        epoch(2, 0.7, session=0, begin_s=15),
        epoch(3, 0.9, session=1, begin_s=5),
        epoch(4, 0.8, session=1, begin_s=15),
    )
    return TrainingRun(
        id="training0", started_at="now", plan=PLAN, goal=Goal(epochs=4, target_accuracy=0.9), ending=Ending.EPOCHS,
        epochs=epochs, sessions=tuple(session(watts=each) for each in watts),
    )  # fmt: skip


def test_time_and_joules_of_both_sessions() -> None:
    found = target_reached(record(10.0, 30.0), 0.9)
    assert found is not None
    assert (found.epoch, found.seconds) == (3, 30.0)
    assert found.joules["gpu0"] == pytest.approx(20 * 10 + 10 * 30)


def test_joules_are_absent_where_a_session_has_none() -> None:
    found = target_reached(record(10.0, None), 0.9)
    assert found is not None
    assert isinstance(found.joules["gpu0"], Absent)


def test_what_the_machine_did_in_any_session_is_flagged_once() -> None:
    """Sleep is of the session; the rest is looked for while its epochs ran."""
    calm, spoiled = session(watts=None), session(watts=None)
    power = Series(name="on_battery", unit="", source="test", at_s=(6.0,), values=(1.0,))
    heat = Series(name="thermal_warning", unit="", source="test", at_s=(8.0,), values=(1.0,))
    late = Series(name="low_power_mode", unit="", source="test", at_s=(39.0,), values=(1.0,))
    spoiled = msgspec.structs.replace(spoiled, telemetry=Telemetry(hz=1.0, series=(power, heat, late), slept_s=340.0))
    known = record(None, None)
    for sessions in ((calm, spoiled), (spoiled, spoiled)):
        found = flags(msgspec.structs.replace(known, sessions=sessions))
        assert [flag.name for flag in found] == ["throttled", "on_battery", "slept"]
        assert "slept for 340 s" in found[-1].evidence
    assert flags(known) == ()
    assert flags(msgspec.structs.replace(known, sessions=(calm, spoiled), epochs=known.epochs[:2])) == ()


def test_a_target_that_no_epoch_has() -> None:
    assert target_reached(record(10.0, 30.0), 0.95) is None


def test_the_table_says_it() -> None:
    table = training_table(record(10.0, 30.0))
    assert [row[0] for row in table.rows] == ["1", "2", "*3", "4"]
    assert table.rows[0][-1] == "0.667"  # 4 samples in the 6 s beside the first step
    assert any("was reached in epoch 3, after 30.0 s; gpu0 500 J" in note for note in table.notes)


def test_a_narrow_terminal_gets_fewer_columns_not_cut_ones() -> None:
    table = fitted(training_table(record(None, None)), 80)
    headers = [header.replace("\n", " ") for header in table.headers]
    assert headers == ["epoch", "train loss", "val loss", "accuracy", "input", "compute", "validation", "samples/s"]
    assert table.rows[0][:6] == ("1", "1.5000", "1.0000", "50.00%", "1.00 s", "6.00 s")
    assert table.notes[0].startswith("Not shown (use --wide): top-5")


def test_equal_accuracies_go_by_the_loss_and_then_the_earlier() -> None:
    epochs = record(None, None).epochs
    top = best([*epochs, epoch(5, 0.9, session=1, begin_s=25)])
    assert top is not None
    assert top.number == 3


def test_when_it_is_over() -> None:
    epochs = record(None, None).epochs
    assert ending((), Goal(epochs=1)) is None
    assert ending(epochs, Goal(epochs=5)) is None
    assert ending(epochs, Goal(epochs=4)) is Ending.EPOCHS
    assert ending(epochs, Goal(epochs=9, patience=1)) is Ending.PATIENCE
    assert ending(epochs, Goal(epochs=9, patience=2)) is None
    assert ending(epochs[:3], Goal(epochs=9, target_accuracy=0.9)) is Ending.TARGET
