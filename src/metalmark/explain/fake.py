"""The software device's step, taken apart: every part has the length that its parameter says."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metalmark.backends.base import Probe, Session
from metalmark.backends.fake import BACKEND, FakeSession
from metalmark.errors import UnsupportedError
from metalmark.explain.base import ExplainBackend
from metalmark.explain.job import Ceiling, SyncSeen
from metalmark.model.explanation import OperationWork, Profile
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.workload import Workload

PEAK_FLOPS_PER_S = 1e12
PEAK_BYTES_PER_S = 1e11
FORWARD = 1 / 3
"""The forward pass's share of everything but the optimiser: a backward pass is twice the work."""
ARITHMETIC, TRAFFIC, UPDATE = "matrix products", "element-wise operations", "updates of weights"


class FakeAnatomy:
    asynchronous = True

    def __init__(self, device: FakeSession) -> None:
        self.session: Session = device
        self._device = device

    def forward(self) -> None:
        self._enqueue(FORWARD)

    def backward(self) -> None:
        self._enqueue(1.0)

    def place(self) -> None:
        self._device.place()

    def make(self) -> None:
        time.sleep(self._device.parts.input_s)

    def work(self) -> tuple[OperationWork, ...] | Absent:
        parts = self._device.parts
        if not parts.compute_s + parts.memory_s:
            return Absent(reason="the parameters of the software device do not say what its steps compute")
        work = [
            OperationWork(name=ARITHMETIC, calls=1, flops=parts.compute_s * PEAK_FLOPS_PER_S, bytes=0.0),
            OperationWork(name=TRAFFIC, calls=1, flops=0.0, bytes=parts.memory_s * PEAK_BYTES_PER_S),
        ]
        if parts.optimizer_s:
            moved_bytes = parts.optimizer_s * PEAK_BYTES_PER_S
            work.append(OperationWork(name=UPDATE, calls=1, flops=0.0, bytes=moved_bytes, part="optimizer"))
        return tuple(work)

    def profile(self, steps: int) -> Profile | Absent:  # noqa: ARG002
        return Absent(reason="the software device has no profiler")

    def trace(self, path: Path, steps: int) -> None:  # noqa: ARG002
        raise UnsupportedError("The software device has no profiler, so there is no trace.", hint="Leave --trace out.")

    def ceiling(self) -> Ceiling:
        """Return what the device reaches: its arithmetic and its memory are as fast as `work` assumes."""
        return Ceiling(flops_per_s=PEAK_FLOPS_PER_S, bytes_per_s=PEAK_BYTES_PER_S)

    def syncs(self, steps: int) -> tuple[SyncSeen, ...]:
        """Do some steps, and return how long each waited for the device by itself."""
        device = self._device
        count, seconds = device.syncs, device.synced_s
        for _ in range(steps):
            device.step()
        count, seconds = device.syncs - count, device.synced_s - seconds
        if not count:
            return ()
        return (
            SyncSeen(where="the software device", call="sync", count=round(count / steps), seconds=seconds / steps),
        )

    def _enqueue(self, share: float) -> None:
        self._device.feeder.take()
        parts = self._device.parts
        device_s = (parts.device_s - parts.optimizer_s) * share * self._device.slowdown()
        self._device.enqueue(device_s, host_s=parts.host_s * share)
        self._device.wait_inside()


class FakeExplainer:
    unchanging = dict.fromkeys(
        ("dtype", "compile", "fused", "channels_last", "threads"), "the software device has no settings"
    )

    def probe(self) -> Probe:
        return BACKEND.probe()

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[FakeAnatomy]:
        with BACKEND.open(plan, workload) as session:
            yield FakeAnatomy(session)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return BACKEND.is_out_of_memory(error)

    def free_memory(self) -> None:
        """Its memory is a figure only."""

    def threads(self) -> int | None:
        return None

    def set_threads(self, count: int) -> None:  # noqa: ARG002
        raise UnsupportedError("The software device computes nothing, so it has no threads.")


SIDE: ExplainBackend = FakeExplainer()
