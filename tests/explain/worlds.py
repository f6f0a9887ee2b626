"""A small model of a machine whose shares are known: it makes the lines that a worker would write of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from metalmark.explain.job import Ceiling, Counted, Done, Line, Opened, Profiled, SyncSeen, Tried
from metalmark.model.explanation import Cause, Experiment, ExperimentKind, OperationWork
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Plan, PlanChange
from metalmark.model.run import Absent
from tests import samples

PEAK_FLOPS_PER_S, PEAK_BYTES_PER_S = 1e12, 1e11
BATCH = 32
CALL_S = 10e-6


@dataclass(frozen=True, kw_only=True)
class World:
    """Times of one step of 32 samples, in seconds."""

    asynchronous: bool = True
    training: bool = True
    host_s: float = 1e-3
    compute_s: float = 1e-3
    memory_s: float = 1e-3
    fixed_s: float = 0.0
    """Of the device, at any batch size."""
    optimizer_s: float = 0.0
    produce_s: float = 0.0
    """What one worker needs for a batch; 0: batches are resident."""
    workers: int = 0
    place_s: float = 0.0
    waits: bool = False
    """Whether a call at the end of each step waits for the device."""
    crowded: float = 1.0
    """How many times as fast half the threads would be."""
    efficiency: float = 0.7
    """Of the ceilings, what the step's operations reach."""
    noise: float = 0.0
    seed: int = 0
    captured: bool = False
    left_out: frozenset[ExperimentKind] = field(default_factory=frozenset)

    def device_s(self, batch: int = BATCH) -> float:
        return (self.compute_s + self.memory_s) * batch / BATCH + self.fixed_s + self.optimizer_s

    def resident_s(self, batch: int = BATCH) -> float:
        if not self.asynchronous:
            return (self.host_s + self.device_s(batch)) * self.crowded
        if self.waits:
            return self.host_s + self.device_s(batch)
        return max(self.host_s, self.device_s(batch))

    @property
    def fed_s(self) -> float:
        """The step with batches that are always ready."""
        if self.asynchronous and not self.waits:
            return max(self.host_s, self.place_s + self.device_s())
        return self.place_s + self.resident_s()

    @property
    def step_s(self) -> float:
        if not self.produce_s:
            return self.resident_s()
        if self.workers:
            return max(self.produce_s / self.workers, self.fed_s)
        if self.asynchronous and not self.waits:
            return max(self.produce_s + self.host_s, self.fed_s)
        return self.produce_s + self.fed_s

    @property
    def waited_s(self) -> float:
        if not self.workers:
            return self.produce_s
        host_s = self.host_s if self.asynchronous and not self.waits else self.fed_s
        return max(0.0, self.produce_s / self.workers - host_s)

    def truth(self) -> dict[Cause, float]:
        """The share of each cause."""
        resident_s, device_s = self.resident_s(), self.device_s()
        seconds = dict.fromkeys(Cause, 0.0)
        seconds[Cause.INPUT] = self.step_s - self.fed_s if self.produce_s else 0.0
        seconds[Cause.TRANSFER] = self.fed_s - resident_s if self.produce_s else 0.0
        seconds[Cause.CONTENTION] = resident_s * (1 - 1 / self.crowded)
        seconds[Cause.OPTIMIZER] = self.optimizer_s
        seconds[Cause.COMPUTE], seconds[Cause.MEMORY] = self.compute_s, self.memory_s
        seconds[Cause.HOST] = self.host_s
        if self.asynchronous:
            lost_s = resident_s - max(self.host_s, device_s)
            seconds[Cause.SYNC] = lost_s
            seconds[Cause.HOST] = resident_s - lost_s - device_s
            worked_s = self.compute_s + self.memory_s
            if worked_s:
                # What is fixed on the device is its work like any other.
                seconds[Cause.COMPUTE] += self.fixed_s * self.compute_s / worked_s
                seconds[Cause.MEMORY] += self.fixed_s * self.memory_s / worked_s
        return {cause: value / self.step_s for cause, value in seconds.items()}

    # What a worker would write.

    def plan(self) -> Plan:
        changes: dict[str, Any] = {
            "params": {"batch_size": BATCH},
            "mode": Mode.TRAINING if self.training else Mode.INFERENCE,
            "device": Device(kind=DeviceKind.CUDA if self.asynchronous else DeviceKind.CPU),
        }
        if self.produce_s:
            loader = Loader(workers=self.workers, prefetch=2 if self.workers else 0)
            changes |= {"feed": Feed.PIPELINE, "loader": loader}
        return samples.plan(**changes)

    def lines(self) -> list[Line]:
        self_random = random.Random(self.seed)
        found: list[Line] = [
            Opened(
                placed_on="cuda:0" if self.asynchronous else "cpu",
                device_name="a device",
                asynchronous=self.asynchronous,
                samples_per_step=BATCH,
                flops_per_step=None,
                parameters=1000,
                trainable_parameters=1000,
                threads=None if self.asynchronous else 4,
                usable_cores=4,
                open_files=1024,
                first_step_s=1.0,
                sync_s=1e-5,
            )
        ]

        def tried(kind: ExperimentKind, seconds: float, change: PlanChange | None = None, **more: Any) -> None:
            if kind in self.left_out:
                found.append(Tried(experiment=Experiment(kind=kind, seconds=None, absent="the framework refused it")))
                return
            times = [seconds * max(0.1, self_random.gauss(1, self.noise)) for _ in range(5)]
            times.sort()
            found.append(
                Tried(
                    experiment=Experiment(
                        kind=kind,
                        change=change or PlanChange(),
                        seconds=times[2],
                        samples=tuple(times),
                        error_s=(times[-1] - times[0]) / 2,
                        **more,
                    )
                )
            )

        kinds = ExperimentKind
        if self.produce_s:
            tried(kinds.AS_ASKED, self.step_s, waited_s=self.waited_s)
            tried(kinds.PLACE, self.place_s)
            tried(kinds.PRODUCE, self.produce_s)
        tried(kinds.RESIDENT, self.resident_s())
        self._parts(tried)
        self._variations(tried)
        if kinds.SYNCS not in self.left_out and self.asynchronous:
            found += (
                [SyncSeen(where="net.py:7", call=".item()", count=1, seconds=self.device_s())] if self.waits else []
            )
        work = Counted(work=self.work())
        ceiling = Ceiling(flops_per_s=PEAK_FLOPS_PER_S, bytes_per_s=PEAK_BYTES_PER_S)
        return [*found, work, ceiling, Profiled(profile=Absent(reason="no profiler")), Done()]

    def _parts(self, tried: Any) -> None:
        kinds = ExperimentKind
        without = replace(self, optimizer_s=0.0)
        if self.training:
            if self.captured:
                tried(kinds.BACKWARD, 0.0) if kinds.BACKWARD in self.left_out else None
            else:
                tried(kinds.BACKWARD, without.resident_s())
        if self.asynchronous:
            tried(kinds.ENQUEUE, self.resident_s() if self.waits else self.host_s)
            tried(kinds.SYNCS, self.device_s() if self.waits else 0.0)

    def _variations(self, tried: Any) -> None:
        kinds = ExperimentKind
        resident_s = self.resident_s()
        sizes = [BATCH // 2, BATCH * 2]
        factor = 2
        while self.asynchronous and self.resident_s(BATCH * factor) < 2 * resident_s and factor < 4096:
            factor *= 4
            sizes.append(BATCH * factor)
        if factor > 2:
            sizes.append(BATCH * factor * 2)
        for size in sizes:
            tried(kinds.BATCH, self.resident_s(size), PlanChange(params={"batch_size": size}), baseline_s=resident_s)
        if self.asynchronous and not self.waits and not self.captured:
            tried(kinds.CAPTURED, self.device_s(), PlanChange(settings={"graph": True}), baseline_s=resident_s)
        if not self.asynchronous:
            change = PlanChange(settings={"threads": 2})
            seconds = resident_s / self.crowded if self.crowded > 1 else resident_s * 1.6
            tried(kinds.THREADS, seconds, change, baseline_s=resident_s)
        if self.produce_s:
            for workers in (1, 2, 4):
                if workers != self.workers:
                    other = replace(self, workers=workers)
                    change = PlanChange(loader={"workers": workers, "prefetch": 2})
                    tried(kinds.LOADER, other.step_s, change, baseline_s=self.step_s, waited_s=other.waited_s)

    def work(self) -> tuple[OperationWork, ...]:
        calls = max(1, round(self.host_s / CALL_S))
        rate = self.efficiency
        return (
            OperationWork(name="mm", calls=calls, flops=self.compute_s * rate * PEAK_FLOPS_PER_S, bytes=1.0),
            OperationWork(name="add", calls=1, flops=0.0, bytes=self.memory_s * rate * PEAK_BYTES_PER_S),
            OperationWork(
                name="update",
                calls=1,
                flops=0.0,
                part="optimizer",
                bytes=self.optimizer_s * rate * PEAK_BYTES_PER_S,
            ),
        )
