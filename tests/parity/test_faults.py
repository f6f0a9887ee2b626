"""Each fault of the software device is found, and named at its layer and quantity; without one, nothing is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metalmark.errors import UnsupportedError, UsageError
from metalmark.model.parity import Quantity
from metalmark.model.plan import Dtype
from metalmark.parity.distance import Key
from metalmark.parity.fake import SIDE
from metalmark.parity.job import MeasuredArray, Options
from metalmark.parity.judge import judge
from metalmark.parity.truth import Truth, TruthWriter
from metalmark.workloads.fake import PARITY_FAULTS
from tests.parity.in_process import BRIEF, Check

FIRST_NAMED = {
    "batch-statistics-in-eval": (Quantity.EVAL_OUTPUT, "norm"),
    "conv-batch-9": (Quantity.EVAL_OUTPUT, "dense"),
    "adam-epsilon": (Quantity.OPTIMIZER, "dense.weight"),
    "gradient-scale": (Quantity.GRADIENT, "head.weight"),
    "no-dropout": (Quantity.DROPOUT, "dropout"),
    "stale-variance": (Quantity.STATISTIC, "norm.running_var"),
    "float16-sums": (Quantity.EVAL_OUTPUT, "dense"),
    "shifted-labels": (Quantity.LOSS, ""),
    "norm-epsilon": (Quantity.EVAL_OUTPUT, "norm"),
    "decay-biases": (Quantity.OPTIMIZER, "head.bias"),
    "race": (Quantity.REPEAT, "head"),
}
REFUSED = {
    "nan": "not finite",
    "random": "not deterministic: the same step gave",
    "untrainable": "no trainable parameters",
}
UNTIL_IT_RACES = Options(repeats=3000, repeat_s=600.0, seeds=0)


def test_every_fault_is_expected_to_be_seen_somewhere() -> None:
    assert set(FIRST_NAMED) | set(REFUSED) | {"edge"} == set(PARITY_FAULTS)


@pytest.mark.parametrize("fault", FIRST_NAMED)
def test_a_fault_is_named_where_it_is(fault: str, tmp_path: Path) -> None:
    options = UNTIL_IT_RACES if fault == "race" else BRIEF
    check = Check(SIDE, tmp_path, "fake", {"fault": f"parity-{fault}"}, options=options)
    check.examine_reference()
    differences = [row for row in check.compare() if not row.agrees]
    assert differences
    assert (differences[0].quantity, differences[0].name) == FIRST_NAMED[fault]


def test_eight_samples_are_not_nine(tmp_path: Path) -> None:
    """The fault that begins with the ninth sample is not there before it."""
    check = Check(SIDE, tmp_path, "fake", {"fault": "parity-conv-batch-9", "batch_size": 8})
    check.examine_reference()
    assert all(row.agrees for row in check.compare())


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_without_a_fault_nothing_differs(dtype: Dtype, tmp_path: Path) -> None:
    options = Options(repeats=20, seeds=3, curve_s=0.1)
    for seed in range(3):
        check = Check(SIDE, tmp_path, "fake", {}, dtype=dtype, options=options, seed=seed)
        check.examine_reference()
        compared = check.compare()
        assert {row.quantity for row in compared} == set(Quantity) - {Quantity.ACCURACY}
        assert [row for row in compared if not row.agrees] == []


@pytest.mark.parametrize(("fault", "sentence"), REFUSED.items())
def test_a_reference_that_nothing_can_be_compared_with(fault: str, sentence: str, tmp_path: Path) -> None:
    check = Check(SIDE, tmp_path, "fake", {"fault": f"parity-{fault}"})
    with pytest.raises(UnsupportedError, match=sentence):
        check.examine_reference()


def test_a_fault_that_does_not_exist(tmp_path: Path) -> None:
    check = Check(SIDE, tmp_path, "fake", {"fault": "parity-rase"})
    with pytest.raises(UsageError, match="no fault 'parity-rase'") as caught:
        check.examine_reference()
    assert "parity-race" in str(caught.value.hint)


def _measured(quantity: Quantity, steps: int, array: np.ndarray, folder: Path, draw: str = "") -> MeasuredArray:
    """How far an array is from one of 128 elements, all 1."""
    key = Key(quantity=quantity, name="weight", steps=steps)
    writer = TruthWriter(folder)
    writer.add(key, np.ones_like(array))
    writer.close()
    distance = Truth(folder).distance(key, array)
    assert distance is not None
    return MeasuredArray(draw=draw, distance=distance)


@pytest.mark.parametrize(("turned", "verdict"), [(0, True), (1, True), (20, False)])
def test_one_element_may_turn_round(turned: int, verdict: bool, tmp_path: Path) -> None:
    """Adam's first step has one size for all elements: one whose gradient is nearly zero may go either way."""
    given = np.ones(128)
    given[:turned] = -1
    reference = [_measured(Quantity.UPDATE, 1, np.full(128, 1 + 1e-7), tmp_path, "float32")]
    (row,) = judge(reference, [_measured(Quantity.UPDATE, 1, given, tmp_path)], Dtype.FLOAT32)
    assert row.agrees is verdict


