"""mm.run: waiting, curves, telemetry, trackers and what is kept, on loops that end in every way."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metalmark as mm
from metalmark.errors import FormatError, NotInstalledError, UsageError
from metalmark.kit import running
from metalmark.kit.frameworks import Later
from metalmark.kit.ledger import Ledger
from metalmark.kit.running import split_trackers
from metalmark.model.codec import decode
from metalmark.model.watch import WatchedRun, WatchEnding
from metalmark.store.selection import select
from metalmark.store.store import Store
from metalmark.watch.pace import MOST_STRETCHES, LoopPace
from tests.kit.conftest import Script
from tests.simulated.conftest import Simulated


class Notebook:
    """A tracker that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, params: Mapping[str, Any]) -> None:
        self.told.append(("start", dict(params), threading.current_thread() is threading.main_thread()))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.told.append((step, dict(metrics)))

    def artifact(self, path: Path) -> None:
        self.told.append(("artifact", json.loads(path.read_text())["name"]))

    def finish(self) -> None:
        self.told.append("finish")


def kept(path: Path, query: str | None = None) -> list[WatchedRun]:
    """The watched runs of a store, the oldest first: all of them, or those that a query means."""
    with Store(path, readonly=True) as store:
        rows = select(query, store, files=False).rows if query else store.rows()
        runs = store.load(rows)
    assert all(isinstance(run, WatchedRun) for run in runs)
    return sorted((run for run in runs if isinstance(run, WatchedRun)), key=lambda run: run.started_at)


def test_a_run_is_kept_with_all_it_saw(store_file: Path) -> None:
    tracker = Notebook()
    with mm.run("mine", track=tracker, params={"rate": 0.1}, hz=20, store=store_file) as run:
        for _ in range(2):
            for number in run.watch([1, 2, 3]):
                run.log(loss=1 / number)
                time.sleep(0.05)
        for _ in run.watch([1], "validation"):
            pass
        run.log(accuracy=0.5)
    result = run.result
    assert result is not None
    assert kept(store_file) == kept(store_file, "mine") == [result]
    with pytest.raises(UsageError, match="no run, sweep or name 'other'"):
        kept(store_file, "other")
    loss, accuracy = result.curves
    assert loss.steps == (1, 2, 3, 4, 5, 6)
    assert loss.values == (1, 0.5, 1 / 3) * 2
    assert accuracy.steps == (6,)
    assert [(each.loop, each.steps) for each in result.passes] == [("train", 3), ("train", 3), ("validation", 1)]
    assert [stretch.steps for stretch in result.stretches["train"]] == [1] * 6
    assert sum(stretch.elapsed_s for stretch in result.stretches["train"]) >= 6 * 0.05
    assert "process_memory" in {series.name for series in result.telemetry.series}
    assert (result.ended, result.params, result.notes) == (WatchEnding.COMPLETED, {"rate": 0.1}, ())
    assert tracker.told[0] == ("start", {"rate": 0.1}, False)
    assert tracker.told[1:3] == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]
    assert tracker.told[-3:] == [(6, {"accuracy": 0.5}), ("artifact", "mine"), "finish"]
    assert "train 6 steps" in str(run)


def test_waiting_is_the_loaders_time(store_file: Path) -> None:
    def slow() -> Any:
        for number in range(4):
            time.sleep(0.03)
            yield number

    with mm.run("slow", hz=None, store=store_file) as run:
        for _ in run.watch(slow()):
            time.sleep(0.01)
    assert run.result is not None
    (once,) = run.result.passes
    assert once.waited_s >= 4 * 0.03
    assert once.elapsed_s >= 4 * 0.04
    assert once.first_wait_s >= 0.03
    share = run.result.input_wait_share()
    assert share is not None
    assert once.waited_s / once.elapsed_s == pytest.approx(share)
    assert run.result.input_wait_share("validation") is None


def test_loops_that_break_raise_or_are_stopped(store_file: Path) -> None:
    with mm.run("broken off", hz=None, store=store_file) as run:
        for number in run.watch([1, 2, 3]):
            if number == 2:
                break
    assert run.result is not None
    assert run.result.passes[0].steps == 2

    def fails(run: running.RunRecorder) -> None:
        for _ in run.watch([1, 2]):
            run.log(loss=1.0)
            raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError), mm.run("failed", hz=None, store=store_file) as run:
        fails(run)
    with pytest.raises(KeyboardInterrupt), mm.run("stopped", hz=None, store=store_file):
        raise KeyboardInterrupt
    _, failed, stopped = kept(store_file)
    assert failed.ended is WatchEnding.FAILED
    assert failed.error == "ZeroDivisionError: division by zero"
    assert failed.curves[0].values == (1.0,)
    assert stopped.ended is WatchEnding.INTERRUPTED


