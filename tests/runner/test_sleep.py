"""Sleep and an unattended machine: how long it slept, what is said of it, and what keeps a Mac awake."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from metalmark.kit import running
from metalmark.machine import awake, sleep
from metalmark.model.codec import decode, encode
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Plan, Sweep
from metalmark.model.run import Gpu, Series, Telemetry, now_utc
from metalmark.model.watch import WatchedRun
from metalmark.runner import sweeping
from metalmark.runner.flags import flags_of, flags_of_watched
from metalmark.runner.launch import run_cell
from metalmark.runner.sweeping import run_sweep
from tests.samples import MACHINE, completed, record

Plans = Callable[..., Plan]


class Clocks:
    """The clocks of both systems, of a machine that can be sent to sleep."""

    CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_UPTIME_RAW, CLOCK_MONOTONIC_RAW = range(4)

    def __init__(self, system: str) -> None:
        self._goes_on = {"darwin": (self.CLOCK_MONOTONIC, self.CLOCK_MONOTONIC_RAW), "linux": (self.CLOCK_BOOTTIME,)}[
            system
        ]
        self.running_s, self.slept_s, self.set_s = 1000.0, 50.0, 0.0

    def clock_gettime(self, clock: int) -> float:
        return self.running_s + (self.slept_s if clock in self._goes_on else 0.0)

    def time(self) -> float:
        return 1.7e9 + self.running_s + self.slept_s + self.set_s

    def monotonic(self) -> float:
        return self.running_s


@pytest.fixture(params=["darwin", "linux"])
def clocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    held = Clocks(request.param)
    monkeypatch.setattr(sleep, "time", held)
    monkeypatch.setattr(sleep, "sys", SimpleNamespace(platform=request.param))
    return held


def test_sleep_is_told_exactly(clocks: Clocks) -> None:
    watch = sleep.SleepWatch()
    clocks.running_s += 100
    assert watch.gap() == sleep.SleepGap(slept_s=0.0, wall_gap_s=0.0, elapsed_s=100.0)
    clocks.slept_s += 340
    clocks.running_s += 10
    assert watch.gap() == sleep.SleepGap(slept_s=340.0, wall_gap_s=340.0, elapsed_s=110.0)
    assert watch.gap().note == "", "the flag says it"


def test_a_clock_that_was_set_is_not_sleep(clocks: Clocks) -> None:
    watch = sleep.SleepWatch()
    clocks.running_s += 100
    clocks.set_s = 3600.0
    assert watch.gap().slept_s == 0.0
    assert "set forward by 3,600 s" in watch.gap().note
    clocks.set_s = -60.0
    clocks.slept_s += 340
    assert watch.gap().slept_s == 340.0
    assert "set back by 60 s" in watch.gap().note
    clocks.set_s = 3.0
    assert watch.gap().note == "", "network time corrects by seconds"
    clocks.running_s += 20_000
    clocks.set_s = 15.0
    assert watch.gap().note == "", "and over hours by more"


def test_this_machine_has_not_slept_just_now() -> None:
    watch = sleep.SleepWatch()
    time.sleep(0.05)
    gap = watch.gap()
    assert gap.slept_s < 1
    assert gap.elapsed_s >= 0.05


def test_a_machine_that_slept_is_flagged() -> None:
    (flag,) = flags_of(completed(), Telemetry(hz=None, slept_s=340.2), MACHINE)
    assert flag.name == "slept"
    assert flag.evidence.startswith("the machine slept for 340 s while it was measured")
    for quiet in (Telemetry(hz=None), Telemetry(hz=None, slept_s=0.4), Telemetry(hz=None, wall_gap_s=3600.0)):
        assert flags_of(completed(), quiet, MACHINE) == ()


def test_records_keep_it_and_older_ones_are_read() -> None:
    kept = record(telemetry=Telemetry(hz=5.0, slept_s=340.0, wall_gap_s=339.5))
    assert decode(encode(kept)) == kept
    plain = msgspec.to_builtins(kept)
    del plain["telemetry"]["slept_s"], plain["telemetry"]["wall_gap_s"]
    old = decode(msgspec.json.encode(plain))
    assert (old.telemetry.slept_s, old.telemetry.wall_gap_s) == (None, None)
    assert flags_of(completed(), old.telemetry, MACHINE) == ()


@contextmanager
def asleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which each look finds another 100 s of sleep, and the wall clock an hour ahead of that."""
    slept = iter(range(0, 10_000, 100))
    hours = iter(range(0, 360_000, 3700))
    clock = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.monotonic() + next(hours))
    with monkeypatch.context() as patch:
        patch.setattr(sleep, "asleep_s", lambda: float(next(slept)))
        patch.setattr(sleep, "time", clock)
        yield


