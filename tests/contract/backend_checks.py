"""The contract of a Backend, as checks that run in a process of the framework's own: Keras, for one, can
serve only one framework per process. `python -m tests.contract.backend_checks FRAMEWORK ANSWER CHECK...`."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from metalmark.backends.base import RING, Backend, Probe, Session
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Loader, Mode, Plan, Settings
from metalmark.model.run import Absent
from metalmark.workloads.catalog import load

PARAMETERS = {"mnist-mlp": 784 * 128 + 128 + 128 * 10 + 10, "conv256": 3 * 9 * 32 + 32 + 7 * 7 * 32 * 10 + 10}
SMALL = {"mnist-mlp": {"batch_size": 8}, "conv256": {"batch_size": 2, "pixels": 16}}


class Checks:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.fake = backend.name == "fake"
        self.device = ""

    def plan(
        self,
        workload: str = "mnist-mlp",
        mode: Mode = Mode.TRAINING,
        device: str = "",
        loader: Loader | None = None,
        **settings: Any,
    ) -> Plan:
        if self.fake:
            workload = "fake"
        defaults = {param.name: param.default for param in load(workload).params}
        return Plan(
            workload=workload,
            params={**defaults, **SMALL.get(workload, {})},
            mode=mode,
            framework=self.backend.name,
            device=Device(kind=DeviceKind(device or ("gpu" if self.fake else "cpu"))),
            settings=Settings(**settings),
            feed=Feed.RESIDENT if loader is None else Feed.PIPELINE,
            loader=loader,
        )

    def opened(self, plan: Plan, use: Callable[[Session], None]) -> None:
        with self.backend.open(plan, load(plan.workload)) as session:
            use(session)

    def refused(self, plan: Plan) -> UnsupportedError:
        try:
            with self.backend.open(plan, load(plan.workload)):
                raise AssertionError(f"{plan.settings} on {plan.device} was not refused")
        except UnsupportedError as error:
            return error

    def trains(self, plan: Plan, *, steps: int = 40) -> None:
        def use(session: Session) -> None:
            before = session.fingerprint()
            losses = []
            for _ in range(steps):
                session.step()
                session.synchronize()
                losses.append(session.proof())
            assert all(map(math.isfinite, losses)), losses
            assert losses[-RING] < losses[0], losses
            after = session.fingerprint()
            assert len(before) == len(after)
            assert all(a != b for a, b in zip(before, after, strict=True)), "every trainable array moves"

        self.opened(plan, use)

    def check_probe(self) -> None:
        probe = self.backend.probe()
        assert isinstance(probe, Probe)
        assert probe.framework == self.backend.name
        assert all(isinstance(value, str) and value for value in probe.versions.values())
        assert probe.versions
        assert any(report.present for report in probe.devices)
        assert all(report.reason for report in probe.devices if not report.present)

    def check_training(self) -> None:
        for workload in SMALL:
            self.trains(self.plan(workload))

    def check_inference(self) -> None:
        def use(session: Session) -> None:
            before = session.fingerprint()
            outputs = []
            for _ in range(2 * RING):
                session.step()
                session.synchronize()
                outputs.append(session.proof())
            assert outputs[:RING] == outputs[RING:], "the same batch, the same answer"
            assert outputs[0] != outputs[1], "another batch, another answer"
            assert session.fingerprint() == before

        for workload in SMALL:
            self.opened(self.plan(workload, Mode.INFERENCE), use)

    def check_parameters(self) -> None:
        for workload, expected in PARAMETERS.items():

            def use(session: Session, expected: int = expected) -> None:
                assert session.parameters == session.trainable_parameters == expected

            if not self.fake:
                self.opened(self.plan(workload), use)

    def check_placement_and_memory(self) -> None:
        def use(session: Session) -> None:
            session.step()
            session.synchronize()
            assert session.placement.device
            assert session.placement.name
            memory = session.memory()
            for value in (memory.live_bytes, memory.driver_bytes, memory.peak_bytes):
                assert isinstance(value, int) and value > 0 if not isinstance(value, Absent) else value.reason

        self.opened(self.plan(device=self.device), use)

    def check_placement_left_to_the_framework(self) -> None:
        """In a process of its own where there is a GPU: TensorFlow can't show it once it has computed without."""
        self.device = "any"
        self.check_placement_and_memory()

    def check_dtypes(self) -> None:
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT16):
            for workload in SMALL:
                self.trains(self.plan(workload, dtype=dtype))
        self.trains(self.plan())  # float32 again: a policy of the last session must not stay behind

    def check_compile(self) -> None:
        self.trains(self.plan(compile=True))

    def check_channels_last(self) -> None:
        if self.fake:
            return
        self.trains(self.plan("conv256", channels_last=True))
        assert "4-dimensional" in self.refused(self.plan("mnist-mlp", channels_last=True)).message

    def check_every_limit_is_refused(self) -> None:
        """What the catalogue says is missing is refused, and what it says is there is not."""
        here = "gpu" if self.fake else "cpu"
        values: dict[str, Any] = {
            "dtype": Dtype.TF32, "threads": 1, "compile_mode": "max-autotune", "attention_kernel": "math",
            "accumulate": 2, "conv_search": True,
        }  # fmt: skip
        for limit in FRAMEWORKS[self.backend.name].limits:
            if here not in limit.only:
                wanted = {limit.setting: limit.value or values.get(limit.setting, True)}
                plan = self.plan(loader=Loader(**wanted)) if limit.loader else self.plan(**wanted)
                assert limit.reason in self.refused(plan).message

    def check_absent_devices(self) -> None:
        for report in self.backend.probe().devices:
            if not report.present:
                error = self.refused(self.plan(device=report.word))
                assert self.fake or report.reason in error.message, error.message
        if not any(report.present and report.word != "cpu" for report in self.backend.probe().devices):
            assert self.refused(self.plan(device="gpu")).hint

    def check_out_of_memory_is_known(self) -> None:
        if not self.fake:
            assert self.backend.is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
        assert not self.backend.is_out_of_memory(ValueError("shapes do not match"))

    def check_seeds_repeat(self) -> None:
        seen: list[float] = []

        def use(session: Session) -> None:
            session.step()
            session.synchronize()
            seen.append(session.proof())

        for _ in range(2):
            self.opened(self.plan(), use)
        assert seen[0] == seen[1]

    def check_versions_without_metadata(self) -> None:
        """A package whose metadata is damaged can still be used: the module's own word counts."""

        def missing(name: str) -> Any:
            raise metadata.PackageNotFoundError(name)

        kept = metadata.version, metadata.distribution
        metadata.version = metadata.distribution = missing
        try:
            probe = msgspec.json.decode(msgspec.json.encode(self.backend.probe()), type=Probe)
        finally:
            metadata.version, metadata.distribution = kept
        assert probe.versions[self.backend.name][0].isdigit(), probe.versions


NAMES = sorted(name for name in vars(Checks) if name.startswith("check_"))
ALONE = "check_placement_left_to_the_framework"
LATER = "in a process of its own"


def main(framework: str, answer: str, *names: str) -> None:
    checks = Checks(FRAMEWORKS[framework].backend())
    results = {}
    accelerated = any(report.present and report.word != "cpu" for report in checks.backend.probe().devices)
    for name in names:
        if name == ALONE and accelerated and len(names) > 1:
            results[name] = LATER
            continue
        try:
            getattr(checks, name)()
            results[name] = ""
        except BaseException as error:  # noqa: BLE001  a check's failure is the answer
            results[name] = "".join(traceback.format_exception(error))
    Path(answer).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
