"""gpt is the same network everywhere: equal weights give equal logits, losses and updates, cached or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError, WeightsError
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
from metalmark.runner.launch import run_cell
from metalmark.workloads import gpt
from metalmark.workloads.catalog import load
from metalmark.workloads.gpt import SHAPES, Shape
from tests.processes import QUICKLY_COMPILED

from . import gpt_figures

save_file = pytest.importorskip("safetensors.numpy").save_file
SHAPE = Shape(layers=2, hidden=24, heads=3, vocabulary=gpt_figures.VOCABULARY, positions=16)
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_embd": 24,
    "n_head": 3,
    "n_positions": 16,
    "n_ctx": 16,
    "vocab_size": gpt_figures.VOCABULARY,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
SMALL = {"batch_size": 2, "seq_len": 16, "size": "nano"}


def write(folder: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        f"transformer.{name}": rng.normal(1 if "ln_" in name else 0, 0.3, shape).astype(np.float32)
        for name, shape in gpt.shapes(SHAPE).items()
    }
    # Old files have the causal mask among the arrays; it is no weight.
    mask = {"transformer.h.0.attn.bias": np.tril(np.ones((1, 1, 16, 16), np.float32))}
    save_file({**arrays, **mask}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def figures(folder: Path) -> Any:
    """Return a function: what a framework computes with the checkpoint, each asked once."""
    known: dict[str, Any] = {}

    def of(framework: str) -> Any:
        found = FRAMEWORKS[framework]
        if found.missing():
            pytest.skip(f"{framework} is not installed")
        if framework not in known:
            run = subprocess.run(
                [sys.executable, gpt_figures.__file__, framework, str(folder)],
                env={**os.environ, "XLA_FLAGS": QUICKLY_COMPILED, **found.environment(Settings())},
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stderr[-2000:]
            known[framework] = json.loads(run.stdout.splitlines()[-1])
        return known[framework]

    return of


def test_torch_gives_the_logits_of_transformers(figures: Any) -> None:
    found = figures("torch")
    if "transformers" not in found:
        pytest.skip("transformers is not installed")
    assert np.abs(found["full"]).max() > 1
    np.testing.assert_allclose(found["full"], found["transformers"], atol=1e-4)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_prefill_and_decode_give_the_last_logits_of_the_whole(framework: str, figures: Any) -> None:
    found = figures(framework)
    last = np.array(found["full"])[:, -1]
    np.testing.assert_allclose(found["prefill"], last, atol=1e-4)
    np.testing.assert_allclose(found["decode"], last, atol=1e-4)


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "mlx"])
def test_every_framework_computes_and_trains_the_same_network(framework: str, figures: Any) -> None:
    mine, torchs = figures(framework), figures("torch")
    np.testing.assert_allclose(mine["full"], torchs["full"], atol=1e-4)
    assert mine["training"]["counts"] == torchs["training"]["counts"]
    # Each loss after the first has the updates before it in it: decay, betas and bias correction agree too.
    np.testing.assert_allclose(mine["training"]["losses"], torchs["training"]["losses"], rtol=1e-4)
    assert torchs["training"]["losses"][-1] < torchs["training"]["losses"][0]


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mlx"])
def test_lora_trains_two_adapters_per_layer_and_nothing_else(framework: str, figures: Any) -> None:
    mine = figures(framework)
    adapters = SHAPE.layers * 2 * 2 * SHAPE.hidden * 2
    assert mine["lora"]["counts"] == [count(SHAPE) + adapters, adapters]
    assert mine["training"]["counts"] == [count(SHAPE)] * 2
    # Adapters begin by adding nothing: the base alone decides the first loss.
    assert mine["lora"]["losses"][0] == pytest.approx(mine["training"]["losses"][0], rel=1e-5)
    assert mine["lora"]["losses"][-1] < mine["lora"]["losses"][0]


def count(shape: Shape) -> int:
    """By hand: words, positions, the layers, the last norm; the head is the words' weight."""
    hidden = shape.hidden
    layer = (
        4 * hidden
        + (3 * hidden * hidden + 3 * hidden)
        + (hidden * hidden + hidden)
        + (8 * hidden * hidden + 5 * hidden)
    )
    return (shape.vocabulary + shape.positions) * hidden + shape.layers * layer + 2 * hidden


