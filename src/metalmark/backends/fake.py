"""An asynchronous device in software with known timings: what tests and benchmarks measure.

A step is put into a queue and returns at once; the device finishes it `step_ms` of its own time later.
Time is kept, not spent: the device is a moment in the future (`busy_until`), so a queue of a million
steps costs nothing and the truth is exact. Faults are parameters of the workload `fake`.
"""

import math
import os
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from metalmark.backends.base import RING, DeviceReport, Placement, Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.model.plan import DeviceKind, Mode, Plan
from metalmark.model.run import DeviceMemory
from metalmark.model.workload import Params, Workload

SPIN_S = 0.002
"""The end of a wait is spun through: sleep alone comes back up to a tenth of a millisecond late."""

FALLBACK = (
    b"some_file.py:103: UserWarning: The operator 'aten::fake_op.out' is not currently supported on the MPS backend "
    b"and will fall back to run on the CPU. This may have performance implications.\n"
)
"""What PyTorch prints for an operation that Metal lacks."""

METAL_ABORTS = (
    b"terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: "
    b"Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
)
"""What MLX leaves behind when the GPU's memory does not suffice, before its process aborts."""


class FakeMemoryError(Exception):
    """What this device raises when it is full."""


class FakeFeeder:
    """The software device reads no batches: it counts which one would be next."""

    def __init__(self) -> None:
        self.batch = -1
        self.waited_s = 0.0

    def stream(self, on: bool) -> None:
        if on:
            raise UnsupportedError("The software device has no loader.", hint="Use --data-from resident.")


class FakeSession:
    def __init__(self, plan: Plan, params: Params) -> None:
        self.placement = Placement(device="fake:0", name="software device")
        self.parameters = self.trainable_parameters = 1000
        self.notes: tuple[str, ...] = ()
        self.batch_shown = "a batch of the software device"
        self._training = plan.mode is Mode.TRAINING
        self._params = params
        # Two processes of one plan differ, as they do on a real machine, and yet a seed repeats them.
        self._random = random.Random(f"{plan.seed}/{os.environ.get('METALMARK_REPEAT', '0')}")
        self._pace = 1 + self._random.gauss(0, float(params["process_noise"]))
        self._queue: deque[float] = deque()
        self._steps = 0
        self.feeder = FakeFeeder()
        self._faults = set(str(params["fault"]).split("+"))

    def step(self) -> None:
        self._break_down()
        now = time.perf_counter()
        while self._queue and self._queue[0] <= now:
            self._queue.popleft()
        if len(self._queue) >= int(self._params["queue"]):
            _sleep_until(self._queue.popleft())
        begin = max(time.perf_counter(), self._queue[-1] if self._queue else 0.0)
        self._queue.append(begin + self._duration_s())
        self._steps += 1
        self.feeder.batch = (self.feeder.batch + 1) % RING

    def settle(self) -> None:
        """The software device compiles nothing."""

    def synchronize(self) -> None:
        if "no-sync" not in self._faults:
            self._drain()

    def proof(self) -> float:
        self._drain()
        if "nan" in self._faults and self._steps > 5:
            return math.nan
        batch = self.feeder.batch
        if self._training:
            flat = self._faults & {"flat", "wrong"}
            return 2.3 + batch if flat else 2.3 * math.exp(-0.01 * self._steps) + 0.01 * batch
        if "zero-head" in self._faults:
            return 0.0
        return 1.0 + batch + (self._steps if "wrong" in self._faults else 0)

    def fingerprint(self) -> tuple[float, ...]:
        moved = not self._faults & {"frozen", "wrong"} if self._training else "moving" in self._faults
        now = float(self._steps if moved else 0)
        return now, now, 0.0 if "unused" in self._faults else now

    def fingerprint_names(self) -> tuple[str, ...]:
        return "body.weight", "head.weight", "head.bias"

    def memory(self) -> DeviceMemory:
        live = int(self._memory_bytes())
        return DeviceMemory(live_bytes=live, driver_bytes=live, peak_bytes=live)

    def _duration_s(self) -> float:
        params = self._params
        since_s = self._steps * float(params["step_ms"]) / 1e3 - float(params["drift_after_s"])
        factor = 1 + float(params["drift"]) * min(max(since_s / float(params["drift_s"]), 0.0), 1.0)
        factor *= self._pace * max(0.05, self._random.gauss(1, float(params["noise"])))
        if self._random.random() < float(params["outliers"]):
            factor *= 3
        return float(params["step_ms"]) / 1e3 * factor

    def _memory_bytes(self) -> float:
        params = self._params
        batch = int(params["batch_size"]) * 2**20
        return batch + self._steps * float(params["leak_mb"]) * 2**20

    def _break_down(self) -> None:
        if self._memory_bytes() > float(self._params["memory_mb"]) * 2**20:
            raise FakeMemoryError(f"the software device has {self._params['memory_mb']} MiB")
        if self._steps < 3:
            return
        if "oom" in self._faults:
            raise FakeMemoryError("asked to be out of memory")
        if "crash" in self._faults:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "metal-oom" in self._faults:
            os.write(2, METAL_ABORTS)
            os.abort()
        if "kill" in self._faults:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in self._faults:
            time.sleep(1e6)
        if "raise" in self._faults:
            raise RuntimeError("asked to raise")

    def _drain(self) -> None:
        if self._queue:
            _sleep_until(self._queue[-1])
            self._queue.clear()


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        if left > SPIN_S:
            time.sleep(left - SPIN_S)


class FakeBackend:
    name = "fake"

    def probe(self) -> Probe:
        absent = DeviceReport(
            word="cuda", present=False, reason="the software device has one kind.", fix="Use --device gpu."
        )
        return Probe(
            framework=self.name,
            versions={"fake": "1"},
            devices=(DeviceReport(word="gpu", name="software device", present=True), absent),
        )

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[FakeSession]:
        if plan.device.kind not in (DeviceKind.GPU, DeviceKind.ANY, DeviceKind.CPU):
            raise UnsupportedError(f"The software device has no {plan.device}.", hint="Use --device gpu, cpu or any.")
        FRAMEWORKS[self.name].check(plan.settings, "gpu")
        params = workload.recipe("fake", plan.params).model
        if "open-hang" in str(params["fault"]):
            time.sleep(1e6)
        if "rubbish" in str(params["fault"]):
            os.write(1, b"\xff\xfe rubbish {]\n" * 1000)
            os.write(2, b"\x00\x1b[31m rubbish\n" * 1000)
        if "fallback" in str(params["fault"]):
            os.write(2, FALLBACK)
        yield FakeSession(plan, params)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, FakeMemoryError)


BACKEND = FakeBackend()
