"""What is TensorFlow's own: tensorflow-metal counts no memory, and says 0 and not that it does not know; a tap that
feeds it is closed with care."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Settings

pytestmark = pytest.mark.skipif(bool(FRAMEWORKS["tensorflow"].missing()), reason="tensorflow is not installed")
ROOT = Path(__file__).parents[2]

MEMORY = """
import time
import tensorflow as tf
from metalmark.backends.base import Placement
from metalmark.backends.tensorflow import BACKEND
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan
from metalmark.model.run import Absent
from metalmark.runner.loop import Clock
from metalmark.workloads.catalog import load
plan = Plan(workload="mnist-mlp", params={"batch_size": 2}, mode=Mode.TRAINING, framework="tensorflow",
            device=Device(kind=DeviceKind.CPU))
told = {"current": 0, "peak": 0}
tf.config.experimental.get_memory_info = lambda device: dict(told)
with BACKEND.open(plan, load("mnist-mlp")) as session:
    session.placement = Placement(device="GPU:0", name="Apple GPU (Metal)")
    clock = Clock(session, Budget(), origin_s=time.monotonic(), tell=lambda *_: None)
    clock.first_step()
    memory = session.memory()
    for value in (memory.live_bytes, memory.driver_bytes, memory.peak_bytes):
        assert isinstance(value, Absent), value
        assert "GPU:0 counts no memory" in value.reason
    assert clock.block(2).live_bytes is None, "zeros would hide a leak"
    told.update(current=5, peak=9)
    assert (session.memory().live_bytes, session.memory().peak_bytes) == (5, 9)
    assert clock.block(2).live_bytes == 5
print("counted")
"""

TAP = """
import threading
from metalmark.feeds.on_tensorflow import Tap
from tests.feeds.test_feeds import make_source
entered, leave = threading.Event(), threading.Event()
class Slow:
    source = make_source()
    def __getitem__(self, number):
        if number:
            entered.set()
            leave.wait()
        return self.source[number]
tap = Tap(Slow())
caller = threading.Thread(target=tap, args=(1,))
caller.start()
entered.wait()
closer = threading.Thread(target=tap.close)
closer.start()
closer.join(0.3)
print("waits" if closer.is_alive() else "left")
leave.set()
closer.join()
caller.join()
print("same" if tap(2) is tap.first else "another")
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What both parts print, in one process: importing TensorFlow takes longer than they do."""
    environment = {**os.environ, **FRAMEWORKS["tensorflow"].environment(Settings())}
    command = [sys.executable, "-c", TAP + MEMORY]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=200)
    return [*run.stdout.split(), run.stderr[-2000:]]


def test_a_closed_tap_is_left_only_when_nobody_is_in_it(printed: list[str]) -> None:
    """TensorFlow, taking its iterator down with Python's lock held, would wait for ever for a call under way."""
    assert printed[:2] == ["waits", "same"], printed


def test_a_peak_of_nothing_is_not_a_figure(printed: list[str]) -> None:
    assert printed[2] == "counted", printed