def test_small_is_the_size_everybody_knows() -> None:
    assert count(Shape(layers=12, hidden=768, heads=12, vocabulary=50_257)) == 124_439_808
    assert count(SHAPES["small"]) == 124_439_808 + 47 * 768
    assert sum(int(np.prod(size)) for size in gpt.shapes(SHAPES["medium"]).values()) == count(SHAPES["medium"])


def test_the_target_of_a_token_is_the_next_one() -> None:
    batch = load("gpt").batch({**SMALL, "seq_len": 9}, np.random.default_rng(0))
    assert batch.inputs.shape == batch.targets.shape == (2, 9)
    np.testing.assert_array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])


def test_of_a_window_of_text_the_last_token_is_decoded() -> None:
    window = np.arange(17, dtype=np.int32)[np.newaxis]
    whole, last = (
        gpt.make_sample({**SMALL, "phase": phase}, window[:, :-1], window[:, 1:]) for phase in ("full", "decode")
    )
    assert whole.inputs.shape == (1, 16)
    assert (last.inputs.tolist(), last.targets.tolist()) == ([[15]], [[16]])


def test_tokens_are_those_that_a_step_computes() -> None:
    assert [gpt.tokens_per_sample({**SMALL, "phase": phase}) for phase in gpt.Phase] == [16, 16, 1]


def test_operations_are_those_of_the_phase() -> None:
    full, prefill, decode = (gpt.forward_flops({**SMALL, "phase": phase}) for phase in gpt.Phase)
    head = 2.0 * 128 * 256
    assert full - prefill == 15 * head
    assert decode == prefill / 16 + 15 / 16 * head
    # Six operations per weight and token, and the attention beside them.
    weights = 4 * 12 * 128**2 + 128 * 256
    assert 3 * full == 6.0 * 16 * weights + 3 * 4 * 4 * 16 * 16 * 128


def test_frozen_weights_cost_no_gradient_of_their_own() -> None:
    assert gpt.training_factor(SMALL) == 3.0
    assert 2.0 < gpt.training_factor({**SMALL, "lora": 8}) < 2.2


def test_training_a_phase_of_inference_says_what_to_type() -> None:
    refuse = gpt.optimizer_of({**SMALL, "phase": "decode"}, lambda: None)
    with pytest.raises(UnsupportedError, match="--phase decode is inference") as caught:
        refuse([])
    assert "--mode inference" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "relu"}, "activation is relu"),
        ({"n_head": 5}, "can't be shared by 5 heads"),
        ({"n_inner": 100}, "not 100"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale of attention"),
        ({"n_positions": 8}, "only 8 positions"),
        ({"vocab_size": "many"}, "not a GPT-2's"),
    ],
)
def test_a_config_that_does_not_fit_is_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        gpt.shape_of({**SMALL, "weights": str(write(tmp_path, **changes))})


def test_arrays_of_another_shape_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"wte\.weight has the shape \(50, 24\)"):
        gpt.arrays({**SMALL, "weights": str(write(tmp_path, vocab_size=51))})


def test_a_cell_that_decodes_counts_one_token_per_sample() -> None:
    if FRAMEWORKS["torch"].missing():
        pytest.skip("torch is not installed")
    plan = Plan(
        workload="gpt",
        params={**SMALL, "phase": "decode", "lora": 0, "weights": "none"},
        mode=Mode.INFERENCE,
        framework="torch",
        device=Device(kind=DeviceKind.CPU),
        budget=Budget(steps=10),
    )
    outcome = run_cell(plan).outcome
    assert isinstance(outcome, Completed), outcome
    assert (outcome.samples_per_step, outcome.tokens_per_sample) == (2, 1)
    assert outcome.parameters == count(SHAPES["nano"])
    assert "number 16: the keys and values of the 15 before it come from the cache" in " ".join(outcome.notes)
