"""An asynchronous device in software with known timings: what tests and benchmarks measure.

A step is put into a queue and returns at once; the device finishes it `step_ms` of its own time later.
Time is kept, not spent: the device is a moment in the future (`busy_until`), so a queue of a million
steps costs nothing and the truth is exact. Faults are parameters of the workload `fake`.

A step may be made of parts, each of a known length: the host's own time, which is spun through; the device's
arithmetic, memory traffic and optimiser; a loader's batches and their transfers.
"""

import math
import os
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from metalmark.backends.base import RING, DeviceReport, Placement, Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.fake_landscape import landscape_gain
from metalmark.errors import UnsupportedError
from metalmark.model.plan import DeviceKind, Loader, Mode, Plan
from metalmark.model.run import DeviceMemory
from metalmark.model.workload import Params, Workload

SPIN_S = 0.002
"""The end of a wait is spun through: sleep alone comes back up to a tenth of a millisecond late."""

FALLBACK = (
    b"some_file.py:103: UserWarning: The operator 'aten::fake_op.out' is not currently supported on the MPS backend "
    b"and will fall back to run on the CPU. This may have performance implications.\n"
)
"""What PyTorch prints for an operation that Metal lacks."""

PART_COST = 0.02
"""By how much longer a step takes for each part that its batch is run in beyond the first."""
METAL_ABORTS = (
    b"terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: "
    b"Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
)
"""What MLX leaves behind when the GPU's memory does not suffice, before its process aborts."""

AT_BATCH = 32
"""The parts of a step that grow with the batch have the length that is given at this batch size."""
THROTTLED = 0.6
"""How much slower a step becomes where the fault is `throttle`."""


