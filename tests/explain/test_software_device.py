"""The software device's steps have the parts that its parameters say. Time here is a clock that only the code moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from metalmark.backends.fake import FakeSession, parts_of
from metalmark.errors import UnsupportedError
from metalmark.explain.experiments import Experimenter
from metalmark.explain.fake import SIDE, FakeAnatomy
from metalmark.explain.job import ExplainOptions, Line
from metalmark.explain.judge import explain_lines
from metalmark.model.explanation import Bottleneck, Cause, Explained
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Plan, Scalar
from metalmark.model.run import Absent, Series, Telemetry
from metalmark.runner.flags import flags_around
from metalmark.stats.window import Window
from metalmark.telemetry.base import Reading
from metalmark.telemetry.sensors import sensors_of
from metalmark.telemetry.software import SoftwareSensor
from metalmark.workloads.fake import WORKLOAD
from tests.samples import MACHINE

TICK_S = 5e-6


class Clock:
    """Goes on by a tick when it is read, so that waiting for it comes to an end."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def read(self) -> float:
        self.now_s += TICK_S
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.read)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def make_plan(given: Mapping[str, Scalar] | None = None, *, loader: Loader | None = None) -> Plan:
    params = {param.name: param.default for param in WORKLOAD.params} | dict(given or {})
    return Plan(
        workload="fake", params=params, mode=Mode.TRAINING, framework="fake", device=Device(kind=DeviceKind.GPU),
        feed=Feed.RESIDENT if loader is None else Feed.PIPELINE, loader=loader,
    )  # fmt: skip


def session_of(plan: Plan) -> FakeSession:
    return FakeSession(plan, plan.params)


def per_call(clock: Clock, session: FakeSession, call: Callable[[], None], calls: int = 50) -> float:
    """Milliseconds of each call, the wait for the last one included."""
    call()
    session.synchronize()
    begin = clock.now_s
    for _ in range(calls):
        call()
    session.synchronize()
    return (clock.now_s - begin) / calls * 1e3


def test_what_grows_with_the_batch_and_what_does_not() -> None:
    params = {
        "compute_ms": 2.0,
        "memory_ms": 1.0,
        "fixed_ms": 0.5,
        "optimizer_ms": 0.25,
        "transfer_ms": 4.0,
    }
    plan = make_plan({"batch_size": 64, **params})
    parts = parts_of(plan.params, training=True)
    assert (parts.compute_s, parts.memory_s, parts.transfer_s) == pytest.approx((4e-3, 2e-3, 8e-3))
    assert parts.device_s == pytest.approx(6.75e-3)
    assert parts_of(plan.params, training=False).optimizer_s == 0
    assert parts_of(make_plan({"step_ms": 7.0}).params, training=True).device_s == pytest.approx(7e-3)


@pytest.mark.parametrize(
    ("given", "step_ms"),
    [
        ({"host_ms": 1.0, "compute_ms": 3.0}, 3.0),
        ({"host_ms": 4.0, "compute_ms": 3.0}, 4.0),
        ({"host_ms": 4.0, "compute_ms": 3.0, "sync": True}, 7.0),
        ({"compute_ms": 3.0, "optimizer_ms": 2.0}, 5.0),
    ],
)
def test_the_host_and_the_device_work_side_by_side_unless_a_step_waits(
    clock: Clock, given: dict[str, Scalar], step_ms: float
) -> None:
    session = session_of(make_plan(given))
    assert per_call(clock, session, session.step) == pytest.approx(step_ms, rel=0.03)


@pytest.mark.parametrize(
    ("loader", "step_ms", "waited_ms"),
    [
        (Loader(workers=1), 8.0, 8.0),
        (Loader(workers=2), 4.0, 4.0),
        (Loader(workers=4, prefetch=4), 3.0, 0.0),
        (Loader(workers=0), 8.0, 8.0),
    ],
)
def test_a_loader_gives_as_many_batches_as_its_workers_make(
    clock: Clock, loader: Loader, step_ms: float, waited_ms: float
) -> None:
    """The device computes for 3 ms, and meanwhile the host waits for the next batch."""
    session = session_of(make_plan({"compute_ms": 3.0, "input_ms": 8.0, "queue": 2}, loader=loader))
    session.feeder.stream(True)
    for _ in range(20):
        session.step()
    before_s = session.feeder.waited_s
    found_ms = per_call(clock, session, session.step, calls=200)
    assert found_ms == pytest.approx(step_ms, rel=0.05)
    waited = (session.feeder.waited_s - before_s) / 201 * 1e3
    assert waited == pytest.approx(waited_ms, abs=0.1)
    session.feeder.stream(False)
    assert per_call(clock, session, session.step) == pytest.approx(3.0, rel=0.03)


def test_without_a_loader_there_is_none() -> None:
    with pytest.raises(UnsupportedError, match="no loader"):
        session_of(make_plan({"compute_ms": 3.0})).feeder.stream(True)


def test_parts_have_their_true_lengths(clock: Clock) -> None:
    given = {
        "compute_ms": 4.0, "memory_ms": 2.0, "optimizer_ms": 3.0, "transfer_ms": 0.5, "input_ms": 1.5, "host_ms": 0.3,
    }  # fmt: skip
    plan = make_plan(given, loader=Loader())
    with SIDE.open(plan, WORKLOAD) as anatomy:
        assert isinstance(anatomy, FakeAnatomy)
        session = anatomy.session
        assert isinstance(session, FakeSession)
        calls = (
            session.step,
            anatomy.forward,
            anatomy.backward,
            anatomy.place,
            anatomy.make,
        )
        found = [per_call(clock, session, call) for call in calls]
        assert found == pytest.approx([9.0, 2.0, 6.0, 0.5, 1.5], rel=0.06)
        work = anatomy.work()
        assert not isinstance(work, Absent)
        ceiling = anatomy.ceiling()
        assert ceiling.flops_per_s
        assert ceiling.bytes_per_s
        floors = [each.flops / ceiling.flops_per_s + each.bytes / ceiling.bytes_per_s for each in work]
        assert floors == pytest.approx([4e-3, 2e-3, 3e-3])
        assert anatomy.syncs(5) == ()


