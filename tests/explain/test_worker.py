"""The worker of an explanation on the software device: what is done is kept however it ends."""

from __future__ import annotations

from msgspec.structs import replace

from metalmark.explain.examine import Examination, examine
from metalmark.explain.job import Ceiling, Done, ExplainOptions, Opened, Tried
from metalmark.model.explanation import Experiment, ExperimentKind
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Scalar
from metalmark.model.run import FailureKind
from metalmark.runner.events import Event, Progress
from metalmark.workloads.fake import WORKLOAD

BRIEF = ExplainOptions(seconds=0.02, blocks=2, profile=False)


def plan(**params: Scalar) -> Plan:
    given = {param.name: param.default for param in WORKLOAD.params} | params
    device = Device(kind=DeviceKind.GPU)
    return Plan(workload="fake", params=given, mode=Mode.TRAINING, framework="fake", device=device)


def experiments(found: Examination) -> list[Experiment]:
    return [line.experiment for line in found.lines if isinstance(line, Tried)]


def test_every_experiment_is_there_or_says_why_not() -> None:
    phases: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Progress):
            phases.append(event.phase)

    found = examine(plan(), BRIEF, listeners=[hear])
    assert found.failure is None
    assert found.complete
    assert not found.interrupted
    assert found.opened is not None
    assert found.opened.asynchronous
    assert found.telemetry.hz == 5.0
    assert isinstance(found.lines[0], Opened)
    assert isinstance(found.lines[-1], Done)
    assert [line.flops_per_s for line in found.lines if isinstance(line, Ceiling)] == [1e12]
    assert all((each.seconds is None) == bool(each.absent) for each in experiments(found))
    kinds = {each.kind for each in experiments(found)}
    only_with = {
        "a loader": {ExperimentKind.AS_ASKED, ExperimentKind.PLACE, ExperimentKind.PRODUCE, ExperimentKind.LOADER},
        "a CPU": {ExperimentKind.THREADS},
    }
    assert kinds == set(ExperimentKind) - set.union(*only_with.values())
    by_kind = {each.kind: each for each in experiments(found)}
    # A busy machine makes steps longer, but nothing makes the device faster than it is.
    assert min(by_kind[ExperimentKind.RESIDENT].samples) > 0.99 * 2e-3
    assert min(by_kind[ExperimentKind.FORWARD].samples) > 0.99 * 2e-3 / 3
    assert by_kind[ExperimentKind.BACKWARD].baseline_s is not None
    assert by_kind[ExperimentKind.COMPILED].absent == "the software device has no settings"
    assert "explain: batch 64" in phases


def test_a_batch_that_does_not_fit_is_absent_and_the_rest_goes_on() -> None:
    """A sample needs 1 MiB: the device has room for the batch of 32, not for twice as many."""
    found = examine(plan(memory_mb=48), BRIEF)
    assert found.complete
    sizes = {
        each.change.params["batch_size"]: each.absent
        for each in experiments(found)
        if each.kind is ExperimentKind.BATCH
    }
    assert sizes == {16: "", 64: "out of memory"}


def test_a_crash_keeps_what_was_done() -> None:
    found = examine(plan(fault="crash"), BRIEF)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.CRASHED
    assert found.failure.signal == "SIGSEGV"
    assert found.opened is not None
    assert not found.complete


def test_ctrl_c_keeps_what_was_done() -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Progress) and event.phase == "explain: batch 64":
            raise KeyboardInterrupt

    found = examine(plan(), BRIEF, listeners=[stop])
    assert found.interrupted
    assert not found.complete
    kinds = [each.kind for each in experiments(found)]
    assert kinds[:3] == [ExperimentKind.RESIDENT, ExperimentKind.FORWARD, ExperimentKind.BACKWARD]
    assert ExperimentKind.SYNCS not in kinds


def test_steps_that_are_too_long_leave_out_what_needs_many() -> None:
    found = examine(plan(step_ms=120), BRIEF)
    assert found.complete
    absent = {each.absent for each in experiments(found) if each.kind is ExperimentKind.BATCH}
    assert absent == {"a step takes 0.12 s; --seconds 0.02 allows no more"}


def test_a_session_that_never_opens_is_given_up() -> None:
    found = examine(replace(plan(fault="open-hang"), budget=replace(plan().budget, stall_s=1.0)), BRIEF)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.TIMED_OUT
    assert found.lines == ()