@pytest.mark.parametrize(("elements", "verdict"), [(1, True), (2, True), (128, False)])
def test_what_few_numbers_tell_is_allowed_more(elements: int, verdict: bool, tmp_path: Path) -> None:
    """Two draws of one number may both be near the truth by chance; two of 128 numbers are not."""
    draws = [_measured(Quantity.GRADIENT, 0, np.full(elements, 1 + 1e-6), tmp_path, name) for name in ("a", "b")]
    rows = judge(draws, [_measured(Quantity.GRADIENT, 0, np.full(elements, 1 + 1.5e-5), tmp_path)], Dtype.FLOAT32)
    assert [row.agrees for row in rows] == [verdict]


@pytest.mark.parametrize(
    ("quantity", "off", "verdict"),
    [
        (Quantity.STATISTIC, 1.3e-6, True),
        (Quantity.STATISTIC, 2e-5, False),
        (Quantity.TRAIN_OUTPUT, 1.3e-6, False),
    ],
)
def test_a_running_statistic_may_be_added_up_one_after_another(
    quantity: Quantity, off: float, verdict: bool, tmp_path: Path
) -> None:
    """The reference adds up in pairs and leaves one rounding; of 16,384 values in a row 1.3e-6 were seen."""
    draws = [_measured(quantity, 0, np.full(128, 1 + 6e-8), tmp_path, f"draw {number}") for number in range(6)]
    given = 1 + off * np.where(np.arange(128) % 2, 1.0, -1.0)
    for dtype in (Dtype.FLOAT32, Dtype.TF32):
        rows = judge(draws, [_measured(quantity, 0, given, tmp_path)], dtype)
        assert all(row.agrees for row in rows) is (verdict or dtype is Dtype.TF32)


def test_the_noise_of_a_scale_is_told_by_other_arrays_too(tmp_path: Path) -> None:
    """By chance no draw of one array has any noise along the array; those of another show how much there is."""
    across = np.tile([1 + 1e-5, 1 - 1e-5], 64)
    along = np.full(128, 1 + 1e-5)
    found = _measured(Quantity.GRADIENT, 0, np.full(128, 1 + 8e-6), tmp_path)
    alone = judge([_measured(Quantity.GRADIENT, 0, across, tmp_path, "a")], [found], Dtype.FLOAT32)
    assert not alone[0].agrees
    other = _measured(Quantity.GRADIENT, 1, along, tmp_path, "a")
    both = judge([_measured(Quantity.GRADIENT, 0, across, tmp_path, "a"), other], [found], Dtype.FLOAT32)
    assert both[0].agrees


def test_a_later_loss_stands_behind_the_update_that_led_to_it(tmp_path: Path) -> None:
    lines = [
        _measured(quantity, steps, np.array([2.0, 2.0]), tmp_path)
        for quantity, steps in [(Quantity.LOSS, 1), (Quantity.OPTIMIZER, 1), (Quantity.LOSS, 0), (Quantity.UPDATE, 1)]
    ]
    order = [(row.quantity, row.steps) for row in judge([], lines, Dtype.FLOAT32)]
    assert order[:2] == [(Quantity.LOSS, 0), (Quantity.OPTIMIZER, 1)]
    assert set(order[2:]) == {(Quantity.LOSS, 1), (Quantity.UPDATE, 1)}
