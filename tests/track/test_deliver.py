"""Delivering: everything arrives once, whenever the tracker or the run fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.track import sender
from metalmark.track.destination import Destination, fit_name, fit_text
from metalmark.track.queue import (
    AttachedFile,
    AttachedModel,
    Begin,
    End,
    EndStatus,
    Known,
    MetricAxis,
    MetricRow,
    QueueWriter,
)
from metalmark.track.sender import FEW_ROWS, SHARE, Deliverer, reason
from tests.track.fake import FakeService, FakeTracker

TO = Destination(tracker="mlflow", place="http://127.0.0.1:1")
PLAN = Plan(workload="x", params={}, mode=Mode.TRAINING, framework="torch", device=Device(kind=DeviceKind.CPU))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "store.sqlite3"))


def write(writer: QueueWriter, first: int, last: int) -> None:
    writer.append(*(MetricRow(axis=MetricAxis.STEP, x=x, at_ms=x, values={"loss": 1 / x}) for x in range(first, last)))


def begun(identifier: str = "run0000001") -> QueueWriter:
    writer = QueueWriter(identifier, [TO])
    writer.append(Begin(id=identifier, name="a run", kind="run", at_ms=1), Known(params={"rate": 0.1}))
    write(writer, 1, 11)
    return writer


def end(writer: QueueWriter) -> None:
    writer.end(End(at_ms=9, status=EndStatus.FINISHED))


def test_everything_arrives_in_order() -> None:
    there = FakeTracker()
    with begun() as writer:
        writer.attach(AttachedFile(name="record.json"), b"{}")
        writer.attach(AttachedModel(name="best.safetensors", plan=PLAN, epoch=3, classes=10), b"weights")
        end(writer)
    assert Deliverer(writer.queue, TO.key, there.service).run(follow=False)
    assert there.points == [("loss", x, 1 / x) for x in range(1, 11)]
    assert there.files == ["{}", "3: weights"]
    assert there.known == {"rate": 0.1}
    assert there.statuses == ["finished"]
    (delivery,) = writer.queue.deliveries()
    assert (delivery.done, delivery.sent, delivery.where, delivery.trouble) == (True, 15, "a run", "")
    assert Deliverer(writer.queue, TO.key, there.service).run(follow=False)
    assert there.calls == 1, "sent again"


def test_a_try_that_was_cut_off_is_completed_and_nothing_is_there_twice() -> None:
    there = FakeTracker(fails_at=[1, 2])
    with begun() as writer:
        end(writer)
    for tries in (1, 2):
        assert not Deliverer(writer.queue, TO.key, there.service).run(follow=False)
        (delivery,) = writer.queue.deliveries()
        assert (delivery.done, delivery.tries) == (False, tries)
        assert delivery.trouble == "ConnectionResetError: cut off in the middle"
    assert Deliverer(writer.queue, TO.key, there.service).run(follow=False)
    assert sorted(x for _, x, _ in there.points) == list(range(1, 11))
    assert len(there.runs) == 1
    assert there.closed == 3


def steps(*actions: Callable[[], object]) -> Callable[[float], None]:
    """A clock that does the next thing instead of waiting."""
    rest = iter(actions)
    return lambda _: next(rest, lambda: None)() and None


def test_it_reads_along_while_the_run_writes() -> None:
    there = FakeTracker()
    with begun() as writer:
        sleep = steps(lambda: write(writer, 11, 21), lambda: None, lambda: end(writer))
        assert Deliverer(writer.queue, TO.key, there.service, sleep=sleep).run(follow=True)
    assert [x for _, x, _ in there.points] == list(range(1, 21))
    assert there.calls == 2


def test_rows_have_a_small_share_of_a_core_while_the_run_is_alive_and_all_of_it_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy_s, rows = 0.02, FakeService.rows
    there, rests = FakeTracker(), list[float]()

    def slow_rows(service: FakeService, few: Sequence[MetricRow]) -> None:
        time.sleep(busy_s)
        rows(service, few)

    monkeypatch.setattr(FakeService, "rows", slow_rows)
    with begun() as writer:
        write(writer, 11, 1 + FEW_ROWS * 10)

        def rest(pause_s: float) -> None:
            rests.append(pause_s)
            if there.calls == 3:
                end(writer)

        assert Deliverer(writer.queue, TO.key, there.service, sleep=rest).run(follow=True)
    assert [x for _, x, _ in there.points] == list(range(1, 1 + FEW_ROWS * 10))
    assert sum(rests) >= 2 * busy_s * (1 / SHARE - 1), "after the first two"
    assert there.calls == 10


def test_it_tries_again_as_long_as_the_run_is_alive_and_once_after() -> None:
    there = FakeTracker(down=2)
    with begun() as writer:
        sleep = steps(*[lambda: None] * 8, lambda: end(writer))
        assert Deliverer(writer.queue, TO.key, there.service, sleep=sleep).run(follow=True)
    assert writer.queue.deliveries()[0].tries == 3
    assert len(there.points) == 10
    never = FakeTracker(down=1000)
    with begun("run0000002") as writer:
        sleep = steps(lambda: None, lambda: end(writer))
        assert not Deliverer(writer.queue, TO.key, never.service, sleep=sleep).run(follow=True)
    assert writer.queue.deliveries()[0].trouble == "ConnectionRefusedError: nobody there"
    assert writer.queue.deliveries()[0].tries == 2


def test_a_run_that_was_killed_is_sent_as_far_as_it_came() -> None:
    there = FakeTracker()
    with begun() as writer:
        writer.close()
        assert Deliverer(writer.queue, TO.key, there.service).run(follow=True)
    assert len(there.points) == 10
    assert there.statuses == ["killed"]


def test_a_run_that_never_began_is_no_run() -> None:
    there = FakeTracker()
    with QueueWriter("run0000001", [TO]) as writer:
        writer.close()
        assert Deliverer(writer.queue, TO.key, there.service).run(follow=True)
    assert (there.runs, there.statuses) == ({}, [])


def test_a_run_that_is_alive_is_sent_as_far_as_it_is_and_stays_queued() -> None:
    there = FakeTracker()
    with begun() as writer:
        assert not Deliverer(writer.queue, TO.key, there.service).run(follow=False)
        assert len(there.points) == 10
        assert there.statuses == []
        assert not writer.queue.deliveries()[0].done


def test_the_sender_gives_up_on_a_tracker_and_not_on_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    there = FakeTracker(fails_at=[2])
    monkeypatch.setattr(sender, "make", there.service)
    writers = [begun(f"run000000{number}") for number in range(4)]
    for writer in writers:
        end(writer)
    folders = [str(writer.queue.folder) for writer in writers]
    assert sender.main(TO.key, folders, follow=False) == 1
    assert [writer.queue.deliveries()[0].done for writer in writers] == [True, False, True, True]
    assert sender.main(TO.key, folders, follow=False) == 0
    there.down = 1000
    more = [begun(f"run000001{number}") for number in range(4)]
    for writer in more:
        end(writer)
    assert sender.main(TO.key, [str(writer.queue.folder) for writer in more], follow=False) == 1
    assert [writer.queue.deliveries()[0].tries for writer in more] == [1, 1, 0, 0]


def test_a_tracker_that_hangs_in_its_own_library_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    there, free, codes = FakeTracker(), threading.Event(), []
    with begun() as writer:
        end(writer)
    monkeypatch.setattr(FakeService, "end", lambda *_: free.wait(30))
    deliverer = Deliverer(writer.queue, TO.key, there.service)

    def leave(code: int) -> None:
        codes.append((code, writer.queue.deliveries()[0].trouble))
        free.set()

    watch = threading.Thread(target=deliverer.end_when_silent, args=(0.2, leave))
    watch.start()
    deliverer.run(follow=False)
    watch.join()
    assert codes == [(1, "no answer for 0.2 s")]


def test_names_that_no_tracker_would_take() -> None:
    assert fit_name("train/loss") == "train/loss"
    for hostile in ("../../etc/passwd", "/", "", "a\x00b\n", "π" * 300, "__x__", "loss%", "loss$", " ", "a//b", "."):
        fitting = fit_name(hostile)
        assert fitting != hostile
        assert 0 < len(fitting) <= 250
        assert not fitting.startswith(("/", "_", "."))
        assert ".." not in fitting.split("/")
        assert fitting.isascii()
        assert fit_name(fitting) == fitting
    assert fit_name("loss%") != fit_name("loss$")
    assert len(fit_text("x" * 999, 50)) == 50
    assert fit_text("a\x1b[0mb", 50) == "a[0mb"


def test_a_reason_is_short_and_names_no_password() -> None:
    error = RuntimeError("x" * 5000)
    assert len(reason(error)) == 300
    error.__cause__ = ConnectionError("https://ann:s3cret@there\n is gone")
    assert reason(error) == "ConnectionError: https://there is gone"
