"""bert: BERT for sequence classification on random tokens; the published 2022 experiment, mended."""

from __future__ import annotations

import numpy as np

from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads.bert.checkpoint import shape_of_file
from metalmark.workloads.bert.shape import MAX_POSITIONS, SHAPES, Shape
from metalmark.workloads.weights import NONE

LEARNING_RATE = 1e-4
LABELS = 2
DROPOUT = 0.1
NORM_EPSILON = 1e-12


def shape_of(params: Params) -> Shape:
    word = weights_of(params)
    return SHAPES[params["size"]] if word == NONE else shape_of_file(word)


def weights_of(params: Params) -> str:
    return str(params.get("weights", NONE))


def notes(params: Params) -> tuple[str, ...]:
    if weights_of(params) == NONE:
        return ()
    shape = shape_of(params)
    return (
        f"The checkpoint's config.json, not --size, says how large this BERT is: {shape.layers} layers of "
        f"{shape.hidden}, {shape.heads} heads, {shape.inner} inside, {shape.vocabulary:,} words.",
    )


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    """Other tokens in every row: one row repeated, as published, would let a cache answer for all."""
    size, length = params["batch_size"], params["seq_len"]
    tokens = rng.integers(0, shape_of(params).vocabulary, (size, length), np.int32)
    # Both labels in every batch, or nearly: a batch of one label could be learnt without reading it.
    labels = rng.permutation(np.arange(size) % LABELS).astype(np.int32)
    return Batch(inputs=(tokens,), targets=labels)


def forward_flops(params: Params) -> float:
    """Matrix products alone; norms, softmax and activations are under a percent of them."""
    shape, length = shape_of(params), int(params["seq_len"])
    projections = 4 * 2.0 * length * shape.hidden**2
    attention = 2 * 2.0 * length**2 * shape.hidden
    feed_forward = 2 * 2.0 * length * shape.hidden * shape.inner
    head = 2.0 * shape.hidden**2 + 2.0 * shape.hidden * LABELS
    return shape.layers * (projections + attention + feed_forward) + head


WORKLOAD = Workload(
    name="bert",
    title="BERT sequence classification, Adam, random tokens",
    params=(
        Param("batch_size", 16, "samples in a step", minimum=1),
        Param("seq_len", 128, "tokens in a sample, up to 512", minimum=1, maximum=MAX_POSITIONS),
        Param("size", "base", "how large a BERT", choices=tuple(SHAPES)),
        Param("attention", "sdpa", "PyTorch only: fused attention, or plain products", choices=("sdpa", "eager")),
        Param(
            "weights",
            NONE,
            "none (random), or a checkpoint: its folder, or its .safetensors or .bin file beside config.json",
            choices=(NONE,),
            path=True,
        ),
    ),
    build={
        "torch": "metalmark.workloads.bert.on_torch:build",
        "keras": "metalmark.workloads.bert.on_keras:build",
        "mlx": "metalmark.workloads.bert.on_mlx:build",
    },
    batch=make_batch,
    flops=forward_flops,
    notes=notes,
)
