"""A training as events: while it runs, as the launcher's listener, and afterwards from its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from metalmark.errors import MetalmarkError
from metalmark.model.training import Ending, Epoch, TrainingRun, TrainingSetup
from metalmark.track.courier import Courier, Parcel
from metalmark.track.destination import Destination, Wish
from metalmark.track.event import Axis, Begin, End, Event, File, Known, Model, Row, Status, Value
from metalmark.track.spool import Queue, Spool
from metalmark.track.story import (
    finite,
    known_numbers,
    machine_tags,
    milliseconds,
    plan_params,
    stopped,
    telemetry_rows,
)
from metalmark.training.derived import best, elapsed_s, joules, reached, samples_s
from metalmark.training.job import BEST, RECORD, TrainingProgress, read_request
from metalmark.training.launch import Event as Heard

STATUS = {Ending.INTERRUPTED: Status.KILLED, Ending.RUNNING: Status.KILLED, Ending.FAILED: Status.FAILED}


class TrainingTracker:
    """A Listener of `training.launch`. Whatever goes wrong here ends the tracking, never the training."""

    def __init__(self, wish: Wish, folder: Path, *, source: str = "") -> None:
        self._wish, self._folder, self._source = wish, folder, source
        self._spool: Spool | None = None
        self._courier: Courier | None = None
        self._began_ms = 0
        self._record: TrainingRun | None = None
        self._begun = False
        """Bad input is no run: nothing is told before the worker has found its data and its device."""
        self.trouble = ""

    def __call__(self, event: Heard) -> None:
        if self.trouble:
            return
        try:
            self._hear(event)
        except Exception as error:  # noqa: BLE001  see above
            self.trouble = stopped(error)
            if self._spool is not None:
                self._spool.close()

    def finish(self) -> list[Parcel]:
        """Wait for the trackers, within reason."""
        if self._spool is not None:
            self._spool.close()
        return self._courier.wait() if self._courier is not None else []

    def _hear(self, event: Heard) -> None:
        if isinstance(event, TrainingProgress):
            self._progress(event)
        elif event.ending is Ending.RUNNING:
            self._began_ms, self._record = milliseconds(event.sessions[-1].started_at), event
            # The libraries are imported while the framework is; what is sent begins when the training does.
            self._spool = Spool(event.id, self._wish.destinations)
            self._courier = Courier([self._spool.queue], self._wish.destinations, uri=self._wish.uri)
        elif self._spool is not None and self._begun:
            last = len(event.sessions) - 1
            self._spool.append(*session_rows(event, last))
            conclude(self._spool, event, self._folder, source=self._source)

    def _progress(self, event: TrainingProgress) -> None:
        assert self._spool is not None
        if event.setting is not None and not self._begun:
            assert self._record is not None
            self._begun = True
            # A resumed training is told from its beginning: trackers let pass what they have.
            self._spool.append(begin_of(self._record), *past(self._record))
        at_ms = self._began_ms + round(event.at_s * 1000)
        events: list[Event] = []
        if event.setting is not None:
            events.append(known_of(event.setting))
        first = event.step - len(event.losses) + 1
        events += [step_row(first + number, loss, at_ms) for number, loss in enumerate(event.losses)]
        if event.ended is not None:
            events.append(epoch_row(event.ended, at_ms))
        if events:
            self._spool.append(*events)


def spool_training(folder: Path, record: TrainingRun, destinations: Sequence[Destination]) -> Queue:
    """A training that is over, as a queue to be sent."""
    with Spool(record.id, destinations) as spool:
        spool.append(begin_of(record), *past(record))
        conclude(spool, record, folder, source=_source(folder))
    return spool.queue


def _source(folder: Path) -> str:
    """The user's own workload, if it is one and its training still says where it was."""
    try:
        request = read_request(folder)
    except MetalmarkError:
        return ""
    return request.paths.get(request.plan.workload, "")


def begin_of(record: TrainingRun) -> Begin:
    plan, goal = record.plan, record.goal
    asked: dict[str, Value | None] = {
        "epochs": goal.epochs,
        "target_accuracy": goal.target_accuracy,
        "patience": goal.patience,
    }
    session = record.sessions[0] if record.sessions else None
    return Begin(
        id=record.id,
        name=f"{plan.workload} {plan.framework} {plan.device} {record.id}",
        kind="training",
        at_ms=milliseconds(record.started_at),
        params={**plan_params(plan), **{name: value for name, value in asked.items() if value is not None}},
        tags=machine_tags(session.machine, session.software) if session is not None else {},
    )


