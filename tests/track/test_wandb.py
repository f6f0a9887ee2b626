"""W&B online, by a library in its place: a run that is there already is continued, and hears nothing twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metalmark.track.destination import Destination
from metalmark.track.queue import Begin, End, EndStatus, MetricAxis, MetricRow, QueueWriter

pytest.importorskip("wandb")
pytestmark = pytest.mark.filterwarnings("ignore")  # of a library that is not ours


class Cloud:
    """What W&B's servers keep of one run, and its library's calls as we use them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.codes: list[int] = []
        self.breaks_at = 0

    def init(self, **asked: Any) -> Any:
        resumed = bool(self.asked)
        self.asked.append(asked)
        config = SimpleNamespace(update=lambda values, **_: self.config.update(values))
        return SimpleNamespace(
            id=asked["id"], path="e/p/id", url="https://cloud/id", dir="x", resumed=resumed, config=config,
            define_metric=lambda *_, **__: None, log=self.log, finish=lambda exit_code: self.codes.append(exit_code),
        )  # fmt: skip

    def log(self, row: dict[str, Any]) -> None:
        if self.breaks_at and len(self.rows) == self.breaks_at:
            self.breaks_at = 0
            raise ConnectionError("cut off")
        self.rows.append(row)

    def api(self) -> Any:
        return SimpleNamespace(run=lambda _: SimpleNamespace(scan_history=lambda: list(self.rows)))


def test_a_run_that_is_there_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metalmark.track import wandb as ours
    from metalmark.track.sender import Deliverer

    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "store.sqlite3"))
    cloud = Cloud()
    cloud.breaks_at = 3
    monkeypatch.setattr(ours.wandb, "init", cloud.init)
    monkeypatch.setattr(ours.wandb, "Api", cloud.api)
    to = Destination(tracker="wandb", place="online", project="p", entity="e", folder=str(tmp_path))
    expected: list[dict[str, Any]] = []
    with QueueWriter("run0000001", [to]) as writer:
        writer.append(Begin(id="run0000001", name="a run", kind="run", at_ms=1, params={"rate": 0.1}))
        for x in range(1, 6):
            # A number of the user's own may be called as an axis is.
            writer.append(MetricRow(axis=MetricAxis.STEP, x=x, at_ms=x, values={"loss": 1 / x, "epoch": 7, "step": 99}))
            writer.append(MetricRow(axis=MetricAxis.EPOCH, x=x, at_ms=x, values={"epoch/accuracy": x / 10}))
            expected += [{"loss": 1 / x, "epoch": 7, "step": x}, {"epoch/accuracy": x / 10, "epoch": x}]
        writer.end(End(at_ms=9, status=EndStatus.FINISHED))
    assert not Deliverer(writer.queue, to.key, ours.WandbService).run(follow=False)
    assert cloud.rows == expected[:3]
    assert Deliverer(writer.queue, to.key, ours.WandbService).run(follow=False)
    assert cloud.rows == expected
    assert [(asked["mode"], asked["resume"], asked["id"], asked["project"]) for asked in cloud.asked] == [
        ("online", "allow", "run0000001", "p")
    ] * 2
    assert cloud.codes == [1, 0]
    assert cloud.config == {"rate": 0.1}
    (delivery,) = writer.queue.deliveries()
    assert delivery.where == "https://cloud/id"
