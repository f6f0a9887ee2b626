"""BERT is the same network everywhere: counts agree to the last parameter, dropout is on, every row differs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Proving
from metalmark.runner.launch import run_cell
from metalmark.workloads.bert import LABELS, MAX_POSITIONS, SHAPES, TYPES, Shape, make_batch
from metalmark.workloads.catalog import load
from tests.processes import QUICKLY_COMPILED

SMALL = {"batch_size": 4, "seq_len": 12, "size": "tiny", "attention": "sdpa"}


def count(shape: Shape) -> int:
    """By hand: embeddings and their norm, the layers, the pooler, the classifier."""
    hidden, inner = shape.hidden, shape.inner
    embeddings = (shape.vocabulary + MAX_POSITIONS + TYPES) * hidden + 2 * hidden
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 2 * hidden * inner + inner + hidden
    layer = attention + feed_forward + 2 * 2 * hidden
    return embeddings + shape.layers * layer + hidden * hidden + hidden + hidden * LABELS + LABELS


def test_base_is_the_size_everybody_knows() -> None:
    assert count(SHAPES["base"]) == 108_311_810
    assert count(SHAPES["large"]) == 333_581_314


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_every_framework_trains_the_same_network(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    if framework == "jax":
        monkeypatch.setenv("XLA_FLAGS", QUICKLY_COMPILED)
    plan = Plan(
        workload="bert",
        params=SMALL,
        mode=Mode.TRAINING,
        framework=framework,
        device=Device(kind=DeviceKind.CPU),
        budget=Budget(steps=10, seconds=0.2),
        proof=Proving.STRICT,
    )
    outcome = run_cell(plan).outcome
    assert isinstance(outcome, Completed), outcome
    assert outcome.parameters == outcome.trainable_parameters == count(SHAPES["tiny"])


def test_every_row_has_other_tokens_and_both_labels_occur() -> None:
    batch = make_batch({**SMALL, "batch_size": 16, "seq_len": 32}, np.random.default_rng(0))
    (tokens,) = batch.inputs
    assert len({row.tobytes() for row in tokens}) == 16
    assert np.bincount(batch.targets).tolist() == [8, 8]


IN_TORCH = """
import torch
from torch.utils.flop_counter import FlopCounterMode
from metalmark.workloads.catalog import load
import numpy as np
workload = load("bert")
for attention in ("eager", "sdpa"):
    params = {"batch_size": 2, "seq_len": 64, "size": "mini", "attention": attention}
    model = workload.recipe("torch", params).model
    tokens = torch.from_numpy(workload.batch(params, np.random.default_rng(0)).inputs[0])
    model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        first = model(tokens)
        second = model(tokens)
    assert torch.equal(first, second)
    counted, ours = counter.get_total_flops() / 2 / 2, workload.flops(params)
    assert abs(ours / counted - 1) < 0.05, (attention, ours, counted)
    model.train()
    assert not torch.equal(model(tokens), model(tokens)), "dropout is on in training"
# Logits without a mask are those with one that hides nothing.
model = workload.recipe("torch", {"batch_size": 2, "seq_len": 9, "size": "tiny", "attention": "sdpa"}).model.eval()
tokens = torch.randint(0, 1000, (2, 9))
with torch.no_grad():
    assert torch.equal(model(tokens), model.model(input_ids=tokens).logits)
print("good")
"""


def test_flops_agree_with_pytorchs_counter_dropout_is_on_and_no_mask_changes_nothing() -> None:
    if FRAMEWORKS["torch"].missing():
        pytest.skip("torch is not installed")
    run = subprocess.run([sys.executable, "-c", IN_TORCH], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "good", run.stderr[-2000:]


def test_a_sequence_has_at_most_512_tokens() -> None:
    (param,) = [param for param in load("bert").params if param.name == "seq_len"]
    assert param.maximum == MAX_POSITIONS
