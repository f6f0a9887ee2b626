"""bert: BERT for sequence classification on random tokens; the published 2022 experiment, mended.

A checkpoint is read in the hub's layout: config.json says how large it is, the arrays lie beside it. They keep the
hub's names, without the prefix "bert." that some files have; each framework puts them where its own modules want them.
A checkpoint's classifier is left out: the task is another one.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from metalmark.errors import WeightsError
from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads import builders, weights
from metalmark.workloads.weights import CONFIG, NONE

LEARNING_RATE = 1e-4
LABELS = 2
DROPOUT = 0.1
NORM_EPSILON = 1e-12
INITIAL = 0.02
"""The standard deviation BERT's weights begin with."""
MAX_POSITIONS = 512
TYPES = 2
ACTIVATION = "gelu"
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int = 28_996
    """The vocabulary of bert-base-cased and bert-large-cased, which were published."""


SHAPES = {
    "base": Shape(layers=12, hidden=768, heads=12, inner=3072),
    "large": Shape(layers=24, hidden=1024, heads=16, inner=4096),
    "mini": Shape(layers=4, hidden=256, heads=4, inner=1024),
    "tiny": Shape(layers=2, hidden=128, heads=2, inner=512),
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of config.json that decide the network; the rest is left unread."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = MAX_POSITIONS
    type_vocab_size: int = TYPES
    hidden_act: str = ACTIVATION


def shape_of(params: Params) -> Shape:
    choice = weights_of(params)
    return SHAPES[params["size"]] if choice == NONE else shape_of_file(choice)


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
    """Make other tokens in every row: one row repeated, as published, would let a cache answer for all."""
    size, length = params["batch_size"], params["seq_len"]
    tokens = rng.integers(0, shape_of(params).vocabulary, (size, length), np.int32)
    # Both labels in every batch, or nearly: a batch of one label could be learnt without reading it.
    labels = rng.permutation(np.arange(size) % LABELS).astype(np.int32)
    return Batch(inputs=(tokens,), targets=labels)


def forward_flops(params: Params) -> float:
    """Count matrix products alone; norms, softmax and activations are under a percent of them."""
    shape, length = shape_of(params), int(params["seq_len"])
    projections = 4 * 2.0 * length * shape.hidden**2
    attention = 2 * 2.0 * length**2 * shape.hidden
    feed_forward = 2 * 2.0 * length * shape.hidden * shape.inner
    head = 2.0 * shape.hidden**2 + 2.0 * shape.hidden * LABELS
    return shape.layers * (projections + attention + feed_forward) + head


def shape_of_file(weights_choice: str) -> Shape:
    config = weights.read_config(weights_choice, "bert", Config, network="BERT")
    if config.hidden_act != ACTIVATION:
        raise WeightsError(f"{CONFIG}: the activation is {config.hidden_act}; this workload's is {ACTIVATION}.")
    if config.num_attention_heads < 1 or config.hidden_size % config.num_attention_heads:
        raise WeightsError(f"{CONFIG}: {config.hidden_size} can't be shared by {config.num_attention_heads} heads.")
    if (config.max_position_embeddings, config.type_vocab_size) != (MAX_POSITIONS, TYPES):
        raise WeightsError(f"{CONFIG}: only checkpoints with {MAX_POSITIONS} positions and {TYPES} types are read.")
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


def arrays(params: Params) -> dict[str, np.ndarray] | None:
    """Return every array below the classifier from the checkpoint; None where the weights are to be random."""
    if weights_of(params) == NONE:
        return None
    return weights.load(weights.checkpoint_file(weights_of(params), "bert"), shapes(shape_of(params)), _rename)


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden, shape.inner
    found: dict[str, tuple[int, ...]] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (hidden,)

    for name, rows in zip(EMBEDDINGS, (shape.vocabulary, MAX_POSITIONS, TYPES), strict=True):
        found[f"embeddings.{name}.weight"] = (rows, hidden)
    norm("embeddings.LayerNorm")
    for number in range(shape.layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", hidden, inner)
        linear(f"{layer}.output.dense", inner, hidden)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", hidden, hidden)
    return found


def _rename(name: str) -> str:
    # Files from TensorFlow's first release call a norm's arrays gamma and beta.
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


WORKLOAD = Workload(
    name="bert",
    title="BERT sequence classification, Adam, random tokens",
    params=(
        Param("batch_size", 16, "samples per step", minimum=1),
        Param("seq_len", 128, "tokens per sample, up to 512", minimum=1, maximum=MAX_POSITIONS),
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
    build=builders(__name__),
    batch=make_batch,
    flops=forward_flops,
    notes=notes,
)