def known_of(setting: TrainingSetup) -> Known:
    return Known(
        params={
            "data_source": setting.data,
            "data_digest": setting.data_digest,
            "train_samples": setting.train_samples,
            "validation_samples": setting.validation_samples,
            "parameters": setting.parameters,
            "trainable_parameters": setting.trainable_parameters,
            "workers": setting.workers,
        },
        tags={
            "placed_on": setting.placed_on,
            "device_name": setting.device_name,
            **{f"version.{name}": version for name, version in setting.versions.items()},
            **({"notes": "; ".join(setting.notes)} if setting.notes else {}),
        },
    )


def past(record: TrainingRun) -> Iterator[Event]:
    """What is known of the sessions that are over, in the order it was told while they ran."""
    if record.setting is not None:
        yield known_of(record.setting)
    step = 0
    for number, session in enumerate(record.sessions):
        began_ms = milliseconds(session.started_at)
        for epoch in (epoch for epoch in record.epochs if epoch.session == number):
            for count, loss in enumerate(epoch.losses, start=1):
                at_s = epoch.begin_s + (epoch.end_s - epoch.begin_s) * count / len(epoch.losses)
                yield step_row(step + count, loss, began_ms + round(at_s * 1000))
            step += epoch.steps
            yield epoch_row(epoch, began_ms + round(epoch.end_s * 1000))
        yield from session_rows(record, number)


def step_row(step: int, loss: float, at_ms: int) -> Row:
    return Row(axis=Axis.STEP, x=step, at_ms=at_ms, values={"train/loss": finite(loss)})


def epoch_row(epoch: Epoch, at_ms: int) -> Row:
    values = {
        "train_loss": epoch.train_loss,
        "validation_loss": epoch.validation_loss,
        "accuracy": epoch.accuracy,
        "top5": epoch.top5,
        "learning_rate": epoch.learning_rate,
        "samples_s": samples_s(epoch),
        "elapsed_s": elapsed_s(epoch),
        "input_s": epoch.input_s,
        "compute_s": epoch.compute_s,
        "validation_s": epoch.validation_s,
        "checkpoint_s": epoch.checkpoint_s,
    }
    named = {f"epoch/{name}": value for name, value in known_numbers(values).items()}
    return Row(axis=Axis.EPOCH, x=epoch.number, at_ms=at_ms, values=named)


def session_rows(record: TrainingRun, number: int) -> Iterator[Row]:
    session = record.sessions[number]
    began_ms = milliseconds(session.started_at)
    after_s = (began_ms - milliseconds(record.started_at)) / 1000
    yield from telemetry_rows(session.telemetry, began_ms=began_ms, after_s=after_s)


def conclude(spool: Spool, record: TrainingRun, folder: Path, *, source: str = "") -> None:
    """What a training came to, its record and its best model."""
    at_ms = _end_ms(record)
    top = best(record.epochs)
    if top is not None:
        values = _totals(record)
        spool.append(Row(axis=Axis.EPOCH, x=record.epochs[-1].number, at_ms=at_ms, values=values))
    failure = {"failure": record.failure.message} if record.failure is not None else {}
    spool.append(Known(tags={"ending": record.ending.value, **failure}))
    spool.add_file(RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1))
    spool.append(File(name=RECORD))
    if top is not None and (folder / BEST).exists() and record.setting is not None:
        spool.add_link(BEST, folder / BEST)
        spool.append(
            Model(name=BEST, plan=record.plan, epoch=top.number, classes=record.setting.classes, source=source)
        )
    spool.end(End(at_ms=at_ms, status=STATUS.get(record.ending, Status.FINISHED)))


def _totals(record: TrainingRun) -> dict[str, float | None]:
    top = best(record.epochs)
    assert top is not None
    total_s = sum(elapsed_s(epoch) for epoch in record.epochs)
    values: dict[str, float | int | object] = {
        "best/accuracy": top.accuracy,
        "best/validation_loss": top.validation_loss,
        "best/epoch": top.number,
        "total/training_s": total_s,
    }
    if record.memory is not None:
        values |= {"memory/live_bytes": record.memory.live_bytes, "memory/peak_bytes": record.memory.peak_bytes}
    for part, used in joules(record, record.epochs).items():
        if isinstance(used, float):
            values |= {f"total/{part}_joules": used, f"total/{part}_watts": used / total_s if total_s else None}
    wanted = record.goal.target_accuracy
    target = reached(record, wanted) if wanted is not None else None
    if target is not None:
        values["target/seconds"] = target.seconds
        values |= {f"target/{part}_joules": used for part, used in target.joules.items()}
    return known_numbers(values)  # type: ignore[arg-type]


def _end_ms(record: TrainingRun) -> int:
    if not record.sessions:
        return milliseconds(record.started_at)
    session = record.sessions[-1]
    ends = [epoch.end_s for epoch in record.epochs if epoch.session == len(record.sessions) - 1]
    ends += [one.at_s[-1] for one in session.telemetry.series if one.at_s]
    return milliseconds(session.started_at) + round(max(ends, default=0.0) * 1000)