def test_a_cell_knows_of_its_sleep(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    with asleep(monkeypatch):
        records = swept(fake_plan())
    (found,) = records
    assert isinstance(found.outcome, Completed)
    assert found.telemetry.slept_s == 100.0
    assert found.telemetry.wall_gap_s == pytest.approx(3700, abs=5)
    assert "slept" in {flag.name for flag in found.flags}
    assert any("set forward by 3,600 s" in note for note in found.outcome.notes)
    outcome = run_cell(fake_plan())
    assert outcome.telemetry.slept_s is not None, "also where nobody slept"
    assert outcome.note == ""


def test_a_watched_run_knows_of_its_sleep(monkeypatch: pytest.MonkeyPatch, store_file: Path) -> None:
    with asleep(monkeypatch), running.run("mine", hz=None, store=store_file) as run:
        run.log(loss=1.0)
    found = run.result
    assert isinstance(found, WatchedRun)
    assert found.telemetry.slept_s == 100.0
    assert "slept: the machine slept for 100 s" in str(run)
    assert any("set forward by 3,600 s" in note for note in found.notes)


def test_heat_and_battery_are_told_of_a_watched_run_too(store_file: Path) -> None:
    with running.run("mine", hz=None, store=store_file) as run:
        time.sleep(0.01)
    assert run.result is not None
    seen = [("on_battery", 1.0), ("thermal_warning", 1.0), ("gpu0_throttle", 1.0)]
    series = tuple(Series(name=name, unit="", source="test", at_s=(0.0,), values=(value,)) for name, value in seen)
    spoiled = replace(run.result, machine=MACHINE, telemetry=Telemetry(hz=1.0, series=series))
    assert [flag.name for flag in flags_of_watched(spoiled)] == ["throttled", "on_battery"]
    with_gpu = replace(spoiled, machine=replace(MACHINE, gpus=(Gpu(name="Apple M1"),)))
    assert "the GPU's clock was held down" in flags_of_watched(with_gpu)[0].evidence
    assert flags_of_watched(replace(spoiled, telemetry=Telemetry(hz=None))) == ()


def swept(*plans: Plan) -> list[BenchRun]:
    records: list[BenchRun] = []
    sweep = Sweep(id="sweep00001", created_at=now_utc(), plans=plans, hz=None)
    assert run_sweep(sweep, previous=[], keep=records.append)
    return records


def caffeinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Apple's tool that writes down what it was asked, and stays; where it writes to."""
    said = tmp_path / "said"
    tool = tmp_path / "caffeinate"
    tool.write_text(f'#!/bin/sh\necho "$$ $*" >> {said}\nexec sleep 600\n')
    tool.chmod(0o755)
    monkeypatch.setattr(awake, "CAFFEINATE", str(tool))
    monkeypatch.setattr(awake, "sys", SimpleNamespace(platform="darwin"))
    return said


def lines(said: Path, count: int) -> list[list[str]]:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s and (not said.exists() or said.read_text().count("\n") < count):
        time.sleep(0.01)
    return [line.split() for line in said.read_text().splitlines()]


def test_a_mac_is_kept_awake_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = caffeinate(tmp_path, monkeypatch)
    with awake.kept_awake() as note:
        assert note == ""
        ((pid, *asked),) = lines(said, 1)
        assert asked == ["-i", "-w", str(psutil.Process().pid)]
        helper = psutil.Process(int(pid))
        assert helper.is_running()
    assert not helper.is_running()


def test_it_ends_when_something_goes_wrong_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = caffeinate(tmp_path, monkeypatch)

    def fails() -> None:
        with awake.kept_awake():
            lines(said, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    ((pid, *_),) = lines(said, 1)
    assert not psutil.pid_exists(int(pid))


def test_a_tool_that_is_missing_is_a_note_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(awake, "CAFFEINATE", str(tmp_path / "nowhere"))
    monkeypatch.setattr(awake, "sys", SimpleNamespace(platform="darwin"))
    with awake.kept_awake() as note:
        assert note == "Nothing keeps this Mac awake: caffeinate could not be started (No such file or directory)."


def test_on_linux_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(awake, "start_caffeinate", lambda: pytest.fail("it was started"))
    with awake.kept_awake() as note:
        assert note == ""


def test_a_sweep_has_one_around_all_its_cells(
    fake_plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = caffeinate(tmp_path, monkeypatch)
    records = swept(fake_plan(), fake_plan(batch_size=8))
    assert len(records) == 2
    assert len(lines(said, 1)) == 1, "one, not one per cell"
    assert not [child for child in psutil.Process().children() if "sleep" in child.name()]


def test_what_can_not_be_kept_awake_says_so_in_each_record(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def sleepy() -> Iterator[str]:
        yield "Nothing keeps this Mac awake."

    monkeypatch.setattr(sweeping, "kept_awake", sleepy)
    (found,) = swept(fake_plan())
    assert isinstance(found.outcome, Completed)
    assert found.outcome.notes == ("Nothing keeps this Mac awake.",)


def test_a_watched_run_is_kept_awake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_file: Path) -> None:
    said = caffeinate(tmp_path, monkeypatch)
    with running.run("mine", hz=None, store=store_file):
        ((pid, *_),) = lines(said, 1)
        assert psutil.pid_exists(int(pid))
    assert not psutil.pid_exists(int(pid))


KILLED = """
import sys, time
from types import SimpleNamespace
from metalmark.machine import awake
awake.CAFFEINATE, awake.sys = sys.argv[1], SimpleNamespace(platform="darwin")
with awake.kept_awake():
    print("on", flush=True)
    time.sleep(600)
"""
FOLLOWS = """#!/bin/sh
echo "$$ $*" >> {said}
while kill -0 "$3" 2>/dev/null; do sleep 0.05; done
"""


def test_nothing_is_left_behind_by_kill_9(tmp_path: Path) -> None:
    """The tool is told whom to follow, so it ends with a process that can't end it any more."""
    said, tool = tmp_path / "said", tmp_path / "caffeinate"
    tool.write_text(FOLLOWS.format(said=said))
    tool.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tool)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        ((pid, *_),) = lines(said, 1)
        parent.kill()
    deadline_s = time.monotonic() + 20
    while psutil.pid_exists(int(pid)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
