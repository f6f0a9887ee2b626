"""A checkpoint in the hub's layout: the same logits from every framework, or a message that names file and fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import WeightsError
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Proving, Settings
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.launch import run_cell
from metalmark.workloads import bert, ceiling
from metalmark.workloads.bert import Shape, shape_of

save_file = pytest.importorskip("safetensors.numpy").save_file
SHAPE = Shape(layers=2, hidden=24, heads=3, inner=40, vocabulary=50)
CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 50,
    "hidden_act": "gelu",
    "model_type": "bert",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("checkpoint"))


def write(folder: Path, *, prefix: str = "bert.", **changes: object) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        f"{prefix}{name}".replace("LayerNorm.weight", "LayerNorm.gamma"): rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in bert.shapes(SHAPE).items()
    }
    save_file({**arrays, "cls.predictions.bias": np.zeros(50, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


NUMBERS = """
import json, sys
import numpy as np
from metalmark.workloads.catalog import load
found = {}
cells = {"ceiling-matmul": {"batch_size": 4, "width": 6}, "ceiling-copy": {"batch_size": 1, "megafloats": 1}}
for name, params in cells.items():
    workload = load(name)
    model = workload.recipe(sys.argv[2], params).model
    (numbers,) = workload.batch(params, np.random.default_rng(0)).inputs
    if sys.argv[2] == "torch":
        import torch
        output = model(torch.from_numpy(numbers)).detach().numpy()
        weights = [p.detach().numpy().T for p in model.parameters()]
    elif sys.argv[2] == "keras":
        output, weights = np.asarray(model(numbers)), [np.asarray(w) for w in model.weights]
    else:
        from mlx import core as mx
        from mlx.utils import tree_flatten
        output = np.array(model(mx.array(numbers)))
        weights = [np.array(w).T for _, w in tree_flatten(model.parameters())]
    expected = numbers
    for weight in weights:
        expected = expected @ weight if weight.ndim == 2 else expected * weight
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-6)
    found[name] = [len(weights), list(output.shape)]
params = {"batch_size": 2, "seq_len": 7, "size": "base", "attention": "sdpa", "weights": sys.argv[1]}
model = load("bert").recipe(sys.argv[2], params).model
tokens = (np.arange(14, dtype=np.int32).reshape(2, 7) * 5) % 50
top = np.linspace(-1, 1, 48, dtype=np.float32).reshape(2, 24)
if sys.argv[2] == "torch":
    import torch
    model.eval()
    with torch.no_grad():
        model.model.classifier.weight.copy_(torch.from_numpy(top))
        model.model.classifier.bias.zero_()
        logits = model(torch.from_numpy(tokens)).numpy()
elif sys.argv[2] == "keras":
    model.weights[-2].assign(top.T)
    logits = np.asarray(model(tokens, training=False))
else:
    from mlx import core as mx
    model.eval()
    model.classifier.weight, model.classifier.bias = mx.array(top), mx.zeros(2)
    logits = np.array(model(mx.array(tokens)))
print(json.dumps({**found, "logits": logits.tolist()}))
"""


@cache
def numbers(framework: str, folder: Path) -> dict[str, Any]:
    """What a framework computes, in one process: the checkpoint's logits, and what the ceilings do."""
    found = FRAMEWORKS[framework]
    if found.missing():
        pytest.skip(f"{framework} is not installed")
    run = subprocess.run(
        [sys.executable, "-c", NUMBERS, str(folder), found.family],
        env={**os.environ, **found.environment(Settings())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return dict(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "mlx"])
def test_every_framework_reads_the_same_network(framework: str, folder: Path) -> None:
    expected, got = (np.array(numbers(name, folder)["logits"]) for name in ("torch", framework))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_the_ceilings_do_the_arithmetic_that_is_counted(framework: str, folder: Path) -> None:
    found = numbers(framework, folder)
    assert found["ceiling-matmul"] == [ceiling.PRODUCTS, [4, 6]]
    assert found["ceiling-copy"] == [1, [1, ceiling.MEGA]]


def make_plan(weights: Path) -> Plan:
    return Plan(
        workload="bert",
        params={"batch_size": 4, "seq_len": 7, "size": "base", "attention": "sdpa", "weights": str(weights)},
        mode=Mode.TRAINING,
        framework="torch",
        device=Device(kind=DeviceKind.CPU),
        budget=Budget(steps=4, seconds=0.2),
        proof=Proving.STRICT,
    )


def test_a_cell_says_which_network_it_was(folder: Path) -> None:
    outcome = run_cell(make_plan(folder)).outcome
    assert isinstance(outcome, Completed), outcome
    assert "2 layers of 24" in " ".join(outcome.notes)
    assert outcome.parameters < 100_000


def test_the_file_itself_will_do_and_config_decides(folder: Path) -> None:
    assert shape_of({"size": "large", "weights": str(folder / "model.safetensors")}) == SHAPE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "activation is relu"),
        ({"num_attention_heads": 5}, "can't be shared by 5 heads"),
        ({"max_position_embeddings": 128}, "512 positions"),
        ({"vocab_size": "many"}, "not a BERT's"),
    ],
)
def test_a_config_that_does_not_fit_is_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        shape_of({"size": "base", "weights": str(write(tmp_path, **changes))})


def test_arrays_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, intermediate_size=41)
    with pytest.raises(WeightsError, match=r"encoder\.layer\.0\.intermediate\.dense\.weight has the shape \(40, 24\)"):
        bert.arrays({"size": "base", "weights": str(folder)})


def test_a_missing_config_and_an_empty_folder_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="neither model"):
        shape_of({"size": "base", "weights": str(tmp_path)})
    write(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match="put them together"):
        shape_of({"size": "base", "weights": str(tmp_path)})


def test_a_cell_with_bad_weights_is_a_failed_cell(tmp_path: Path) -> None:
    outcome = run_cell(make_plan(tmp_path)).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is not FailureKind.CRASHED
    assert "neither" in outcome.message
