"""The image workloads are the same networks in every framework: features, counts, work, and what is frozen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Settings
from metalmark.runner.launch import run_cell
from metalmark.workloads import mobilenet_v2, resnet50, vgg16, vision
from metalmark.workloads.catalog import load
from tests.workloads.vision_checks import WORKLOADS, parameters, plan, sizes

ROOT = Path(__file__).parents[2]
# Backbone, head: torchvision's published counts less their tops, and heads by hand.
COUNTS = {
    "resnet50-transfer": (25_557_032 - 2_049_000, 2048 * 10 + 10),
    "mobilenet-cifar10": (3_504_872 - 1_281_000, 1280 * 10 + 10),
    "vgg16-flowers": (138_357_544 - 123_642_856, 25088 * 512 + 512 + 512 * 102 + 102),
}
PAIRS = [
    (framework, architecture, pixels)
    for framework in ("tensorflow", "jax", "mlx")
    for architecture, workload in WORKLOADS.items()
    if framework in load(workload).info.frameworks
    for pixels in sizes(framework, architecture)
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


@cache
def answer(framework: str, folder: Path) -> dict[str, Any]:
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
    if framework != "torch":
        answer("torch", folder)
    run = subprocess.run(
        [sys.executable, "-m", "tests.workloads.vision_checks", framework, str(folder)],
        env={**os.environ, **FRAMEWORKS[framework].environment(Settings())},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(json.loads((folder / f"{framework}.json").read_text()))


@pytest.mark.parametrize(("framework", "architecture", "pixels"), PAIRS)
def test_the_same_weights_give_the_same_features(framework: str, architecture: str, pixels: int, folder: Path) -> None:
    """The best proof that two networks are the same one: padding, strides, epsilons and layouts included."""
    answer(framework, folder)
    expected, got = (np.load(folder / f"{name}-{architecture}-{pixels}.npy") for name in ("torch", framework))
    assert expected.std() > 0.1, "a dead network proves nothing"
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=3e-4)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mlx"])
def test_counts_agree_to_the_last_parameter(framework: str, folder: Path) -> None:
    for name, found in answer(framework, folder)["counts"].items():
        backbone, head = COUNTS[name]
        assert found == {"head": [backbone + head, head], "all": [backbone + head, backbone + head]}, name


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mlx"])
def test_a_frozen_backbone_is_frozen_and_its_statistics_too(framework: str, folder: Path) -> None:
    found = answer(framework, folder)["moved"]
    assert found["head"] == {"head": True, "weights": False, "statistics": False}
    if "all" in found:
        assert found["all"] == {"head": True, "weights": True, "statistics": True}


def test_work_is_what_pytorch_counts(folder: Path) -> None:
    for name, (counted, ours) in answer("torch", folder)["flops"].items():
        assert ours == pytest.approx(counted, rel=0.05), name


def test_pytorchs_own_files_are_read_without_it(folder: Path) -> None:
    assert answer("torch", folder)["pth"]


@pytest.mark.parametrize("name", COUNTS)
def test_a_training_steps_work(name: str) -> None:
    factor = load(name).training_factor
    assert callable(factor)
    assert 1.0 < factor(parameters(name, pixels=224, train="head")) < 1.01
    assert 2.9 < factor(parameters(name, pixels=224, train="all")) < 3.0


def test_work_of_a_head_by_hand() -> None:
    """VGG16's head at 32 pixels: two products for its first layer, which nothing below needs, three for its second."""
    workload, params = load("vgg16-flowers"), parameters("vgg16-flowers")
    assert workload.flops is not None
    assert callable(workload.training_factor)
    first, second = 2 * 25088 * 512, 2 * 512 * 102
    extra = workload.flops(params) * (workload.training_factor(params) - 1)
    assert extra == pytest.approx(first + 2 * second)


def test_shapes_hold_no_array_twice() -> None:
    for backbone in (resnet50.BACKBONE, mobilenet_v2.BACKBONE, vgg16.BACKBONE):
        shapes = backbone.shapes()
        assert len(shapes) == sum(len(conv.shapes()) for conv in backbone.convolutions())
        assert {name: array.shape for name, array in backbone.arrays("none").items()} == shapes


def test_batches_are_normalised_images() -> None:
    rng = np.random.default_rng(0)
    (centred,) = load("mobilenet-cifar10").batch(parameters("mobilenet-cifar10"), rng).inputs
    assert (centred.min(), centred.max()) == (-1, 1)
    (published,) = load("mobilenet-cifar10").batch(parameters("mobilenet-cifar10", weights="imagenet"), rng).inputs
    batch = load("vgg16-flowers").batch(parameters("vgg16-flowers", batch_size=64), rng)
    for images in (published, batch.inputs[0]):
        assert images.dtype == np.float32
        mean, deviation = (np.array(each, np.float32) for each in vision.IMAGENET)
        back = (images * deviation + mean) * 255
        assert np.abs(back - back.round()).max() < 1e-3
        assert (back.round().min(), back.round().max()) == (0, 255)
    assert set(batch.targets) <= set(range(102))
    assert max(batch.targets) >= 10


def test_the_rate_decays_by_steps_not_samples() -> None:
    assert mobilenet_v2.decay({"batch_size": 64}) == (0.96, 782)


@pytest.mark.parametrize(
    ("workload", "framework", "train"),
    [
        ("mobilenet-cifar10", "torch", "all"),
        ("mobilenet-cifar10", "tensorflow", "head"),
        ("mobilenet-cifar10", "mlx", "head"),
        ("resnet50-transfer", "torch", "head"),
        ("vgg16-flowers", "torch", "head"),
    ],
)
def test_training_proves_its_work(workload: str, framework: str, train: str) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    small = plan(workload, framework, train=train, batch_size=8)
    outcome = run_cell(msgspec.structs.replace(small, budget=Budget(steps=4, seconds=0.1))).outcome
    assert isinstance(outcome, Completed), outcome
    assert outcome.proof.last < outcome.proof.first
    backbone, head = COUNTS[workload]
    assert outcome.parameters == backbone + head
    assert outcome.trainable_parameters == (head if train == "head" else backbone + head)
