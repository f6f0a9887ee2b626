"""What validation counts, by what a network learns, on outputs that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metalmark.errors import UnsupportedError, WrongResultError
from metalmark.model.run import Absent
from metalmark.model.workload import Task
from metalmark.training.metrics import Tally

FLOAT, INT = np.float32, np.int32


def counted(*batches: tuple[object, object], task: Task | None = None, inputs: object = None) -> Tally:
    tally = Tally(task)
    for outputs, targets in batches:
        tally.add(1.0, outputs, targets, inputs=inputs)
    return tally


def test_top_1_and_top_5() -> None:
    scores = np.tile(np.arange(10, dtype=FLOAT), (4, 1))  # class 9 is first, 8 second ...
    tally = counted((scores, np.array([9, 8, 5, 4], INT)))
    assert tally.task is Task.CLASSIFICATION
    assert tally.accuracy == 0.25
    assert tally.top5 == 0.75


def test_equal_scores_are_not_all_right() -> None:
    tally = counted((np.zeros((10, 10), FLOAT), np.arange(10, dtype=INT)))
    assert tally.accuracy == 0.1
    assert tally.top5 == 0.5


def test_top_5_of_few_classes_says_nothing() -> None:
    assert isinstance(counted((np.eye(5, dtype=FLOAT), np.arange(5, dtype=INT))).top5, Absent)


def test_a_validation_loss_that_is_not_finite() -> None:
    tally = Tally()
    tally.add(float("nan"), np.eye(6, dtype=FLOAT), np.arange(6, dtype=INT))
    with pytest.raises(WrongResultError, match="validation loss is nan"):
        _ = tally.loss


def test_one_hot_targets_are_classes_and_several_are_labels() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, -1.0], [-2.0, -1.0, 4.0]], FLOAT)
    hot = np.eye(3, dtype=FLOAT)
    tally = counted((scores, hot[[0, 1, 0]]))
    assert (tally.task, tally.accuracy) == (Task.CLASSIFICATION, pytest.approx(2 / 3))
    # A later batch with two labels in a row says what the first one did not.
    tally = counted((scores, hot[[0, 1, 2]]), (scores[:1], np.array([[1, 0, 1]], FLOAT)))
    figures = tally.figures()
    assert tally.task is Task.MULTILABEL
    # Above 0 are 3, 1 and 2; 5; 4; 3, 1 and 2: nine labels of twelve are right, no row but the second and the third.
    assert figures.accuracy == pytest.approx(9 / 12)
    assert figures.metrics == {"f1": pytest.approx(2 * 5 / (2 * 5 + 3)), "exact_match": 0.5}


def test_outputs_that_are_all_between_0_and_1_are_probabilities() -> None:
    targets = np.array([[1, 1, 0], [0, 1, 1]], FLOAT)
    told = np.array([[0.9, 0.6, 0.2], [0.4, 0.1, 0.8]], FLOAT)
    assert counted((told, targets)).accuracy == pytest.approx(5 / 6)
    assert counted((told, targets), (told - 1, targets)).accuracy == pytest.approx((4 + 2) / 12), "now they are logits"


def test_one_answer_of_yes_or_no_per_sample() -> None:
    tally = counted((np.array([[2.0], [-1.0], [0.5]], FLOAT), np.array([1, 1, 1], INT)))
    figures = tally.figures()
    assert (tally.task, figures.accuracy) == (Task.CLASSIFICATION, pytest.approx(2 / 3))
    assert set(figures.metrics) == {"f1"}


def test_a_regression_over_batches_of_any_size() -> None:
    rng = np.random.default_rng(1)
    targets = (1e4 + rng.normal(size=(13, 2))).astype(FLOAT)
    outputs = (targets + rng.normal(scale=0.1, size=targets.shape)).astype(FLOAT)
    tally = counted(*((outputs[at : at + 4], targets[at : at + 4]) for at in range(0, 13, 4)))
    figures, error = tally.figures(), outputs.astype(float) - targets
    assert tally.task is Task.REGRESSION
    assert isinstance(figures.accuracy, Absent)
    spread = np.square(targets.astype(float) - targets.astype(float).mean(axis=0)).sum()
    assert figures.metrics["mae"] == pytest.approx(np.abs(error).mean())
    assert figures.metrics["rmse"] == pytest.approx(math.sqrt(np.square(error).mean()))
    assert figures.metrics["r2"] == pytest.approx(1 - np.square(error).sum() / spread, rel=1e-6)


def test_a_column_of_targets_is_not_subtracted_from_a_row_of_outputs() -> None:
    """NumPy would make a table of (3, 1) - (3,)."""
    figures = counted((np.array([[1.5], [2.0], [4.0]], FLOAT), np.array([1.0, 2.0, 3.0], FLOAT))).figures()
    assert figures.metrics["mae"] == pytest.approx(0.5)


@pytest.mark.parametrize("flat", [False, True])
def test_a_language_model_is_counted_by_position(flat: bool) -> None:
    tokens = np.array([[1, 2, 3], [4, 0, 2]], INT)
    scores = np.eye(5, dtype=FLOAT)[np.array([[2, 3, 0], [0, 2, 1]])]
    wanted = np.array([[2, 3, 4], [0, 2, -100]], INT)  # the last is padding
    tally = counted((scores.reshape(-1, 5) if flat else scores, wanted), inputs={"tokens": tokens})
    figures = tally.figures()
    assert tally.task is Task.LANGUAGE
    assert figures.accuracy == pytest.approx(4 / 5)
    assert figures.metrics == {"perplexity": pytest.approx(math.e)}
    assert isinstance(figures.top5, Absent)


def test_tags_of_tokens_are_classes() -> None:
    tokens, tags = np.array([[100, 250]], INT), np.array([[0, 2]], INT)
    tally = counted((np.zeros((1, 2, 3), FLOAT), tags), inputs=(tokens,))
    assert (tally.task, tally.accuracy) == (Task.CLASSIFICATION, 0.5)


def test_a_language_model_that_computes_its_own_loss_has_a_perplexity() -> None:
    tally = counted((np.zeros((2, 3, 5), FLOAT), None), task=Task.LANGUAGE)
    figures = tally.figures()
    assert figures.metrics == {"perplexity": pytest.approx(math.e)}
    assert isinstance(figures.accuracy, Absent)


@pytest.mark.parametrize("first", [False, True])
def test_segmentation_with_classes_first_or_last(first: bool) -> None:
    wanted = np.array([[[0, 0, 1], [1, 2, 255]]], INT)  # 255 is no class
    chosen = np.array([[[0, 1, 1], [1, 1, 0]]])
    scores = np.eye(4, dtype=FLOAT)[chosen]
    tally = counted((np.moveaxis(scores, -1, 1) if first else scores, wanted))
    figures = tally.figures()
    assert tally.task is Task.SEGMENTATION
    assert figures.accuracy == pytest.approx(3 / 5)
    # Class 0: 1 of 2; class 1: 2 of 4; class 2: 0 of 1; class 3 does not occur.
    assert figures.metrics == {"mean_iou": pytest.approx((1 / 2 + 2 / 4 + 0) / 3)}


def test_masks_of_one_class() -> None:
    wanted = np.array([[[1, 1], [0, 0]]], FLOAT)[..., np.newaxis]
    told = np.array([[[0.9, 0.2], [0.7, 0.1]]], FLOAT)[..., np.newaxis]
    figures = counted((told, wanted), task=Task.SEGMENTATION).figures()
    assert figures.accuracy == 0.5
    assert figures.metrics["mean_iou"] == pytest.approx(1 / 3)


def test_the_output_that_fits_the_targets_is_counted() -> None:
    """An auto-encoder returns more than what is compared, and perhaps its loss."""
    pictures = np.random.default_rng(0).random((4, 6)).astype(FLOAT)
    tally = counted(({"code": np.zeros((4, 2), FLOAT), "loss": np.float32(1), "picture": pictures}, pictures))
    assert tally.task is Task.REGRESSION
    assert tally.figures().metrics["mae"] == 0.0


def test_what_cannot_be_told_names_the_shapes_and_the_fix() -> None:
    tally = counted((np.zeros((4, 3, 2), FLOAT), np.zeros(4, INT)))
    figures = tally.figures()
    assert tally.task is None
    assert figures.loss == 1.0, "it can be trained all the same"
    assert isinstance(figures.accuracy, Absent)
    for part in ("float32 (4, 3, 2)", "int32 (4,)", "task=", "metrics="):
        assert part in figures.accuracy.reason


def test_a_task_that_does_not_fit_is_refused_with_what_it_wants() -> None:
    with pytest.raises(UnsupportedError, match=r"task='segmentation' does not fit: .*float32 \(4, 3\)") as caught:
        counted((np.zeros((4, 3), FLOAT), np.full((4, 3), 0.5, FLOAT)), task=Task.SEGMENTATION)
    assert "masks of 0 and 1" in caught.value.hint


def test_a_task_may_be_written_as_its_word() -> None:
    tally = Tally("language")
    tally.add(1.0, np.zeros((2, 3, 5), FLOAT), None)
    assert "perplexity" in tally.figures().metrics
    with pytest.raises(UnsupportedError, match="task='regresion' is no task") as caught:
        Tally("regresion")
    assert "regression" in caught.value.hint


def test_the_users_own_metrics_are_means_over_samples() -> None:
    tally = Tally(None, {"size": lambda outputs, _: float(len(outputs["a"])), "once": _once})
    for size in (3, 1):
        tally.add(1.0, {"a": np.zeros((size, 2), FLOAT)}, {"b": np.zeros(size), "c": np.zeros(size)})
    metrics = tally.figures().metrics
    assert metrics["size"] == pytest.approx((3 * 3 + 1) / 4)
    assert metrics["once"] == 5.0, "a batch that says nothing is not counted"


def _once(outputs: dict[str, np.ndarray], _: object) -> float:
    return 5.0 if len(outputs["a"]) == 3 else math.nan


def test_an_accuracy_of_the_users_own_is_the_accuracy() -> None:
    tally = Tally(None, {"accuracy": lambda *_: 0.25})
    tally.add(1.0, np.eye(6, dtype=FLOAT), np.arange(6, dtype=INT))
    figures = tally.figures()
    assert (figures.accuracy, figures.metrics) == (0.25, {})


def test_a_metric_that_fails_is_named_with_what_it_got() -> None:
    tally = Tally(None, {"area": lambda outputs, _: outputs[99]})
    with pytest.raises(UnsupportedError, match=r"metric 'area' failed: IndexError.*float32 \(2, 3\)") as caught:
        tally.add(1.0, np.zeros((2, 3), FLOAT), np.zeros(2, INT))
    assert "area(outputs, targets)" in caught.value.hint


@pytest.mark.parametrize("name", ["val_loss", "train_loss", "a b", "f1=2", ""])
def test_names_that_mean_something_else(name: str) -> None:
    with pytest.raises(UnsupportedError):
        Tally(None, {name: lambda *_: 0.0})
