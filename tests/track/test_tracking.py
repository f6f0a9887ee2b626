"""Tracking: what runs tell while they are alive, and that nothing that goes wrong here reaches the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import metalmark as mm
from metalmark.app.runs import push_runs
from metalmark.model.codec import decode
from metalmark.model.run import Failed, FailureKind, Software, Telemetry
from metalmark.model.training import Ending, TrainingRun
from metalmark.model.watch import Curve, WatchedRun, WatchEnding
from metalmark.runner.events import Ended, Started, TrainingProgress
from metalmark.store.store import Store
from metalmark.track import destination, launch, tracking
from metalmark.track import waiting as track_waiting
from metalmark.track.destination import Destination, TrackTargets
from metalmark.track.queue import (
    AttachedModel,
    Begin,
    Delivery,
    End,
    EndStatus,
    Known,
    MetricAxis,
    MetricRow,
    Queue,
    queues,
)
from metalmark.track.sender import Deliverer
from metalmark.track.story import milliseconds
from metalmark.track.tracking import Tracking
from metalmark.track.waiting import matching_queues, waiting
from metalmark.training.folder import Request, write_request
from tests import samples
from tests.conftest import ROOT, Cli
from tests.track.fake import FakeTracker
from tests.track.test_story import BEGAN, LATER, points, training

TO = Destination(tracker="mlflow", place="http://127.0.0.1:1")
TARGETS = TrackTargets(destinations=(TO,), notes=("a note",))


class SenderStarts:
    """In the place of the processes that send: which queues they were given."""

    def __init__(self) -> None:
        self.queues: list[list[str]] = []

    def __call__(self, queues: list[Queue], _: object, **__: object) -> list[Any]:
        self.queues.append([queue.id for queue in queues])
        return []


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SenderStarts:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "store.sqlite3"))
    found = SenderStarts()
    for module in (launch, tracking, track_waiting):
        monkeypatch.setattr(module, "start_senders", found)
    return found


def session(run: TrainingRun) -> tuple[Started, Ended]:
    """How a listener hears of a training's last session: the epochs before it are known when it begins."""
    number = len(run.sessions) - 1
    now = msgspec.structs.replace(run.sessions[number], telemetry=Telemetry(hz=None))
    before = tuple(epoch for epoch in run.epochs if epoch.session < number)
    begun = msgspec.structs.replace(run, epochs=before, ending=Ending.RUNNING, sessions=(*run.sessions[:number], now))
    return Started(id=run.id, plan=run.plan, run=begun), Ended(run=run)


class FullDisk:
    def write(self, _: bytes) -> None: ...

    def flush(self) -> None:
        raise OSError(28, "No space left on device")

    close = flush