def test_numbers_that_are_not_finite(store_file: Path) -> None:
    with mm.run("diverged", hz=None, store=store_file) as run:
        for value in run.watch([1.0, math.inf, math.nan]):
            run.log(loss=value)
    assert run.result is not None
    assert run.result.curves[0].values == (1.0, None, None)
    assert run.result.notes == ("loss was not finite from step 2 on",)
    assert kept(store_file) == [run.result]


def test_what_log_refuses(store_file: Path) -> None:
    with mm.run("wrong", hz=None, store=store_file) as run:
        with pytest.raises(UsageError, match="takes a number"):
            run.log(loss="0.5")
        run.log(step=7, loss=0.5)
    with pytest.raises(UsageError, match="outside"):
        run.log(loss=1.0)
    with pytest.raises(UsageError, match="outside"):
        run.watch([1])
    with pytest.raises(UsageError, match="used already"), run:
        pass
    with pytest.raises(UsageError, match="hz"):
        mm.run("fast", hz=1000)
    assert run.result is not None
    assert run.result.curves[0].steps == (7,)


def test_log_takes_a_dictionary(store_file: Path) -> None:
    given = {"train/loss": np.float32(0.5), "step": 3}
    with mm.run("dictionary", hz=None, store=store_file) as run:
        run.log(given, rate=0.1)
        run.log({"train/loss": 0.25}, step=7)
        run.log(8, rate=0.2)
        with pytest.raises(UsageError, match="0 is not a name"):
            run.log({0: 1.0})  # type: ignore[dict-item]
        with pytest.raises(UsageError, match=r"log\(inner=...\) takes a number"):
            run.log({"inner": {"loss": 1.0}})
    assert given == {"train/loss": 0.5, "step": 3}
    assert run.result is not None
    curves = {curve.name: (curve.steps, curve.values) for curve in run.result.curves}
    assert curves == {"train/loss": ((1, 7), (0.5, 0.25)), "step": ((1,), (3.0,)), "rate": ((1, 8), (0.1, 0.2))}


@pytest.mark.parametrize("where", ["start", "log", "artifact", "finish"])
def test_a_tracker_that_raises_costs_only_its_tracking(store_file: Path, where: str) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionError("the server is down")

    broken, whole = Notebook(), Notebook()
    setattr(broken, where, refuse)
    with (
        pytest.warns(UserWarning, match="server is down"),
        mm.run("tracked", track=[broken, whole], hz=None, store=store_file) as run,
    ):
        run.log(loss=1.0)
    assert run.result is not None
    assert run.result.notes == ("tracker Notebook stopped: ConnectionError: the server is down",)
    assert run.result.curves[0].values == (1.0,)
    assert whole.told[-1] == "finish"


def test_a_tracker_that_hangs(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE_S", 0.05)
    free = threading.Event()
    hanging = Notebook()
    hanging.log = lambda step, metrics: free.wait(30)  # type: ignore[method-assign,assignment,misc]  # noqa: ARG005
    with (
        pytest.warns(UserWarning, match="had not taken everything"),
        mm.run("hanging", track=hanging, hz=None, store=store_file) as run,
    ):
        run.log(loss=1.0)
    free.set()
    assert run.result is not None
    assert run.result.ended is WatchEnding.COMPLETED


def test_trackers_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no tracker 'excel'"):
        mm.run("x", track="excel")
    with pytest.raises(UsageError, match="A dict is not a tracker"):
        split_trackers({})  # type: ignore[arg-type]
    monkeypatch.setattr("metalmark.track.destination.find_spec", lambda _: None)
    with pytest.raises(NotInstalledError, match="package mlflow"):
        mm.run("x", track="mlflow")


def test_a_store_that_fails_keeps_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.warns(UserWarning, match="is a folder"), mm.run("lost", hz=None, store=tmp_path) as run:
        run.log(loss=1.0)
    assert run.result is not None
    assert decode((tmp_path / f"metalmark-unsaved-{run.id}.json").read_bytes()) == run.result


def test_a_store_from_before_and_one_from_later(store_file: Path) -> None:
    with Store(store_file):
        pass
    assert kept(store_file) == []
    with mm.run("new", hz=None, store=store_file):
        pass
    assert len(kept(store_file)) == 1
    with pytest.raises(FormatError, match="schema 9"):
        decode(b'{"kind": "watch", "schema": 9}')


def test_params_are_kept_as_they_can_be_read_again(store_file: Path) -> None:
    given = {"rate": np.float32(0.5), "size": np.int64(8), "on": True, "sizes": [1, 2], "no": None, "far": math.inf}
    with mm.run("params", params={**given, "data": Path("/home/somebody/data.csv")}, hz=None, store=store_file) as run:
        pass
    expected = {"rate": 0.5, "size": 8, "on": True, "sizes": "[1, 2]", "no": "None", "far": "inf", "data": "data.csv"}
    assert [each.params for each in kept(store_file)] == [expected]
    assert run.result is not None
    assert type(run.result.params["on"]) is bool


def test_pace_stays_small_and_exact() -> None:
    pace = LoopPace()
    count = 3 * MOST_STRETCHES + 5
    for number in range(count):
        pace.step(number, 2.0, 0.5)
    stretches = pace.stretches()
    assert len(stretches) <= MOST_STRETCHES
    assert sum(stretch.steps for stretch in stretches) == count
    assert sum(stretch.elapsed_s for stretch in stretches) == 2.0 * count
    assert sum(stretch.waited_s for stretch in stretches) == 0.5 * count
    assert [stretch.at_s for stretch in stretches] == sorted(stretch.at_s for stretch in stretches)


class Slow(Later):
    """A number that is ready when it is told to be."""

    def __init__(self, number: float) -> None:
        self.number, self.is_ready = number, False

    def ready(self) -> bool:
        return self.is_ready

    def value(self) -> float:
        return self.number


def test_the_ledger_waits_for_nobody_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    ledger = Ledger(lambda rows: told.extend((step, dict(metrics)) for step, _, metrics in rows))
    monkeypatch.setattr("metalmark.kit.ledger._keeper", lambda _: lambda value: value)
    monkeypatch.setattr("metalmark.kit.ledger.EVERY_S", 0.0)
    first = Slow(1.0)
    ledger.add(1, {"loss": first})
    ledger.add(2, {"loss": 2.0})
    assert told == []
    first.is_ready = True
    ledger.add(3, {"loss": Slow(3.0)})
    assert told == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]
    ledger.close()
    assert told[-1] == (3, {"loss": 3.0})


