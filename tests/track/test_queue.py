"""The queue: what a kill -9 leaves is readable, locks tell who is alive, what is sent is cleared away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metalmark.errors import FormatError, StoreError
from metalmark.track.destination import Destination
from metalmark.track.queue import (
    DESTINATIONS,
    EVENTS,
    AttachedFile,
    Begin,
    Delivery,
    End,
    EndStatus,
    MetricAxis,
    MetricRow,
    Queue,
    QueueWriter,
    clear_sent,
    queue_root,
    queues,
)
from metalmark.track.sender import Deliverer
from metalmark.track.sender import main as sender_main
from metalmark.track.waiting import sync, waiting
from tests.track.fake import FakeTracker

TO = Destination(tracker="mlflow", place="http://127.0.0.1:1")
BEGIN = Begin(id="run0000001", name="a run", kind="run", at_ms=1)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "store.sqlite3"))


def row(number: int, value: float | None = 0.5) -> MetricRow:
    return MetricRow(axis=MetricAxis.STEP, x=number, at_ms=number, values={"loss": value})


def test_what_is_written_is_read_in_order() -> None:
    with QueueWriter("run0000001", [TO]) as writer:
        writer.append(BEGIN, row(1), row(2, None))
        events, offset = writer.queue.read()
        assert events == [BEGIN, row(1), row(2, None)]
        assert writer.queue.is_written()
        writer.append(row(3))
        assert writer.queue.read(offset)[0] == [row(3)]
        writer.end(End(at_ms=4, status=EndStatus.FINISHED))
    assert not writer.queue.is_written()
    assert isinstance(writer.queue.read()[0][-1], End)
    assert [queue.id for queue in queues()] == ["run0000001"]


KILLED = """
import os, signal
from metalmark.track.queue import QueueWriter
from tests.track.test_queue import BEGIN, TO, row
writer = QueueWriter("run0000001", [TO])
writer.append(BEGIN, *(row(number) for number in range(100)))
writer._events.write(b'{"type":"row","axis":"st')
writer._events.flush()
print(writer.queue.folder, writer.queue.is_written(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_whole_lines_and_no_lock() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder, was_written = done.stdout.split()
    queue = Queue(Path(folder))
    assert was_written == "True"
    assert not queue.is_written()
    events, offset = queue.read()
    assert events == [BEGIN, *(row(number) for number in range(100))]
    assert queue.read(offset) == ([], offset)


def test_a_damaged_line_costs_itself_alone() -> None:
    with QueueWriter("run0000001", [TO]) as writer:
        writer.append(BEGIN)
        with (writer.queue.folder / EVENTS).open("ab") as file:
            file.write(b"\x00\xff{\n")
        writer.append(row(1))
    assert writer.queue.read()[0] == [BEGIN, row(1)]


def test_a_queue_from_a_newer_metalmark_is_left_alone() -> None:
    with QueueWriter("run0000001", [TO]) as writer:
        writer.append(Begin(schema=99, id="run0000001", name="a run", kind="run", at_ms=1))
    with pytest.raises(FormatError, match=r"schema 99; this Metalmark reads up to"):
        writer.queue.read()


def test_one_sends_at_a_time() -> None:
    with QueueWriter("run0000001", [TO]) as writer, writer.queue.sending(TO.key) as first:
        assert first
        assert writer.queue.is_sent(TO.key)
        with writer.queue.sending(TO.key) as second:
            assert not second
    assert not writer.queue.is_sent(TO.key)


def test_every_session_has_a_queue_of_its_own_and_only_sent_ones_go() -> None:
    other = Destination(tracker="wandb", place="offline")
    with QueueWriter("run0000001", [TO, other]) as first, QueueWriter("run0000001", [TO]) as second:
        assert first.queue.folder != second.queue.folder
        first.queue.keep(Delivery(destination=TO, done=True))
        first.queue.keep(Delivery(destination=other, done=True))
        clear_sent()
        assert len(queues()) == 2, "a run that still writes was cleared"
        first.close()
        clear_sent()
        assert [queue.folder for queue in queues()] == [second.queue.folder]
        second.close()
        clear_sent()
        assert len(queues()) == 1, "what is not sent was cleared"


OTHER = Destination(tracker="wandb", place="offline")
DAMAGE = {
    "empty": b"",
    "cut": b'{"destination":{"tracker":"wandb","pl',
    "zeros": bytes(300),
    "not text": b"\xff\xfe\x00",
    "nested": b"[" * 100_000,
    "another's": b'{"destination":{"tracker":"mlflow","place":"http://127.0.0.1:1"},"done":true}',
    "an integer": b'{"destination":{"tracker":"wandb","place":"offline"},"sent":' + b"9" * 400 + b',"done":true}',
}


def ended(*destinations: Destination) -> Queue:
    with QueueWriter("run0000001", destinations) as writer:
        writer.append(BEGIN, row(1))
        writer.end(End(at_ms=4, status=EndStatus.FINISHED))
    return writer.queue


@pytest.mark.parametrize("how", [*DAMAGE, "gone"])
def test_a_damaged_file_of_one_destination_keeps_what_it_has_still_to_get(how: str) -> None:
    queue = ended(TO, OTHER)
    queue.keep(Delivery(destination=TO, done=True))
    file = queue.folder / f"{OTHER.key}.json"
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(DAMAGE[how])
    clear_sent()
    assert queues(), "what is not sent was cleared"
    assert {delivery.destination: delivery.done for delivery in queue.deliveries()} == {TO: True, OTHER: False}
    tracker = FakeTracker()
    assert Deliverer(queue, OTHER.key, tracker.service).run(follow=False)
    assert tracker.points == [("loss", 1, 0.5)]
    clear_sent()
    assert not queues()


def test_a_destination_that_nothing_names_any_more_keeps_its_queue(capsys: pytest.CaptureFixture[str]) -> None:
    queue = ended(TO, OTHER)
    queue.keep(Delivery(destination=TO, done=True))
    (queue.folder / f"{OTHER.key}.json").write_bytes(b"{")
    (queue.folder / DESTINATIONS).write_bytes(b"{")
    clear_sent()
    assert queues()
    unknown, run = waiting()
    assert (unknown.tracker, unknown.state) == ("", "damaged")
    assert "destinations.json is damaged" in unknown.why
    assert (run.tracker, run.state, run.events) == ("wandb", "damaged", 3)
    assert f"{OTHER.key}.json is damaged" in run.why
    assert "metalmark runs push run0000001 --to wandb" in run.why
    assert not sync([])
    assert "metalmark track delete run0000001" in capsys.readouterr().err
    assert sender_main(OTHER.key, [str(queue.folder)], follow=False) == 1
    assert queues()


@pytest.mark.parametrize("damaged", [b"\x00\xff{\n", b"[" * 100_000 + b"\n", None])
def test_damaged_events_are_kept_when_the_rest_is_sent(damaged: bytes | None) -> None:
    queue = ended(TO)
    if damaged is None:
        (queue.folder / EVENTS).unlink()
    else:
        with (queue.folder / EVENTS).open("ab") as file:
            file.write(damaged)
    assert Deliverer(queue, TO.key, FakeTracker().service).run(follow=False)
    clear_sent()
    (run,) = waiting()
    assert run.state == "damaged"
    assert ("is gone" if damaged is None else "1 of 4 lines of events.jsonl are damaged") in run.why


def test_events_that_were_cut_short_are_kept() -> None:
    queue = ended(TO, OTHER)
    Deliverer(queue, TO.key, FakeTracker().service).run(follow=False)
    (queue.folder / EVENTS).write_bytes(b"")
    Deliverer(queue, OTHER.key, FakeTracker().service).run(follow=False)
    clear_sent()
    assert [run.why for run in waiting()] == ["events.jsonl has 0 lines, of 3 that it had"] * 2


def test_one_queue_that_can_not_be_read_hides_no_other() -> None:
    newer, good = ended(TO), ended(TO)
    (newer.folder / EVENTS).write_bytes(b'{"type":"begin","schema":99,"id":"a","name":"a","kind":"run","at_ms":1}\n')
    clear_sent()
    assert sorted(run.state for run in waiting()) == ["damaged", "waiting"]
    assert good.folder in [queue.folder for queue in queues()]


def test_a_delivery_by_a_newer_metalmark_is_not_written_over() -> None:
    queue = ended(TO)
    queue.keep(Delivery(schema=99, destination=TO, done=True))
    clear_sent()
    assert queues()
    with pytest.raises(FormatError, match="reads up to"):
        queue.delivery(TO.key)


def test_queues_come_in_the_order_of_what_they_tell(tmp_path: Path) -> None:
    writers = [QueueWriter(f"run000000{number}", [TO]) for number in (3, 1, 2)]
    for number, writer in enumerate(writers):
        writer.append(BEGIN)
        writer.close()
        os.utime(writer.queue.folder / EVENTS, (number, number))
    writers[0].queue.keep(Delivery(destination=TO, trouble="a later try"))
    assert [queue.folder for queue in queues()] == [writer.queue.folder for writer in writers]
    assert queue_root() == tmp_path / "track"


def test_files_stay_as_they_were(tmp_path: Path) -> None:
    checkpoint = tmp_path / "best.safetensors"
    checkpoint.write_bytes(b"one")
    with QueueWriter("run0000001", [TO]) as writer:
        writer.attach(AttachedFile(name="best.safetensors"), checkpoint)
        newer = tmp_path / "newer"
        newer.write_bytes(b"two")
        newer.replace(checkpoint)
        assert writer.queue.file("best.safetensors").read_bytes() == b"one"
    assert os.stat(queue_root()).st_mode & 0o077 == 0


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "track").write_text("a file")
    with pytest.raises(StoreError, match="can't be written"):
        QueueWriter("run0000001", [TO])