def test_a_training_session_is_told_as_it_goes_on(tmp_path: Path, started: SenderStarts) -> None:
    run, said = training(), list[str]()
    (tmp_path / "best.safetensors").write_bytes(b"weights")
    write_request(tmp_path, Request(id=run.id, plan=run.plan, goal=run.goal, paths={run.plan.workload: "/mine/net.py"}))
    listen = (tracked := Tracking(TARGETS, say=said.append)).listener(tmp_path)
    begins, ends = session(run)
    listen(begins)
    (queue,) = queues()
    assert (started.queues, queue.is_written(), queue.read()[0]) == ([[run.id]], True, [])
    listen(TrainingProgress(phase="train", at_s=1.0, setting=run.setting))
    listen(TrainingProgress(phase="train", at_s=11.0, epoch=3, step=6, losses=run.epochs[2].losses))
    listen(TrainingProgress(phase="train", at_s=20.0, epoch=3, step=6, ended=run.epochs[2]))
    # A resumed training is told from its first step on.
    losses = [loss for epoch in run.epochs for loss in epoch.losses]
    assert points(queue, "train/loss") == list(enumerate(losses, start=1))
    listen(ends)
    assert not queue.is_written()
    events = queue.read()[0]
    assert isinstance(events[0], Begin)
    assert points(queue, "epoch/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    rows = [event for event in events if isinstance(event, MetricRow)]
    assert {row.at_ms for row in rows if row.x == 6 and row.axis is MetricAxis.STEP} == {milliseconds(LATER) + 11_000}
    assert len([row for row in rows if row.axis is MetricAxis.SECONDS]) == 60
    (model,) = [event for event in events if isinstance(event, AttachedModel)]
    assert (model.source, queue.file(model.name).read_bytes()) == ("/mine/net.py", b"weights")
    assert events[-1] == End(at_ms=milliseconds(LATER) + 29_500, status=EndStatus.FINISHED)
    assert (tracked.finish(), said) == ([], ["a note"])


def test_a_training_that_finds_no_device_is_no_run(tmp_path: Path) -> None:
    run, there = training(), FakeTracker()
    tracked = Tracking(TARGETS)
    listen = tracked.listener(tmp_path)
    begins, _ = session(run)
    listen(begins)
    (queue,) = queues()
    failure = Failed(kind=FailureKind.UNSUPPORTED, message="no such device")
    listen(Ended(run=msgspec.structs.replace(run, ending=Ending.FAILED, failure=failure)))
    assert Deliverer(queue, TO.key, there.service).run(follow=True)
    assert there.runs == {}


def test_cells_are_sent_when_the_last_one_is_measured(started: SenderStarts) -> None:
    with Tracking(TARGETS) as tracked:
        listen = tracked.listener()
        for number in (1, 2):
            listen(Started(id="sweep00001", plan=samples.plan(), cell=number))
            listen(Ended(run=samples.record(id=f"cell00000{number}")))
        assert started.queues == []
    assert started.queues == [["cell000001", "cell000002"]]
    assert {type(queue.read()[0][-1]) for queue in queues()} == {End}


def test_a_disk_that_is_full_ends_the_tracking_and_not_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    warned: list[str] = []
    tracked = Tracking(TARGETS, warn=warned.append)
    listen = tracked.listener(tmp_path)
    begins, ends = session(training())
    listen(begins)
    (queue,) = queues()

    assert tracked._writer is not None
    tracked._writer._events.close()
    monkeypatch.setattr(tracked._writer, "_events", FullDisk())
    listen(TrainingProgress(phase="train", at_s=1.0, setting=training().setting))
    assert not queue.is_written(), "its sender would wait for more"
    listen(ends)
    assert warned == []
    listen = tracked.listener(tmp_path)
    assert warned == ["metalmark: tracking stopped, the run goes on: OSError: [Errno 28] No space left on device"]
    listen(begins)
    assert [queue.is_written() for queue in queues()] == [False, True], "the next training is not tracked"
    tracked.finish()
    assert len(warned) == 1


def test_a_queue_of_the_version_before_is_listed_and_sent(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "fixtures" / "0.1.0" / "track", tmp_path / "track")
    (entry,) = waiting()
    assert (entry.run, entry.what, entry.place, entry.events) == ("run0000001", "a run", "http://127.0.0.1:1", 7)
    assert (entry.sent, entry.tries, entry.state, entry.why) == (2, 1, "waiting", "ConnectionError: gone")
    (queue,) = matching_queues(["run0"])
    there = FakeTracker()
    assert Deliverer(queue, TO.key, there.service).run(follow=False)
    assert there.points == [("loss", 1, 0.5), ("bad", 1, None), ("s", 0.5, 1.0)]
    assert (there.files, there.known, there.statuses) == (["{}", "3: w"], {"p": 1}, ["killed"])
    begin = queue.read()[0][0]
    assert isinstance(begin, Begin)
    assert (begin.group, begin.params) == ("sweep00001", {"rate": 0.1, "n": 3, "on": True, "w": "x"})
    assert waiting() == []


def test_a_watched_loop_writes_its_queue(monkeypatch: pytest.MonkeyPatch, started: SenderStarts) -> None:
    monkeypatch.setattr(destination, "find_spec", lambda _: True)
    monkeypatch.setattr("metalmark.kit.ledger.EVERY_S", 0.0)
    with mm.run("mine", track=f"mlflow={TO.place}", params={"rate": 0.1}, hz=None) as run:
        (queue,) = queues()
        assert (started.queues, queue.is_written()) == ([[run.id]], True)
        for number in run.watch([1, 2, 3]):
            run.log(loss=1 / number, wild=float("inf"))
            assert len(points(queue, "loss")) == number, "a kill -9 would lose it"
    events = queue.read()[0]
    begin, end = events[0], events[-1]
    assert isinstance(begin, Begin)
    assert (begin.id, begin.name, begin.kind, begin.params) == (run.id, f"mine {run.id}", "run", {"rate": 0.1})
    assert points(queue, "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert points(queue, "wild") == [(number, None) for number in (1, 2, 3)]
    rows = [event for event in events if isinstance(event, MetricRow)]
    assert [row.at_ms for row in rows] == sorted(row.at_ms for row in rows)
    assert rows[-1].values.keys() == {"input_wait/train_share", "total/elapsed_s"}
    assert isinstance(end, End)
    assert (end.status, queue.is_written()) == (EndStatus.FINISHED, False)
    assert decode(queue.file("run.json").read_bytes()) == run.result


def test_a_loop_from_the_store(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "find_spec", lambda _: True)
    run = WatchedRun(
        id="watched001", name="mine", started_at=BEGAN, elapsed_s=3.0, ended=WatchEnding.FAILED, error="it broke",
        params={"rate": 0.1}, machine=samples.MACHINE, software=Software(metalmark="0.1.0", python="3.11"),
        curves=(Curve(name="loss", steps=(1, 2), at_s=(1.0, 2.0), values=(0.5, None)),), telemetry=Telemetry(hz=None),
    )  # fmt: skip
    with Store(tmp_path / "store.sqlite3") as store:
        store.add(run)
    push_runs(["mine", "watched001"], to=f"mlflow={TO.place}", progress=False)
    (queue,) = queues()
    assert points(queue, "loss") == [(1, 0.5), (2, None)]
    (known,) = [event for event in queue.read()[0] if isinstance(event, Known)]
    assert (known.tags["ending"], known.tags["failure"]) == ("failed", "it broke")
    assert queue.read()[0][-1] == End(at_ms=milliseconds(BEGAN) + 3000, status=EndStatus.FAILED)
    listed = cli("track", "list")
    assert listed.returncode == 0
    assert "mine" in listed.stdout
    assert "waiting" in listed.stdout
    assert cli("track", "delete", "watched001").returncode == 2, "it did not ask"
    assert cli("track", "delete", "watched001", "--yes").returncode == 0
    assert "Nothing waits" in cli("track", "list").stderr


def sent(run: str, *, where: str = "", trouble: str = "", goes_on: bool = False) -> launch.SendOutcome:
    delivery = Delivery(destination=TO, done=bool(where), where=where, trouble=trouble)
    return launch.SendOutcome(run=run, delivery=delivery, goes_on=goes_on)


def test_each_run_has_a_line_however_many_there_are() -> None:
    said, warned = list[str](), list[str]()
    runs = [f"run{number:07d}" for number in range(12)]
    outcomes = [sent(run, where=f"http://127.0.0.1/{run}") for run in runs]
    assert launch.report_outcomes(outcomes, said.append, warned.append)
    assert said == [f"mlflow: {run}: http://127.0.0.1/{run}" for run in runs]
    late = [*outcomes[:1], sent("late", trouble="refused"), sent("later", trouble="refused"), sent("x", goes_on=True)]
    said.clear()
    assert not launch.report_outcomes(late, said.append, warned.append)
    assert said == ["mlflow: run0000000: http://127.0.0.1/run0000000"]
    assert warned == [
        "mlflow: late, later: not sent (refused). They wait in the queue; send them later: metalmark track sync",
        "mlflow: x: still sending; `metalmark track list` shows how far it is.",
    ]


def test_one_run_needs_no_id_in_its_lines() -> None:
    said = list[str]()
    launch.report_outcomes([sent("only", where="here"), sent("only", trouble="down")], said.append, said.append)
    assert said == [
        "mlflow: here",
        "mlflow: not sent (down). It waits in the queue; send it later: metalmark track sync",
    ]


def test_a_run_whose_queue_another_process_cleared_away_has_its_line(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    gone = launch.SenderProcess(queues=[Queue(tmp_path / "tyodawerf7.1")], key=TO.key, process=ended)
    (outcome,) = launch.wait_for_senders([gone], None)
    assert outcome.delivery.done
    assert outcome.text("tyodawerf7") == "mlflow: tyodawerf7: sent."
