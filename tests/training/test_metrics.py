"""Accuracy, top-5 and ranks on outputs that are known."""

from __future__ import annotations

import numpy as np
import pytest

from metalmark.errors import UnsupportedError, WrongResultError
from metalmark.model.run import Absent
from metalmark.training.loop import Tally


def test_top_1_and_top_5() -> None:
    scores = np.tile(np.arange(10, dtype=np.float32), (4, 1))  # class 9 is first, 8 second ...
    tally = Tally()
    tally.add(1.0, scores, np.array([9, 8, 5, 4], np.int32))
    assert tally.accuracy == 0.25
    assert tally.top5 == 0.75


def test_equal_scores_are_not_all_right() -> None:
    tally = Tally()
    tally.add(1.0, np.zeros((10, 10), np.float32), np.arange(10, dtype=np.int32))
    assert tally.accuracy == 0.1
    assert tally.top5 == 0.5


def test_top_5_of_few_classes_says_nothing() -> None:
    tally = Tally()
    tally.add(1.0, np.eye(5, dtype=np.float32), np.arange(5, dtype=np.int32))
    assert isinstance(tally.top5, Absent)


def test_a_validation_loss_that_is_not_finite() -> None:
    tally = Tally()
    tally.add(float("nan"), np.eye(6, dtype=np.float32), np.arange(6, dtype=np.int32))
    with pytest.raises(WrongResultError, match="validation loss is nan"):
        _ = tally.loss


def test_outputs_that_are_no_scores() -> None:
    with pytest.raises(UnsupportedError, match="a score for each class"):
        Tally().add(1.0, np.zeros((4, 3, 2), np.float32), np.zeros(4, np.int32))