SILENT = """
import torch, metalmark as mm
from metalmark.kit import on_torch
from torch.utils._python_dispatch import TorchDispatchMode

on_torch.FOLD = 4
seen = []

class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        if "_local_scalar_dense" in str(function) or (
            isinstance(made, torch.Tensor) and made.is_cpu
            and any(isinstance(each, torch.Tensor) and not each.is_cpu for each in arguments)
        ):
            seen.append(str(function))
        return made

def forbidden(*_):
    seen.append("synchronize")

device = mm.device()
weight = torch.ones(3, device=device, requires_grad=True)
total = torch.zeros((), device=device)
wait, torch.accelerator.synchronize = torch.accelerator.synchronize, forbidden
with mm.run("silent", hz=None) as run:
    with Watch():
        for number in run.watch(range(1, 11)):
            loss = (weight * number).sum()
            with torch.no_grad():
                total += loss
            run.log(loss=loss, total=total)
    assert seen == [], seen
    with Watch():
        loss.item()
    assert seen, "the watch sees nothing"
assert run.result.curve("loss").values == tuple(3.0 * n for n in range(1, 11))
assert run.result.curve("total").values[-1] == 3.0 * 55
assert run.result.curve("total").values[0] == 3.0
print("done")
"""


def test_nothing_is_read_from_the_device_in_the_loop(script: Script, simulated: Simulated) -> None:
    done = script(SILENT, needs="torch", **simulated())
    assert done.stdout == "done\n", done.stderr


CUDA = """
import torch, metalmark as mm
if not torch.cuda.is_available():
    raise SystemExit("PyTorch has no CUDA device here")
weight = torch.ones(1000, 1000, device="cuda", requires_grad=True)
total = torch.zeros((), device="cuda")
with mm.run("silent", hz=None) as run:
    run.log(step=0, loss=total)  # page-locked memory is taken here
    for number in run.watch(range(1, 3001)):
        if number == 2:
            torch.cuda.set_sync_debug_mode("error")
        loss = (weight @ weight).mean() * number
        with torch.no_grad():
            total += number
        run.log(loss=loss, total=total)
    torch.cuda.set_sync_debug_mode("default")
assert run.result.notes == (), run.result.notes
assert run.result.curve("loss").values[1:] == tuple(1000.0 * n for n in range(1, 3001))
assert run.result.curve("total").values == tuple(n * (n + 1) / 2 for n in range(1, 3001))
numbers = [torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor(2**40), torch.tensor(True), torch.ones(1, 1)]
with mm.run("kinds", hz=None) as kinds:
    for number in kinds.watch(numbers):
        kinds.log(value=number.cuda())
assert kinds.result.curve("value").values == (1.5, 2.0**40, 1.0, 1.0), kinds.result.curves
batch = mm.to_device({"x": torch.ones(3, dtype=torch.float64).pin_memory()}, mm.device())
assert mm.device() == "cuda" and batch["x"].dtype == torch.float64, mm.device().why
assert mm.to_numpy(batch["x"].bfloat16()).tolist() == [1, 1, 1]
timing = mm.measure(lambda: weight @ weight, seconds=0.3)
print(timing, run)
"""


def test_cuda_is_never_waited_for(script: Script) -> None:
    done = script(CUDA, needs="torch")
    if done.stderr == "PyTorch has no CUDA device here\n":
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
