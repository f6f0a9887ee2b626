"""ProcessSensor on real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from metalmark.telemetry.base import Reading
from metalmark.telemetry.process import ProcessSensor

PATIENCE_S = 60.0

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python on some code and waits until it prints a line; ends it by closing its input."""
    with ExitStack() as stack:

        def start_one(code: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            return process

        yield start_one


def read(sensor: ProcessSensor) -> dict[str, float]:
    return {reading.name: as_number(reading) for reading in sensor.read()}


def as_number(reading: Reading) -> float:
    assert isinstance(reading.value, int | float)
    return reading.value


def read_until(sensor: ProcessSensor, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        readings = read(sensor)
        if holds(readings):
            return readings
        time.sleep(0.1)
    pytest.fail(f"not seen in {PATIENCE_S:g} s; last: {readings}")


WAIT = "print('up', flush=True); sys.stdin.read()"


def test_memory_of_a_process(start: Start) -> None:
    small = ProcessSensor(start(f"import sys; {WAIT}").pid)
    large = ProcessSensor(start(f"import sys; data = bytearray(b'x') * 100_000_000; {WAIT}").pid)
    assert small.available() is None
    assert large.available() is None
    assert read(large)["process_memory"] > read(small)["process_memory"] + 90_000_000


def test_work_is_seen_and_rest_is_not_taken_for_work(start: Start) -> None:
    spin = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n"
    busy = ProcessSensor(start(f"import sys\n{spin}{WAIT}").pid)
    idle = ProcessSensor(start(f"import sys; {WAIT}").pid)
    assert busy.available() is None
    assert idle.available() is None
    assert "process_cpu" not in read(busy)
    assert "process_cpu" not in read(idle)
    read_until(busy, lambda found: found["process_cpu"] > 0)
    read_until(idle, lambda found: found["process_cpu"] == 0)


def test_children_count_and_their_end_is_survived(start: Start) -> None:
    child = "import sys; data = bytearray(b'x') * 80_000_000; print('up', flush=True); sys.stdin.read()"
    parent = start(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print('up', flush=True); sys.stdin.readline(); child.communicate()\n"
        "print('alone', flush=True); sys.stdin.read()\n"
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    sensor = ProcessSensor(parent.pid)
    assert sensor.available() is None
    both = read(sensor)["process_memory"]
    assert both > 80_000_000
    parent.stdin.write("\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == "alone\n"
    assert read(sensor)["process_memory"] < both - 70_000_000


def test_a_child_that_starts_later_is_found(start: Start) -> None:
    child = "import sys; data = bytearray(b'x') * 80_000_000; sys.stdin.read()"
    parent = start(
        "import subprocess, sys; print('up', flush=True); sys.stdin.readline()\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE).wait()\n"
    )
    assert parent.stdin is not None
    sensor = ProcessSensor(parent.pid)
    assert sensor.available() is None
    alone = read(sensor)["process_memory"]
    parent.stdin.write("\n")
    parent.stdin.flush()
    read_until(sensor, lambda found: found["process_memory"] > alone + 70_000_000)


def test_a_grandchild_still_counts_when_its_parent_has_ended(start: Start, tmp_path: Path) -> None:
    grandchild = "import sys; data = bytearray(b'x') * 80_000_000; sys.stdin.read()"
    child = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        f"while not os.path.exists({str(tmp_path / 'end')!r}): time.sleep(0.02)\n"
        "os._exit(0)"
    )
    parent = start(
        "import subprocess, sys; print('up', flush=True); sys.stdin.readline()\n"
        f"subprocess.run([sys.executable, '-c', {child!r}])\n"
        "print('orphaned', flush=True); sys.stdin.read()\n"
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    sensor = ProcessSensor(parent.pid)
    assert sensor.available() is None
    alone = read(sensor)["process_memory"]
    parent.stdin.write("\n")
    parent.stdin.flush()
    read_until(sensor, lambda found: found["process_memory"] > alone + 70_000_000)
    (tmp_path / "end").touch()
    assert parent.stdout.readline() == "orphaned\n"
    for _ in range(15):  # long enough for another look at who is there
        assert read(sensor)["process_memory"] > alone + 70_000_000
        time.sleep(0.1)


def test_a_process_that_ended_gives_nothing_waited_for_or_not(start: Start) -> None:
    process = start(f"import sys; {WAIT}")
    sensor = ProcessSensor(process.pid)
    assert sensor.available() is None
    assert read(sensor)
    process.kill()
    read_until(sensor, lambda found: not found)  # dead, but its entry stays until it is waited for
    process.wait()
    assert sensor.read() == []


def test_a_process_that_never_was(start: Start) -> None:
    process = start(f"import sys; {WAIT}")
    process.kill()
    process.wait()
    sensor = ProcessSensor(process.pid)
    assert sensor.available() == "the process had ended before it could be read"
    assert sensor.read() == []
