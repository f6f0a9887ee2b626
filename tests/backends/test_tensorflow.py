"""What is TensorFlow's own: tensorflow-metal counts no memory, and says 0 and not that it does not know."""

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
print("same")
"""


def test_a_peak_of_nothing_is_not_a_figure() -> None:
    environment = {**os.environ, **FRAMEWORKS["tensorflow"].environment(Settings())}
    run = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert run.stdout.strip() == "same", run.stderr[-2000:]
