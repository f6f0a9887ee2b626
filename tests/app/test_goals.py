"""Targets, monitors and intervals as people type them."""

from __future__ import annotations

import pytest

from metalmark.app.goals import parse_interval, parse_monitor, parse_target
from metalmark.errors import UsageError
from metalmark.model.training import Metric, Target
from metalmark.training.folder import CheckpointInterval


@pytest.mark.parametrize(
    ("text", "name", "falls", "value"),
    [
        ("accuracy=86%", "accuracy", False, 0.86),
        ("accuracy=86", "accuracy", False, 0.86),
        ("acc=0.86", "accuracy", False, 0.86),
        ("val_accuracy=1", "accuracy", False, 1.0),
        ("val_loss=0.3", "val_loss", True, 0.3),
        ("validation_loss = 3e-1", "val_loss", True, 0.3),
        ("loss=2", "train_loss", True, 2.0),
        ("perplexity=20", "perplexity", True, 20.0),
        ("val_mae=0.5", "mae", True, 0.5),
        ("word_error=5%", "word_error", True, 0.05),
        ("mean_iou=60%", "mean_iou", False, 0.6),
        ("f1=0.9", "f1", False, 0.9),
        ("regret<=0.1", "regret", True, 0.1),
        ("my_loss>=3", "my_loss", False, 3.0),
        ("r2=-1", "r2", False, -1.0),
    ],
)
def test_a_target(text: str, name: str, falls: bool, value: float) -> None:
    assert parse_target(text) == Target(name=name, falls=falls, value=pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("val_loss", "NAME=VALUE"),
        ("=3", "NAME=VALUE"),
        ("f1==3", "NAME=VALUE"),
        ("f1=good", "'good' is not a number"),
        ("f1=nan", "'nan' is not a number"),
        ("accuracy=0", "share"),
        ("accuracy=101%", "at most 100%"),
    ],
)
def test_bad_targets(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_target(text)


def test_the_older_word_for_a_target() -> None:
    assert parse_target(None) is None
    assert parse_target(None, 87) == Target(name="accuracy", falls=False, value=0.87)
    with pytest.raises(UsageError, match="one and the same"):
        parse_target("val_loss=1", 87)


def test_a_monitor_and_its_direction() -> None:
    """A metric whose name says nothing rises; Keras takes it for one that falls."""
    assert parse_monitor("recall") == Metric(name="recall", falls=False)
    assert parse_monitor("val_loss") == Metric(name="val_loss", falls=True)
    assert parse_monitor("val_f1:min") == Metric(name="f1", falls=True)
    for text in ("", "f1:up", "f1=2", "a b"):
        with pytest.raises(UsageError, match="--monitor"):
            parse_monitor(text)


def test_an_interval() -> None:
    assert parse_interval("500steps") == parse_interval("500 steps") == CheckpointInterval(steps=500)
    assert parse_interval("10") == parse_interval(10) == parse_interval("10min") == CheckpointInterval(minutes=10.0)
    assert parse_interval(0.5) == CheckpointInterval(minutes=0.5)
    for text in ("0", "often", "1.5steps", "-3", "5 hours"):
        with pytest.raises(UsageError, match="--checkpoint-every"):
            parse_interval(text)
