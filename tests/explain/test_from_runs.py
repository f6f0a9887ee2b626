"""What stored runs tell by themselves: cells of a sweep, and scripts that were watched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metalmark.explain.from_bench import explain_bench
from metalmark.explain.from_watch import explain_watched
from metalmark.explain.sentences import verdict_sentence
from metalmark.model.explanation import Bottleneck, Cause, ExperimentKind, Explained
from metalmark.model.measurement import BenchRun, Block, Measurement
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Settings
from metalmark.model.run import Flag
from metalmark.model.watch import CopyGroup, SyncPoint, WatchedRun, WatchedScript, WatchedSteps
from tests import samples

GPU = Device(kind=DeviceKind.CUDA)
MS = 1e-3


def evidence(found: Explained, cause: Cause) -> str:
    return next(share.evidence for share in found.shares if share.cause is cause)


def adds_up(found: Explained) -> bool:
    return sum(share.seconds for share in found.shares) == pytest.approx(found.step_s, rel=1e-9)


# Cells of a sweep.


def cell(
    step_s: float, *, batch: int = 32, placed_on: str = "cuda:0", waited_s: float | None = None, **plan: Any
) -> BenchRun:
    block = Block(
        steps=10, elapsed_s=step_s * 10, at_s=1.0, waited_s=None if waited_s is None else waited_s * 10
    )  # fmt: skip
    measured = Measurement(first_step_s=1.0, warmup=(block,), steady=True, blocks=(block,) * 12, sync_s=1e-6)
    device = GPU if placed_on != "cpu" else Device(kind=DeviceKind.CPU)
    return samples.record(
        samples.completed(samples=batch, placed_on=placed_on, measurement=measured, flops_per_sample=1e6),
        plan=samples.plan(**{"params": {"batch_size": batch}, "device": device, **plan}),
    )


def test_a_cell_by_itself_says_what_would_settle_it() -> None:
    found = explain_bench(cell(MS), ())
    assert adds_up(found)
    assert found.bottleneck is Bottleneck.UNKNOWN
    assert found.share(Cause.UNEXPLAINED) == 1
    assert all("Type: metalmark explain mnist-mlp -f torch -d cuda" in line for line in found.missing)
    assert any(line.startswith("Enqueueing against completing") for line in found.missing)
    assert any(line.startswith("Half and twice the batch") for line in found.missing)


def test_a_captured_cell_of_the_sweep_tells_the_device_s_time() -> None:
    run = cell(10 * MS)
    found = explain_bench(run, [run, cell(2 * MS, settings=Settings(graph=True))])
    assert found.bottleneck is Bottleneck.HOST
    assert found.share(Cause.HOST) == pytest.approx(0.8, abs=0.01)
    assert found.proposals[0].typed == "--graph"
    assert found.proposals[0].gain == pytest.approx(5, rel=0.01)


def test_other_batch_sizes_of_the_sweep() -> None:
    """A step of inference on the CPU: 6 ms and 0.125 ms per sample."""
    cpu = {"placed_on": "cpu", "mode": Mode.INFERENCE}
    run = cell(10 * MS, **cpu)
    others = [cell(8 * MS, batch=16, **cpu), cell(14 * MS, batch=64, **cpu)]
    found = explain_bench(run, others)
    assert found.share(Cause.HOST) == pytest.approx(0.6, abs=0.02)
    assert not any("batch" in line.partition(":")[0] for line in found.missing)
    assert {each.kind for each in found.experiments} == {ExperimentKind.RESIDENT, ExperimentKind.BATCH}
    training = explain_bench(
        cell(10 * MS, placed_on="cpu"),
        [cell(8 * MS, batch=16, placed_on="cpu"), cell(14 * MS, batch=64, placed_on="cpu")],
    )
    assert training.share(Cause.HOST) == 0
    assert "the host's or the optimiser's" in evidence(training, Cause.UNEXPLAINED)


def test_a_loader_and_a_resident_cell() -> None:
    fed = {"feed": Feed.PIPELINE, "loader": Loader(workers=1)}
    run = cell(10 * MS, waited_s=8 * MS, **fed)
    alone = explain_bench(run, [])
    assert alone.bottleneck is Bottleneck.INPUT
    assert alone.share(Cause.INPUT) == pytest.approx(0.8)
    beside = [cell(3 * MS), cell(5 * MS, waited_s=MS, feed=Feed.PIPELINE, loader=Loader(workers=2))]
    found = explain_bench(run, beside)
    assert found.share(Cause.INPUT) == pytest.approx(0.7, abs=0.01)
    assert any(each.typed == "--workers 2" and each.gain == pytest.approx(2) for each in found.proposals)
    assert not any("resident batch" in line for line in found.missing)


def test_cells_that_differ_in_more_or_are_from_elsewhere_tell_nothing() -> None:
    run = cell(10 * MS)
    elsewhere = samples.record(
        samples.completed(2 * MS, placed_on="cuda:0"),
        plan=samples.plan(device=GPU, settings=Settings(graph=True)),
        software=samples.Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "1.0"}),
    )
    twice = cell(2 * MS, batch=64, settings=Settings(graph=True))
    failed = samples.record(samples.failed(), plan=samples.plan(device=GPU, settings=Settings(graph=True)))
    assert len(explain_bench(run, [run, elsewhere, twice, failed]).experiments) == 1


def test_flags_of_the_run_come_first() -> None:
    run = samples.record(flags=(Flag(name="throttled", evidence="the GPU's clock was held down"),))
    assert explain_bench(run, []).bottleneck is Bottleneck.HEAT


def test_a_run_that_failed() -> None:
    found = explain_bench(samples.record(samples.failed()), [])
    assert (found.bottleneck, found.step_s) == (Bottleneck.UNKNOWN, 0)
    assert found.notes == ("The run failed (out of memory): no room.",)


# Scripts that were watched.


def watched(
    device: str = "cuda:0", *, syncs: tuple[SyncPoint, ...] = (), copies: tuple[CopyGroup, ...] = (),
    phases: dict[str, float] | None = None, **steady: float,
) -> WatchedRun:  # fmt: skip
    """100 steps of 10 ms."""
    figures = WatchedSteps(**{"steps": 100, "elapsed_s": 1.0, "waited_s": 0.0, **steady})
    script = WatchedScript(
        command="python train.py", frameworks=("torch",), device=device, steady=figures, syncs=syncs, copies=copies,
        phases=phases or {}, first_step_s=1.0,
    )  # fmt: skip
    return samples.watched_run(script=script)


def item(count: int, seconds: float) -> tuple[SyncPoint, ...]:
    return (SyncPoint(where="train.py:41", call=".item()", count=count, seconds=seconds),)


def test_a_script_that_waits_for_its_loader() -> None:
    found = explain_watched(watched(waited_s=0.7, host_s=0.2))
    assert found.bottleneck is Bottleneck.INPUT
    assert found.share(Cause.INPUT) == pytest.approx(0.7)
    assert found.proposals[0].written.startswith("DataLoader(..., num_workers=4")
    assert found.missing == ()
    assert verdict_sentence(found) == (
        "Input-bound: 70% of each step waits for the loader; 4 loader workers could make it up to 3.3x as fast."
    )


def test_a_script_whose_host_is_the_limit() -> None:
    """It reads the loss now and then, and never waits for it."""
    found = explain_watched(watched(host_s=0.9, sync_s=0.001, syncs=item(2, 0.001)))
    assert found.bottleneck is Bottleneck.HOST
    assert found.share(Cause.HOST) == pytest.approx(0.9)


def test_a_script_whose_device_is_behind() -> None:
    """Its host looks busy, since a full queue makes launching wait; reading the loss takes long."""
    found = explain_watched(watched(host_s=0.9, sync_s=0.1, syncs=item(2, 0.1)))
    assert found.share(Cause.HOST) == 0
    assert "The device limits the step" in evidence(found, Cause.UNEXPLAINED)
    assert "metalmark explain FILE.py:NAME -f torch -d cuda" in found.missing[0]


def test_a_script_that_waits_several_times_in_a_step() -> None:
    found = explain_watched(watched(host_s=0.5, sync_s=0.5, syncs=item(400, 0.5)))
    assert found.bottleneck is Bottleneck.SYNC
    assert "train.py:41" in " ".join(found.notes)
    assert "train.py:41" in found.proposals[0].reason


def test_a_wait_at_the_end_of_a_long_step_is_the_device_s_time() -> None:
    """Without it the step would be nearly as long."""
    found = explain_watched(watched(host_s=0.1, sync_s=0.9, syncs=item(100, 0.9)))
    assert found.share(Cause.SYNC) < 0.1
    assert found.bottleneck is Bottleneck.UNKNOWN
    assert "The device was busy" in evidence(found, Cause.UNEXPLAINED)


def test_copies_are_no_longer_than_their_bytes_take() -> None:
    """4 MB per step in 8 ms: most of that is waiting for what the device did before."""
    groups = (CopyGroup(up_to_bytes=1 << 22, count=100, total_bytes=400_000_000, seconds=0.8),)
    found = explain_watched(watched(host_s=0.1, copy_s=0.8, copies=groups))
    assert found.share(Cause.TRANSFER) == pytest.approx(0.405, abs=0.01)


def test_on_the_cpu_computing_is_not_divided() -> None:
    found = explain_watched(watched("cpu", waited_s=0.1, forward_s=0.2, backward_s=0.3, optimizer_s=0.4))
    assert found.share(Cause.OPTIMIZER) == pytest.approx(0.4)
    assert found.share(Cause.UNEXPLAINED) == pytest.approx(0.5)
    assert "forward 2 ms, backward 3 ms" in evidence(found, Cause.UNEXPLAINED)
    assert found.parts == pytest.approx({"forward": 2 * MS, "backward": 3 * MS, "optimiser": 4 * MS})


def test_validation_and_the_first_step_are_notes() -> None:
    notes = " ".join(explain_watched(watched(host_s=0.5, phases={"training": 1.0, "validation": 1.0})).notes)
    assert "Validation took 50% of the run" in notes
    assert "first step took 1 s" in notes


def test_a_run_of_an_older_version_has_its_input_wait() -> None:
    found = explain_watched(samples.watched_run())
    assert found.step_s == pytest.approx(0.1)
    assert found.share(Cause.INPUT) == pytest.approx(0.25)
    assert adds_up(found)


def test_a_script_without_steps() -> None:
    found = explain_watched(samples.watched_run(stretches={}))
    assert (found.bottleneck, found.shares) == (Bottleneck.UNKNOWN, ())
    assert verdict_sentence(found) == "Not told: no step was timed."


FIGURE = st.floats(0, 2)


@settings(max_examples=150, deadline=None)
@given(
    device=st.sampled_from(["cpu", "cuda:0", "mps", ""]),
    steps=st.integers(1, 500),
    waited_s=FIGURE,
    sync_s=FIGURE,
    copy_s=FIGURE,
    host_s=st.one_of(st.none(), FIGURE),
    optimizer_s=st.one_of(st.none(), FIGURE),
    count=st.integers(0, 2000),
)
def test_whatever_was_seen_the_shares_add_up(
    device: str, steps: int, waited_s: float, sync_s: float, copy_s: float, host_s: float | None,
    optimizer_s: float | None, count: int,
) -> None:  # fmt: skip
    seen: dict[str, Any] = {"host_s": host_s, "optimizer_s": optimizer_s}
    run = watched(
        device, steps=steps, waited_s=waited_s, sync_s=sync_s, copy_s=copy_s, syncs=item(count, sync_s), **seen
    )  # fmt: skip
    found = explain_watched(run)
    assert adds_up(found)
    assert all(share.seconds >= 0 and share.error_s >= 0 and share.evidence for share in found.shares)
    assert explain_watched(run) == found
    assert verdict_sentence(found).endswith(".")
