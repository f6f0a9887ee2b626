"""Like for like: what is paired, and with what reason the rest is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Mode, Settings
from metalmark.model.run import FailureKind, Software
from metalmark.results.measured import measured_of
from metalmark.results.pairing import Side, around_changes, pair
from tests.compare.sides import repeats, side
from tests.samples import MACHINE, completed, failed, plan, record

GPU = Device(kind=DeviceKind.CUDA)


def batch(size: int, **changes: Any) -> Any:
    return plan(params={"batch_size": size}, **changes)


def test_what_the_sides_do_not_share_is_compared_and_the_rest_must_agree() -> None:
    a = side("a", repeats(batch(16)), repeats(batch(64)))
    b = side("b", repeats(batch(64, framework="jax")), repeats(batch(16, framework="jax")))
    found = pair(a, b)
    assert found.compared == ("framework",)
    assert found.unlike == {}
    assert found.unpaired == ()
    assert [(one.a.what["batch_size"], one.b.what["batch_size"]) for one in found.pairs] == [("64", "64"), ("16", "16")]


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (batch(64), "batch_size"),
        (plan(mode=Mode.INFERENCE), "mode"),
        (plan(workload="conv256"), "workload"),
        (plan(workload_digest="ab" * 32), "workload file"),
        (plan(data="cifar10"), "data"),
        (plan(feed=Feed.PIPELINE), "data from"),
        (plan(settings=Settings(dtype=Dtype.BFLOAT16)), "dtype"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_question_is_not_like_for_like(other: Any, key: str) -> None:
    a, b = side("a", repeats()), side("b", repeats(other))
    found = pair(a, b)
    assert found.pairs == ()
    assert key in found.unlike
    assert "against" in found.unlike[key]
    shown = pair(a, b, anyway=True)
    assert len(shown.pairs) == 1
    assert key in shown.unlike, "shown, and still marked"


@pytest.mark.parametrize(
    "other",
    [
        plan(framework="jax"),
        plan(device=GPU),
        plan(settings=Settings(compile=True)),
        plan(settings=Settings(threads=4)),
        plan(settings=Settings(channels_last=True, fused=True)),
    ],
)
def test_how_it_ran_may_differ(other: Any) -> None:
    found = pair(side("a", repeats()), side("b", repeats(other)))
    assert len(found.pairs) == 1
    assert found.compared
    assert not found.unlike


def test_what_the_batches_really_were_counts_too() -> None:
    a, b = side("a", repeats()), side("b", repeats(run={"data": "cifar10, real"}))
    assert pair(a, b).unlike == {"data read": "data read synthetic against cifar10, real"}


def test_the_samples_of_a_step_count_too_and_are_said_once() -> None:
    odd = [msgspec.structs.replace(one, outcome=completed(samples=31)) for one in repeats()]
    assert pair(side("a", repeats()), side("b", odd)).unlike == {"samples per step": "samples per step 32 against 31"}
    assert list(pair(side("a", repeats()), side("b", repeats(batch(64)))).unlike) == ["batch_size"]


def test_dtype_is_compared_by_who_says_so() -> None:
    a, b = side("a", repeats()), side("b", repeats(plan(settings=Settings(dtype=Dtype.BFLOAT16))))
    found = pair(a, b, by=["dtype"])
    assert found.unlike == {}
    assert found.compared == ("dtype",)
    assert len(found.pairs) == 1
    assert "batch_size" in pair(a, side("b", repeats(batch(64))), by=["batch_size"]).unlike, "not so a batch size"


def test_a_cell_without_its_like_says_what_it_lacks() -> None:
    a, b = side("a", repeats(batch(16)), repeats(batch(32))), side("b", repeats(batch(32)), repeats(batch(64)))
    found = pair(a, b)
    assert len(found.pairs) == 1
    reasons = {one.side: one.reason for one in found.unpaired}
    assert "batch size 64" in reasons["b"]
    assert "batch size 16" in reasons["a"]


def test_one_baseline_against_several() -> None:
    a = side("a", repeats())
    b = side("b", repeats(plan(framework="jax")), repeats(plan(framework="mlx")))
    assert [one.b.how["framework"] for one in pair(a, b).pairs] == ["jax", "mlx"]
    turned = pair(b, a)
    assert turned.pairs == ()
    assert "2 cells of b fit it; they differ in framework" in turned.unpaired[0].reason


def test_machine_and_versions_choose_between_several_that_fit_and_are_told() -> None:
    other = msgspec.structs.replace(MACHINE, chip="Other chip")
    a = side("a", repeats(machine=MACHINE), repeats(machine=other))
    newer = Software(metalmark="0.1.0", python="3.11.7", versions={"torch": "2.14.0"})
    found = pair(a, side("b", repeats(machine=other)))
    assert [one.a.around["machine"] for one in found.pairs] == [found.pairs[0].b.around["machine"]]
    moved = pair(side("a", repeats()), side("b", repeats(software=newer, machine=other)))
    changes = around_changes(moved.pairs[0])
    assert "torch 2.13.0 → 2.14.0" in changes
    assert any(change.startswith("machine Test chip") for change in changes)


def test_repeats_of_several_sweeps_are_one_cell_and_machines_are_not() -> None:
    numbered = [Software(metalmark="0", python="3", environment={"METALMARK_REPEAT": str(n)}) for n in range(2)]
    cells = measured_of([*repeats(count=2, software=numbered[0]), *repeats(count=3, software=numbered[1])])
    assert [len(cell.processes) for cell in cells] == [5], "our own variables tell the processes apart, not the cells"
    other = msgspec.structs.replace(MACHINE, chip="Other chip")
    assert len(measured_of([*repeats(count=2), *repeats(count=2, machine=other)])) == 2


def test_what_was_interrupted_does_not_count_beside_what_ended() -> None:
    stopped = record(failed(FailureKind.INTERRUPTED, "Ctrl-C"), repeat=5)
    (cell,) = measured_of([*repeats(), stopped])
    assert cell.failure == ""
    assert len(cell.processes) == 5
    (alone,) = measured_of([stopped])
    assert alone.failure.startswith("interrupted")
    (broken,) = measured_of([*repeats(), record(failed(FailureKind.CRASHED))])
    assert broken.failure.startswith("crashed"), "a crash does"


@pytest.mark.parametrize("times", [{"step_s": 0.0}, {"step_s": 0.1, "blocks": 0}])
def test_a_record_that_someone_edited_is_a_failed_cell(times: Any) -> None:
    (cell,) = measured_of([*repeats(count=2), record(completed(**times), sweep="edited0000")])
    assert cell.failure.startswith("damaged")
    assert len(pair(side("a", repeats()), Side("b", [cell])).pairs) == 1


def test_a_failed_cell_is_paired_by_its_plan() -> None:
    broken = side("b", [record(failed(), plan=plan())])
    found = pair(side("a", repeats()), broken)
    assert len(found.pairs) == 1
    assert found.pairs[0].b.failure.startswith("out of memory")
