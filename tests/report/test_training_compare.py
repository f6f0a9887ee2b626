"""Trainings side by side, from records whose figures are known."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.run import Absent, DeviceMemory, Failed, FailureKind, Series, Software, Telemetry
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession, TrainingSetup
from metalmark.report.text.side_by_side import curve_lines, side_notes, side_tables, sides_of, unlike
from metalmark.report.text.terminal import print_table
from metalmark.report.text.units import BARS
from metalmark.results.derived import training_figures
from tests.samples import MACHINE

UNKNOWN = Absent(reason="not counted")


def epoch(number: int, accuracy: float, **changes: Any) -> Epoch:
    fields: dict[str, Any] = {
        "number": number, "session": 0, "begin_s": 10.0 * number, "end_s": 10.0 * number + 10, "samples": 100,
        "steps": 10, "losses": (1.0,) * 10, "train_loss": 1.0, "validation_loss": 1 - accuracy, "accuracy": accuracy,
        "top5": 1.0, "validation_samples": 20, "learning_rate": 0.1, "input_s": 1.0, "compute_s": 6.0,
        "first_steps_s": 0.0, "first_steps_samples": 0, "validation_s": 2.0,
    }  # fmt: skip
    return Epoch(**{**fields, **changes})


def series(name: str, value: float, unit: str = "%", source: str = "test") -> Series:
    at_s = tuple(float(second) for second in range(60))
    return Series(name=name, unit=unit, source=source, at_s=at_s, values=(value,) * 60)


def session(*found: Series, hz: float | None = 1.0, environment: dict[str, str] | None = None) -> TrainingSession:
    return TrainingSession(
        started_at="now",
        first_epoch=1,
        machine=MACHINE,
        software=Software(metalmark="0", python="3", environment=environment or {}),
        telemetry=Telemetry(hz=hz, series=found),
    )


def record(device: str = "cpu", placed_on: str = "cpu", **changes: Any) -> TrainingRun:
    plan = Plan(
        workload="mnist-mlp",
        params={"batch_size": 32},
        mode=Mode.TRAINING,
        framework="torch",
        device=Device(kind=DeviceKind(device)),
    )
    setting = TrainingSetup(
        placed_on=placed_on, device_name="d", parameters=1, trainable_parameters=1, data="made", data_digest="d" * 64,
        train_samples=100, validation_samples=20, classes=10, workers=0,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "id": "training00",
        "started_at": "now",
        "plan": plan,
        "goal": Goal(epochs=2),
        "ending": Ending.EPOCHS,
        "setting": setting,
        "epochs": (epoch(1, 0.5, first_steps_s=2.0, first_steps_samples=10, compute_s=8.0), epoch(2, 0.9)),
        "sessions": (session(series("process_cpu", 400.0), series("process_memory", 2.0**30, "bytes")),),
    }
    return TrainingRun(**{**fields, **changes})


def absent(message: str = "there is none") -> TrainingRun:
    why = Failed(kind=FailureKind.UNSUPPORTED, message=message, hint="Buy one.")
    return record("gpu", ending=Ending.FAILED, failure=why, setting=None, epochs=(), sessions=())


def test_the_times_of_an_epoch_add_up_and_first_steps_are_apart() -> None:
    side = training_figures(record())
    assert (side.input_s, side.compute_s, side.validation_s) == (1.0, 6.0, 2.0)
    assert side.epoch_s == 9.0
    assert side.first_steps_s == 2.0
    assert side.samples_s == pytest.approx(190 / 14)
    assert (side.accuracy, side.best_epoch, side.epochs) == (0.9, 2, 2)


def test_utilisation_on_the_cpu_is_of_the_cores_it_may_use() -> None:
    used = training_figures(record()).utilisation
    assert not isinstance(used, Absent)
    assert (used.percent, used.of) == (50.0, "8 cores")
    assert training_figures(record()).memory_bytes == 2**30


def test_on_a_gpu_its_own_readings_count() -> None:
    sensors = (
        series("gpu1_utilisation", 70.0), series("gpu0_utilisation", 1.0), series("gpu1_power", 200.0, "W"),
        series("process_memory", 5.0, "bytes"),
    )  # fmt: skip
    memory = DeviceMemory(live_bytes=1, driver_bytes=2, peak_bytes=3)
    side = training_figures(record("gpu", "cuda:1", sessions=(session(*sensors),), memory=memory))
    assert side.label == "torch gpu → cuda:1"
    assert not isinstance(side.utilisation, Absent)
    assert (side.utilisation.percent, side.utilisation.of) == (70.0, "gpu1")
    assert not isinstance(side.energy, Absent)
    assert side.energy.joules == pytest.approx(200 * 20)
    assert side.energy.average_w == pytest.approx(200)
    assert side.memory_bytes == 3


def test_a_gpu_that_can_not_be_told_apart_is_not_taken_for_the_cpu() -> None:
    one = session(series("process_cpu", 100.0), environment={"CUDA_VISIBLE_DEVICES": "GPU-1234"})
    side = training_figures(record("gpu", "cuda:0", sessions=(one,)))
    assert isinstance(side.utilisation, Absent)
    assert isinstance(side.energy, Absent)
    assert "CUDA_VISIBLE_DEVICES" in side.energy.reason


def test_what_was_switched_off_says_so() -> None:
    side = training_figures(record(sessions=(session(hz=None),)))
    assert isinstance(side.utilisation, Absent)
    assert "switched off" in side.utilisation.reason
    assert isinstance(side.memory_bytes, Absent)


def test_energy_is_of_all_sessions_or_of_none() -> None:
    epochs = (epoch(1, 0.5), epoch(2, 0.6, session=1))
    metered, blind = session(series("cpu_power", 10.0, "W")), session()
    both = training_figures(record(epochs=epochs, sessions=(metered, metered))).energy
    assert not isinstance(both, Absent)
    assert both.joules == pytest.approx(200)
    assert isinstance(training_figures(record(epochs=epochs, sessions=(metered, blind))).energy, Absent)


def test_the_work_of_others_is_flagged() -> None:
    busy = record(sessions=(session(series("process_cpu", 100.0), series("system_cpu", 50.0)),))
    assert [flag.name for flag in training_figures(busy).flags] == ["busy_machine"]
    (table,) = side_tables([busy, record("any")], columns=200)
    assert table.rows[-1] == ("flags", "busy_machine", "-")
    notes = list(side_notes([busy]))
    assert "busy_machine: other processes used 3.0 of 8 cores while it was measured (torch cpu)." in notes
    assert training_figures(record()).flags == ()


def test_what_did_not_train_has_a_column_with_its_reason() -> None:
    records = [record(), absent(), replace(record("any"), epochs=(), sessions=(), ending=Ending.RUNNING)]
    (table,) = side_tables(records, columns=200)
    assert table.headers == ("", "torch cpu", "torch gpu", "torch any → cpu")
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["epochs"] == ("2 of 2", "unsupported", "not begun")
    assert cells["samples/s"][1:] == ("-", "-")
    notes = list(side_notes(records))
    assert "torch gpu: unsupported. there is none Buy one." in notes
    assert any(note.startswith("Power and energy unknown on torch cpu: ") for note in notes)


def test_a_narrow_terminal_gets_several_tables_and_every_training_once() -> None:
    records = [record(), record("any"), absent(), record()]
    tables = side_tables(records, columns=60)
    assert len(tables) > 1
    assert [header for table in tables for header in table.headers[1:]] == [side.label for side in sides_of(records)]


def test_another_batch_size_is_not_like_for_like() -> None:
    other = record("any")
    other = replace(other, plan=replace(other.plan, params={"batch_size": 64}), goal=Goal(epochs=3))
    assert unlike([record(), other]) == {"batch_size": ("32", "64"), "epochs": ("2", "3")}
    assert unlike([record(), record("any"), absent()]) == {}
    notes = list(side_notes([record(), other]))
    assert "Not like for like: batch size 32 / 64; epochs 2 / 3." in notes


def bars(line: str) -> str:
    return "".join(letter for letter in line if letter in BARS)


def test_curves_stand_on_one_scale() -> None:
    low = record(epochs=(epoch(1, 0.1), epoch(2, 0.2)))
    high = record("any", epochs=(epoch(1, 0.8), epoch(2, 0.9), epoch(3, 0.9)))
    lines = list(curve_lines(sides_of([low, high])))
    begin = lines.index("validation accuracy over epochs, from 10.00% to 90.00%")
    drawn = [bars(line) for line in lines[begin + 1 : begin + 3]]
    assert drawn == [f"{BARS[0]}{BARS[1]}", f"{BARS[6]}{BARS[7]}{BARS[7]}"]


def test_a_long_training_is_drawn_in_the_room_there_is() -> None:
    many = record(epochs=tuple(epoch(number, number / 1000) for number in range(1, 1000)))
    few = record("any", epochs=tuple(epoch(number, number / 1000) for number in range(1, 500)))
    lines = list(curve_lines(sides_of([many, few]), width=40))
    assert [len(bars(line)) for line in lines[2:4]] in ([40, 20], [40, 19])


def test_what_a_failure_says_can_not_steer_the_terminal() -> None:
    out = io.StringIO()
    for table in side_tables([record(), absent("\x1b[31mred\x07")], columns=120):
        print_table(table, Console(file=out, width=120))
    assert "\x1b" not in out.getvalue()
    assert "[31mred" in out.getvalue()