@pytest.mark.usefixtures("clock")
def test_waits_inside_a_step_are_told() -> None:
    with SIDE.open(make_plan({"compute_ms": 4.0, "host_ms": 1.0, "sync": True}), WORKLOAD) as anatomy:
        assert isinstance(anatomy, FakeAnatomy)
        (seen,) = anatomy.syncs(10)
        assert seen.count == 1
        assert seen.seconds == pytest.approx(4e-3, rel=0.03)


@pytest.mark.parametrize(("fault", "flag"), [("swap", "swapping"), ("throttle", "throttled")])
def test_sensors_see_the_faults_that_are_theirs(fault: str, flag: str) -> None:
    sensors = sensors_of(make_plan({"fault": fault}), pid=1)
    assert {type(sensor) for sensor in sensors} >= {SoftwareSensor}
    clock = Clock()
    sensor = SoftwareSensor({fault}, now=lambda: clock.now_s)
    readings: dict[str, list[tuple[float, Reading]]] = {}
    for _ in range(40):
        for reading in sensor.read():
            readings.setdefault(reading.name, []).append((clock.now_s, reading))
        clock.now_s += 0.2
    series = [
        Series(
            name=name, unit=taken[0][1].unit, source="", at_s=tuple(at_s for at_s, _ in taken),
            values=tuple(reading.value for _, reading in taken if isinstance(reading.value, float)),
        )
        for name, taken in readings.items()
    ]  # fmt: skip
    window = Window([(0.0, clock.now_s)], "fake:0", Telemetry(hz=5.0, series=tuple(series)))
    assert [found.name for found in flags_around(window, MACHINE)] == [flag]


def test_other_devices_have_the_sensors_of_the_machine() -> None:
    assert not any(isinstance(sensor, SoftwareSensor) for sensor in sensors_of(make_plan(), pid=1))


def explained(plan: Plan) -> Explained:
    lines: list[Line] = []
    Experimenter(
        SIDE, plan, ExplainOptions(seconds=0.2, blocks=3), load=lambda _: WORKLOAD, write=lines.append,
        tell=lambda *_: None,
    ).run()  # fmt: skip
    return explain_lines(lines, plan, Telemetry(hz=None), (), ())


CASES: dict[str, tuple[dict[str, Scalar], Bottleneck, dict[Cause, float]]] = {
    "input": (
        {"compute_ms": 2.0, "input_ms": 8.0, "queue": 4}, Bottleneck.INPUT,
        {Cause.INPUT: 0.75, Cause.COMPUTE: 0.25},
    ),
    "transfer": (
        {"compute_ms": 2.0, "transfer_ms": 4.0, "input_ms": 0.5, "queue": 4}, Bottleneck.TRANSFER,
        {Cause.TRANSFER: 4 / 6, Cause.COMPUTE: 2 / 6},
    ),
    "host": (
        {"compute_ms": 1.0, "host_ms": 4.0, "queue": 8}, Bottleneck.HOST, {Cause.HOST: 0.75, Cause.COMPUTE: 0.25},
    ),
    "compute": (
        {"compute_ms": 6.0, "memory_ms": 2.0, "optimizer_ms": 1.0, "host_ms": 1.0}, Bottleneck.COMPUTE,
        {Cause.COMPUTE: 6 / 9, Cause.MEMORY: 2 / 9, Cause.OPTIMIZER: 1 / 9},
    ),
    "memory": (
        {"compute_ms": 1.0, "memory_ms": 4.0}, Bottleneck.MEMORY, {Cause.COMPUTE: 0.2, Cause.MEMORY: 0.8},
    ),
    "optimiser": (
        {"compute_ms": 1.0, "memory_ms": 1.0, "optimizer_ms": 6.0}, Bottleneck.OPTIMIZER,
        {Cause.OPTIMIZER: 0.75, Cause.COMPUTE: 0.125, Cause.MEMORY: 0.125},
    ),
    "waits": (
        {"compute_ms": 2.0, "memory_ms": 2.0, "host_ms": 4.0, "sync": True}, Bottleneck.SYNC,
        {Cause.SYNC: 0.5, Cause.COMPUTE: 0.25, Cause.MEMORY: 0.25},
    ),
    "balanced": (
        {"compute_ms": 3.0, "memory_ms": 3.0, "optimizer_ms": 3.0}, Bottleneck.BALANCED,
        {Cause.COMPUTE: 1 / 3, Cause.MEMORY: 1 / 3, Cause.OPTIMIZER: 1 / 3},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("name", CASES)
def test_exact_shares_come_back(name: str) -> None:
    given, bottleneck, truth = CASES[name]
    plan = make_plan(given, loader=Loader() if "input_ms" in given else None)
    found = explained(plan)
    shares = {cause: found.share(cause) for cause in Cause}
    assert found.bottleneck is bottleneck, shares
    assert shares == pytest.approx({cause: truth.get(cause, 0.0) for cause in Cause}, abs=0.05)
