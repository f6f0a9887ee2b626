"""Records in a tracker's words: every figure is there, in its place, and nothing that was not measured."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from metalmark.model.codec import AnyRun
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.run import Absent, Series, Software, Telemetry
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession, TrainingSetup
from metalmark.track.destination import Destination
from metalmark.track.model import Description, describe
from metalmark.track.queue import (
    AttachedFile,
    AttachedModel,
    Begin,
    End,
    EndStatus,
    Known,
    MetricAxis,
    MetricRow,
    Queue,
    QueueWriter,
)
from metalmark.track.story import MOST_ROWS, milliseconds, telemetry_rows, write_run
from tests import samples

TO = Destination(tracker="mlflow", place="http://127.0.0.1:1")
BEGAN = "2026-11-15T08:00:00.000000Z"
LATER = "2026-11-15T09:00:00.000000Z"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "store.sqlite3"))


def series(name: str, unit: str, values: list[float], *, every_s: float = 1.0) -> Series:
    at_s = tuple((number + 0.5) * every_s for number in range(len(values)))
    return Series(name=name, unit=unit, source="a test", at_s=at_s, values=tuple(values))


def written(run: AnyRun, folder: Path | None = None) -> Queue:
    with QueueWriter(run.id, [TO]) as writer:
        write_run(writer, run, folder)
    return writer.queue


def rows(queue: Queue, name: str) -> list[MetricRow]:
    return [event for event in queue.read()[0] if isinstance(event, MetricRow) and name in event.values]


def points(queue: Queue, name: str) -> list[tuple[float, float | None]]:
    return [(row.x, row.values[name]) for row in rows(queue, name)]


def epoch(number: int, *, session: int, steps: int = 2) -> Epoch:
    return Epoch(
        number=number, session=session, begin_s=10.0, end_s=20.0, samples=8, steps=steps,
        losses=tuple(1 / (number + step) for step in range(steps)), train_loss=0.5, validation_loss=0.4 / number,
        accuracy=number / 10, top5=Absent("too few classes"), validation_samples=4, learning_rate=0.1, input_s=1.0,
        compute_s=8.0, first_steps_s=0.0, first_steps_samples=0, validation_s=1.0,
    )  # fmt: skip


def training() -> TrainingRun:
    """Two epochs in a first session, one in a second; power was measured in both."""
    software = Software(metalmark="0.1.0", python="3.11", versions={"torch": "2"})
    power = Telemetry(hz=1.0, series=(series("gpu0_power", "W", [50.0] * 30),))
    sessions = [
        TrainingSession(started_at=at, first_epoch=first, machine=samples.MACHINE, software=software, telemetry=power)
        for at, first in ((BEGAN, 1), (LATER, 3))
    ]
    second = msgspec.structs.replace(epoch(2, session=0), begin_s=20.0, end_s=29.0)
    setting = TrainingSetup(
        placed_on="cuda:0", device_name="a GPU", parameters=9, trainable_parameters=9, data="made", data_digest="d",
        train_samples=8, validation_samples=4, classes=10, workers=0, notes=("note",),
    )  # fmt: skip
    return TrainingRun(
        id="training01",
        started_at=BEGAN,
        plan=samples.plan(params={"batch_size": 4}),
        goal=Goal(epochs=3, target_accuracy=0.2),
        ending=Ending.EPOCHS,
        setting=setting,
        epochs=(epoch(1, session=0), second, epoch(3, session=1)),
        sessions=tuple(sessions),
    )


def test_a_training(tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").write_bytes(b"weights")
    record = training()
    queue = written(record, tmp_path)
    events = queue.read()[0]
    begin, end = events[0], events[-1]
    assert isinstance(begin, Begin)
    assert (begin.id, begin.params["batch_size"], begin.params["epochs"]) == ("training01", 4, 3)
    assert begin.tags["chip"] == "Test chip"
    losses = [loss for each in record.epochs for loss in each.losses]
    assert points(queue, "train/loss") == list(enumerate(losses, start=1))
    assert points(queue, "epoch/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert not rows(queue, "epoch/top5"), "what was not measured is there"
    power = rows(queue, "system/gpu0_power_watts")
    assert {row.values["system/gpu0_power_watts"] for row in power} == {50.0}
    assert power[0].axis is MetricAxis.SECONDS
    assert max(row.x for row in power) > 3600, "the second session's are at the first one's place"
    assert len({row.x for row in power}) == 60
    assert rows(queue, "train/loss")[-1].at_ms == milliseconds(LATER) + 20_000
    (totals,) = rows(queue, "best/accuracy")
    assert (totals.x, totals.values["best/epoch"]) == (3, 3)
    assert totals.values["total/gpu0_joules"] == pytest.approx(50 * (19 + 10))
    assert totals.values["total/gpu0_watts"] == pytest.approx(50, rel=0.05)
    assert totals.values["target/seconds"] == 20.0
    known = [event for event in events if isinstance(event, Known)]
    assert known[0].tags["device_name"] == "a GPU"
    assert known[-1].tags["ending"] == "all epochs done"
    (file,) = [event for event in events if isinstance(event, AttachedFile)]
    assert msgspec.json.decode(queue.file(file.name).read_bytes(), type=TrainingRun) == record
    (model,) = [event for event in events if isinstance(event, AttachedModel)]
    assert (model.epoch, model.classes, queue.file(model.name).read_bytes()) == (3, 10, b"weights")
    assert end == End(at_ms=milliseconds(LATER) + 29_500, status=EndStatus.FINISHED)


def test_cells_that_completed_and_that_failed() -> None:
    done = written(samples.record())
    assert len(points(done, "bench/step_s")) == 14
    (totals,) = rows(done, "bench/median_step_s")
    assert totals.values["bench/median_step_s"] == pytest.approx(0.1)
    assert totals.values["bench/samples_s"] == pytest.approx(320)
    assert not {"memory/peak_bytes", "energy/gpu0_joules"} & totals.values.keys()
    failed = written(samples.record(samples.failed())).read()[0]
    tags = [event.tags for event in failed if isinstance(event, Known)]
    assert tags == [{"failure": "no room", "failure.kind": "out of memory"}]
    assert isinstance(failed[-1], End)
    assert failed[-1].status is EndStatus.FAILED


def test_long_telemetry_is_thinned_by_means() -> None:
    values = [float(number % 2) for number in range(10 * MOST_ROWS)]
    telemetry = Telemetry(hz=5.0, series=(series("process_cpu", "%", values, every_s=0.2), series("few", "", [7.0])))
    found = list(telemetry_rows(telemetry, began_ms=0))
    assert len(found) == MOST_ROWS
    assert all(abs((row.values["system/process_cpu_percent"] or 0) - 0.5) <= 0.1 for row in found)
    assert [row.values["system/few"] for row in found if "system/few" in row.values] == [7.0]
    assert list(telemetry_rows(Telemetry(hz=None), began_ms=0)) == []


@pytest.mark.parametrize(
    ("workload", "shape"), [("mnist-mlp", (784,)), ("mobilenet-cifar10", (128, 128, 3)), ("vgg16-flowers", (64, 64, 3))]
)
def test_a_models_inputs_are_known_without_its_framework(workload: str, shape: tuple[int, ...]) -> None:
    from metalmark.workloads.catalog import load

    params = {param.name: param.default for param in load(workload).params}
    params |= {"pixels": 64} if workload == "vgg16-flowers" else {}
    plan = Plan(
        workload=workload, params=params, mode=Mode.TRAINING, framework="torch", device=Device(kind=DeviceKind.CPU)
    )
    found, (example,) = describe(AttachedModel(name="best.safetensors", plan=plan, epoch=1, classes=10))
    assert [(each.dtype, each.shape) for each in found.inputs] == [("float32", shape)]
    assert example.shape == (1, *shape)
    assert math.isfinite(float(example.sum()))


def test_a_workload_that_is_gone_costs_the_signature_alone() -> None:
    plan = Plan(
        workload="net.py:net", params={}, mode=Mode.TRAINING, framework="torch", device=Device(kind=DeviceKind.CPU)
    )
    found, arrays = describe(AttachedModel(name="b", plan=plan, epoch=1, classes=10, source="/nowhere/net.py"))
    assert isinstance(found, Description)
    assert (found.inputs, arrays) == ((), [])
    assert "not known" in found.note


def test_a_model_of_any_form_is_described(tmp_path: Path) -> None:
    file = tmp_path / "pair.py"
    file.write_text(
        "import numpy as np\n"
        "from metalmark import Batch, Recipe, Workload\n"
        "def batch(params, rng):\n"
        "    size = params['batch_size']\n"
        "    inputs = {'left': np.zeros((size, 3), 'float32'), 'right': np.zeros((size, 2), 'int32')}\n"
        "    return Batch(inputs=inputs, targets=np.zeros((size, 1), 'float32'))\n"
        "pair = Workload(name='pair', title='two inputs', params=(), build={'torch': lambda _: Recipe(model=None)},\n"
        "                batch=batch)\n"
    )
    plan = Plan(
        workload="pair.py:pair", params={}, mode=Mode.TRAINING, framework="torch", device=Device(kind=DeviceKind.CPU)
    )
    found, arrays = describe(AttachedModel(name="b", plan=plan, epoch=1, classes=0, source=str(file)))
    assert found.note == ""
    assert [(each.dtype, each.shape) for each in found.inputs] == [("float32", (3,)), ("int32", (2,))]
    assert [array.shape for array in arrays] == [(1, 3), (1, 2)]
    assert found.output is None, "a regression has no classes"