class FakeMemoryError(Exception):
    """What this device raises when it is full."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """The true lengths of what a step is made of, in seconds."""

    host_s: float
    """What the host needs to enqueue the step."""
    compute_s: float
    memory_s: float
    fixed_s: float
    """Of the device, whatever the batch size is."""
    optimizer_s: float
    input_s: float
    """What making one batch costs one worker of the loader."""
    transfer_s: float

    @property
    def device_s(self) -> float:
        """Of a step on a resident batch."""
        return self.compute_s + self.memory_s + self.fixed_s + self.optimizer_s


def parts_of(params: Params, *, training: bool) -> StepParts:
    """Return the parts of a step at its batch size. A step without parts of its device takes `step_ms` in all."""

    def seconds(name: str) -> float:
        return float(params.get(name, 0.0)) / 1e3

    scale = int(params["batch_size"]) / AT_BATCH
    parts = StepParts(
        host_s=seconds("host_ms"),
        compute_s=seconds("compute_ms") * scale,
        memory_s=seconds("memory_ms") * scale,
        fixed_s=seconds("fixed_ms"),
        optimizer_s=seconds("optimizer_ms") if training else 0.0,
        input_s=seconds("input_ms"),
        transfer_s=seconds("transfer_ms") * scale,
    )
    return parts if parts.device_s else replace(parts, fixed_s=seconds("step_ms"))


class FakeFeeder:
    """The software device reads no batches: it counts which one would be next, and waits for a loader's.

    The loader is time that is kept, as the device is: each of its workers makes one batch after another, as long as
    fewer than `prefetch` wait to be taken.
    """

    def __init__(self, loader: Loader | None = None, input_s: float = 0.0) -> None:
        self.batch = -1
        self.waited_s = 0.0
        self.streaming = False
        self._input_s = input_s
        loader = loader or Loader()
        self._workers, self._prefetch = max(1, loader.workers), loader.prefetch if loader.workers else 0
        self._free_at: list[float] = []
        self._ready_at: deque[float] = deque()

    def stream(self, on: bool) -> None:
        if on and not self._input_s:
            raise UnsupportedError("The software device has no loader.", hint="Use --data-from resident.")
        self.streaming = on
        self._free_at, self._ready_at = [time.perf_counter()] * self._workers, deque()
        for _ in range(self._prefetch if on else 0):
            self._make(from_s=0.0)

    def take(self) -> None:
        """Go on to the next batch, and wait for it where a loader makes it."""
        if not self.streaming:
            self.batch = (self.batch + 1) % RING
            return
        begin = time.perf_counter()
        if not self._prefetch:
            self._ready_at.append(begin + self._input_s)
        _sleep_until(self._ready_at.popleft())
        self.waited_s += time.perf_counter() - begin
        if self._prefetch:
            self._make(from_s=time.perf_counter())

    def _make(self, *, from_s: float) -> None:
        """Let the worker that is free first make one more batch, which there is room for from that moment on."""
        worker = min(range(self._workers), key=self._free_at.__getitem__)
        self._free_at[worker] = max(self._free_at[worker], from_s) + self._input_s
        # Batches come in order, so one that a faster worker has made waits for those before it.
        self._ready_at.append(max(self._free_at[worker], self._ready_at[-1] if self._ready_at else 0.0))


class FakeSession:
    def __init__(self, plan: Plan, params: Params) -> None:
        self.placement = Placement(device="fake:0", name="software device")
        self.parameters = self.trainable_parameters = 1000
        self.notes: tuple[str, ...] = ()
        self.batch_shown = "a batch of the software device"
        self._training = plan.mode is Mode.TRAINING
        self._params = params
        self._parts_of_batch = plan.settings.accumulate
        self._compile_s = float(params.get("compile_s", 0.0)) if plan.settings.compile else 0.0
        self.parts = parts_of(params, training=self._training)
        # Two processes of one plan differ, as they do on a real machine, and yet a seed repeats them.
        landscape = int(params.get("landscape", 0))
        # In a landscape settings are compared, whose processes are no luckier together than others.
        among = "/".join(map(str, plan.settings.changed().items())) if landscape else ""
        self._random = random.Random(f"{plan.seed}/{os.environ.get('METALMARK_REPEAT', '0')}{among}")
        gain = landscape_gain(landscape, plan.settings)
        if gain is None:
            raise FakeMemoryError("these settings fail in this landscape")
        self._pace = (1 + self._random.gauss(0, float(params["process_noise"]))) / gain
        self._pace *= 1 + PART_COST * (self._parts_of_batch - 1)
        self._queue: deque[float] = deque()
        self._steps = 0
        self.feeder = FakeFeeder(plan.loader, self.parts.input_s)
        self._faults = set(str(params["fault"]).split("+"))
        self._waits = bool(params.get("sync", False))
        self.syncs, self.synced_s = 0, 0.0
        """How often a step has waited for the device by itself, and how long in all."""

    def step(self) -> None:
        self._break_down()
        if not self._steps:
            time.sleep(self._compile_s)
        self.feeder.take()
        if self.feeder.streaming:
            self.place()
        self.enqueue(self.parts.device_s * self.slowdown(), host_s=self.parts.host_s)
        self._steps += 1
        self.wait_inside()

    def place(self) -> None:
        """Enqueue the transfer of one batch."""
        if self.parts.transfer_s:
            self.enqueue(self.parts.transfer_s)

    def wait_inside(self) -> None:
        """Wait for the device as a step does by itself, where it is to do so."""
        if self._waits:
            begin = time.perf_counter()
            self._drain()
            self.syncs, self.synced_s = self.syncs + 1, self.synced_s + time.perf_counter() - begin

    def enqueue(self, device_s: float, *, host_s: float = 0.0) -> None:
        """Give the device so much to do, after the host has spent its own time on that."""
        now = time.perf_counter()
        while time.perf_counter() - now < host_s:
            pass
        now = time.perf_counter()
        while self._queue and self._queue[0] <= now:
            self._queue.popleft()
        if len(self._queue) >= int(self._params["queue"]):
            _sleep_until(self._queue.popleft())
        begin = max(time.perf_counter(), self._queue[-1] if self._queue else 0.0)
        self._queue.append(begin + device_s)

    def settle(self) -> None:
        """The software device leaves nothing behind that works beside its steps."""

    def observed(self) -> AbstractContextManager[dict[str, str]]:
        """No setting here depends on what a network is made of."""
        return nullcontext({})

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

    def slowdown(self) -> float:
        """Return how many times as long as it should be the device's next work takes: drift, noise and outliers."""
        params = self._params
        since_s = self._steps * self.parts.device_s - float(params["drift_after_s"])
        slower = float(params["drift"]) or (THROTTLED if "throttle" in self._faults else 0.0)
        factor = 1 + slower * min(max(since_s / float(params["drift_s"]), 0.0), 1.0)
        factor *= self._pace * max(0.05, self._random.gauss(1, float(params["noise"])))
        return factor * (3 if self._random.random() < float(params["outliers"]) else 1)

    def _memory_bytes(self) -> float:
        params = self._params
        batch = int(params["batch_size"]) / self._parts_of_batch * 2**20
        return batch + self._steps * float(params["leak_mb"]) * 2**20

    def _break_down(self) -> None:
        if self._memory_bytes() > float(self._params["memory_mb"]) * 2**20:
            raise FakeMemoryError(f"the software device has {self._params['memory_mb']} MiB")
        if self._steps < 3:
            return
        break_down(self._faults)

    def _drain(self) -> None:
        if self._queue:
            _sleep_until(self._queue[-1])
            self._queue.clear()


def break_down(faults: set[str]) -> None:
    """End in the way that is asked for, if any is."""
    if "oom" in faults:
        raise FakeMemoryError("asked to be out of memory")
    if "crash" in faults:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "metal-oom" in faults:
        os.write(2, METAL_ABORTS)
        os.abort()
    if "kill" in faults:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in faults:
        time.sleep(1e6)
    if "raise" in faults:
        raise RuntimeError("asked to raise")


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
