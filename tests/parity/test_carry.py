"""Which parameter is which between frameworks, and the conventions of their optimisers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.parity.base import Slot
from metalmark.parity.carry import pair
from metalmark.parity.conventions import adam_epsilon, bias_correction_factor, follow_adam
from tests import processes

Shape = tuple[int, ...]


def slots(**shapes: Shape) -> list[Slot]:
    """Slots by their names, with a dot for each double underscore and a slash for each triple one."""
    named = {name.replace("___", "/").replace("__", "."): shape for name, shape in shapes.items()}
    return [
        Slot(name=name, shape=shape, statistic="running" in name or "moving" in name) for name, shape in named.items()
    ]


def test_other_names_are_paired_by_their_order() -> None:
    own = slots(layers__0__weight=(4, 4), layers__0__bias=(4,), layers__2__weight=(4, 4), layers__2__bias=(4,))
    theirs = {"0.weight": (4, 4), "0.bias": (4,), "2.weight": (4, 4), "2.bias": (4,)}
    assert list(pair(own, theirs)[0].values()) == list(theirs)


def test_the_same_names_count_more_than_the_order() -> None:
    own = slots(**{"conv3___kernel": (8, 2, 1, 1), "downsample.0___kernel": (8, 2, 1, 1), "dense___kernel": (3, 8)})
    theirs = {"body.downsample.0.weight": (8, 2, 1, 1), "body.conv3.weight": (8, 2, 1, 1), "head.weight": (3, 8)}
    assert pair(own, theirs)[0] == {
        "conv3/kernel": "body.conv3.weight",
        "downsample.0/kernel": "body.downsample.0.weight",
        "dense/kernel": "head.weight",
    }


def test_a_single_name_that_is_the_same_by_chance_is_not_believed() -> None:
    own = slots(dense___kernel=(4, 4), dense_1___kernel=(4, 4), dense_2___kernel=(4, 4))
    theirs = {"query.weight": (4, 4), "key.weight": (4, 4), "output.dense.weight": (4, 4)}
    assert list(pair(own, theirs)[0].values()) == list(theirs)


def test_arrays_that_come_later_in_one_framework_are_found_by_their_shape() -> None:
    own = slots(a=(4,), b=(8, 4), down=(2, 4), up=(4, 2))
    theirs = {"norm": (4,), "lora.down": (2, 4), "lora.up": (4, 2), "inner": (8, 4)}
    assert pair(own, theirs)[0] == {"a": "norm", "b": "inner", "down": "lora.down", "up": "lora.up"}


def test_running_statistics_are_paired_with_each_other_and_a_note_tells_of_them() -> None:
    own = slots(bn___gamma=(4,), bn___beta=(4,), bn___moving_mean=(4,), bn___moving_variance=(4,))
    theirs = {"1.weight": (4,), "1.bias": (4,), "1.running_var": (4,), "1.running_mean": (4,)}
    found, notes = pair(own, theirs, frameworks=("torch", "jax"))
    assert found["bn/moving_mean"] == "1.running_mean"
    assert found["bn/moving_variance"] == "1.running_var"
    assert "n - 1" in notes[0]
    assert any("epsilon" in note for note in notes)
    assert not any("epsilon" in note for note in pair(own, theirs, frameworks=("torch", "mlx"))[1])


def test_the_first_array_that_does_not_fit_is_named() -> None:
    own = slots(a__weight=(4, 4), b__weight=(5, 4))
    with pytest.raises(UnsupportedError, match=r"fits b\.weight \(5, 4\).* y\.weight \(6, 4\)"):
        pair(own, {"x.weight": (4, 4), "y.weight": (6, 4)})
    with pytest.raises(UnsupportedError, match=r"b\.weight \(5, 4\).* nothing"):
        pair(own, {"x.weight": (4, 4)})
    with pytest.raises(UnsupportedError, match=r"z\.weight \(1,\) has no counterpart"):
        pair(own, {"x.weight": (4, 4), "y.weight": (5, 4), "z.weight": (1,)})


def test_keras_epsilon_counts_before_the_bias_correction() -> None:
    rate, beta1, beta2, epsilon = 1e-3, 0.9, 0.999, 1e-4
    gradient, step = 1e-3, 3
    mean, square = gradient * (1 - beta1**step), gradient**2 * (1 - beta2**step)
    keras = rate * np.sqrt(1 - beta2**step) / (1 - beta1**step) * mean / (np.sqrt(square) + epsilon)
    theirs = adam_epsilon(epsilon, beta2=beta2, step=step)
    torch = rate * (mean / (1 - beta1**step)) / (np.sqrt(square / (1 - beta2**step)) + theirs)
    assert torch == pytest.approx(keras, rel=1e-12)


def test_a_bias_correction_in_float32_loses_digits_at_first() -> None:
    # Keras and MLX were measured to be 6.65e-6 behind PyTorch in their first step.
    assert bias_correction_factor((0.9, 0.999), 1) == pytest.approx(1 - 6.67e-6, abs=5e-8)
    assert bias_correction_factor((0.9, 0.999), 20_000) == pytest.approx(1, abs=1e-7)


def test_only_pytorchs_adam_follows() -> None:
    class Adam:
        """Of another framework, without PyTorch's hooks."""

    follow_adam([Adam()], "mlx")


@pytest.fixture(scope="module")
def given_by_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carried")
    if not FRAMEWORKS["torch"].missing():
        run = processes.run([sys.executable, "-m", "tests.parity.carried", "torch", str(folder)])
        assert run.stdout.endswith("good"), run.stderr[-3000:]
    return folder


@pytest.mark.skipif(bool(FRAMEWORKS["torch"].missing()), reason="torch is not installed")
@pytest.mark.parametrize("framework", ["mlx", "tensorflow"])
def test_the_same_weights_give_the_same_outputs_and_train_alike(framework: str, given_by_torch: Path) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    command = [sys.executable, "-m", "tests.parity.carried", framework, str(given_by_torch)]
    run = processes.run(command, KERAS_BACKEND=framework)
    assert run.stdout.endswith("good"), run.stderr[-3000:]
