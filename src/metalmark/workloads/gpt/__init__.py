"""gpt: a decoder transformer of GPT-2's architecture, in training, prefill and decode.

A checkpoint is read in the hub's layout: config.json says how large it is, the arrays lie beside it. They keep the
hub's names, without the prefix "transformer." that some files have, and its orientation: a projection's weight has the
inputs first. Each framework puts them where its own modules want them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from metalmark.errors import UnsupportedError, WeightsError
from metalmark.model.workload import Batch, Param, Params, Task, Workload
from metalmark.workloads import builders, weights
from metalmark.workloads.weights import CONFIG, NONE

BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
"""Of matrices; biases and the gains of norms are left alone."""
NORM_EPSILON = 1e-5
INITIAL = 0.02
"""The standard deviation that weights begin with."""
POSITIONS = 1024
ACTIVATION = "gelu_new"
LORA_ALPHA = 16.0
"""What the adapters add is multiplied by this over their rank."""


class Phase(StrEnum):
    FULL = "full"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50_304
    """GPT-2's 50,257 rounded up to a multiple of 64, as nanoGPT does: matrix units want even sizes."""
    positions: int = POSITIONS
    learning_rate: float = 6e-4

    @property
    def inner(self) -> int:
        return 4 * self.hidden

    @property
    def initial_residual(self) -> float:
        """What each layer adds to the sum of all of them begins smaller, the more layers there are."""
        return INITIAL / math.sqrt(2 * self.layers)


SHAPES = {
    "nano": Shape(layers=4, hidden=128, heads=4, vocabulary=256, learning_rate=1e-3),
    "small": Shape(layers=12, hidden=768, heads=12),
    "medium": Shape(layers=24, hidden=1024, heads=16, learning_rate=3e-4),
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of config.json that decide the network; the rest is left unread."""

    n_layer: int
    n_embd: int
    n_head: int
    vocab_size: int
    n_positions: int = POSITIONS
    n_inner: int | None = None
    activation_function: str = ACTIVATION
    layer_norm_epsilon: float = NORM_EPSILON
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The keys and values that prefill fills and decode reads: of so many sequences, so long each."""

    sequences: int
    length: int


def shape_of(params: Params) -> Shape:
    choice = weights_of(params)
    shape = SHAPES[params["size"]] if choice == NONE else shape_of_file(choice)
    if params["seq_len"] > shape.positions:
        raise WeightsError(
            f"--seq-len {params['seq_len']}: this checkpoint has only {shape.positions} positions. Give fewer tokens."
        )
    return shape


def weights_of(params: Params) -> str:
    return str(params.get("weights", NONE))


def phase_of(params: Params) -> Phase:
    return Phase(params.get("phase", Phase.FULL))


def lora_of(params: Params) -> int:
    return int(params.get("lora", 0))


def cache_of(params: Params) -> Cache | None:
    """Return the key-value cache to build; None where every position is computed anew."""
    if phase_of(params) is Phase.FULL:
        return None
    return Cache(sequences=int(params["batch_size"]), length=int(params["seq_len"]))


def tokens_per_sample(params: Params) -> int:
    return 1 if phase_of(params) is Phase.DECODE else int(params["seq_len"])


def notes(params: Params) -> tuple[str, ...]:
    phase, length, found = phase_of(params), params["seq_len"], []
    if phase is Phase.PREFILL:
        found.append(
            f"A step reads prompts of {length} tokens into an empty key-value cache and gives the logits of the next "
            f"token: its time is the time to the first token."
        )
    elif phase is Phase.DECODE:
        found.append(
            f"A step gives each sequence its next token, number {length}: the keys and values of the {length - 1} "
            f"before it come from the cache."
        )
    if rank := lora_of(params):
        found.append(f"LoRA: adapters of rank {rank} on queries and values; everything else is frozen.")
    if weights_of(params) != NONE:
        shape = shape_of(params)
        found.append(
            f"The checkpoint's config.json, not --size, says how large this GPT is: {shape.layers} layers of "
            f"{shape.hidden}, {shape.heads} heads, {shape.vocabulary:,} tokens, {shape.positions:,} positions."
        )
    return tuple(found)


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    """Make random tokens; the target of each is the one after it."""
    vocabulary, length = shape_of(params).vocabulary, tokens_per_sample(params)
    tokens = rng.integers(0, vocabulary, (params["batch_size"], length + 1), np.int32)
    return Batch(inputs=np.ascontiguousarray(tokens[:, :-1]), targets=np.ascontiguousarray(tokens[:, 1:]))


def make_sample(params: Params, tokens: np.ndarray, targets: np.ndarray) -> Batch:
    """Make a batch of windows of a text; what is decoded is the last token of each."""
    last = tokens_per_sample(params)
    return Batch(inputs=np.ascontiguousarray(tokens[:, -last:]), targets=np.ascontiguousarray(targets[:, -last:]))


def optimizer_of(params: Params, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes the optimiser, which only training asks for: prefill and decode have nothing to train."""
    phase = phase_of(params)
    if phase is Phase.FULL:
        return make

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"--phase {phase.value} is inference: training computes every position of its texts.",
            hint="Add --mode inference, or leave --phase out.",
        )

    return refuse


@dataclass(frozen=True, kw_only=True)
class Work:
    """The floating-point operations of one sample's forward pass, by what a gradient must do for them."""

    products: float
    """Products of activations and weights of the base, the head's included."""
    attention: float
    """Products of activations with each other. Causal attention needs half of them; all are counted, as is usual."""
    adapters: float


def work_of(params: Params) -> Work:
    """Count matrix products alone; norms, softmax and activations are under a percent of them."""
    shape, phase = shape_of(params), phase_of(params)
    tokens, keys = tokens_per_sample(params), int(params["seq_len"])
    logits = tokens if phase is Phase.FULL else 1
    layer = 4 * 2.0 * tokens * shape.hidden**2 + 2 * 2.0 * tokens * shape.hidden * shape.inner
    return Work(
        products=shape.layers * layer + 2.0 * logits * shape.hidden * shape.vocabulary,
        attention=shape.layers * 2 * 2.0 * tokens * keys * shape.hidden,
        adapters=shape.layers * 2 * 2 * 2.0 * tokens * shape.hidden * lora_of(params),
    )


def forward_flops(params: Params) -> float:
    work = work_of(params)
    return work.products + work.attention + work.adapters


def training_factor(params: Params) -> float:
    """Return a training step's work as a multiple of the forward pass. Frozen weights have no gradient of their own:
    what passes through them on the way down is all that is computed."""
    if not lora_of(params):
        return 3.0
    work = work_of(params)
    return (2 * work.products + 3 * work.attention + 3 * work.adapters) / forward_flops(params)


def shape_of_file(weights_choice: str) -> Shape:
    config = weights.read_config(weights_choice, "gpt", Config, network="GPT-2")
    if config.activation_function != ACTIVATION:
        raise WeightsError(
            f"{CONFIG}: the activation is {config.activation_function}; this workload's is {ACTIVATION}."
        )
    if config.n_head < 1 or config.n_embd % config.n_head:
        raise WeightsError(f"{CONFIG}: {config.n_embd} can't be shared by {config.n_head} heads.")
    if config.n_inner not in (None, 4 * config.n_embd):
        raise WeightsError(f"{CONFIG}: only an inner size of 4 x {config.n_embd} is read, not {config.n_inner}.")
    usual = (NORM_EPSILON, True, False)
    if (config.layer_norm_epsilon, config.scale_attn_weights, config.scale_attn_by_inverse_layer_idx) != usual:
        raise WeightsError(
            f"{CONFIG}: only GPT-2's own norms ({NORM_EPSILON:g}) and its own scale of attention are read."
        )
    return Shape(
        layers=config.n_layer,
        hidden=config.n_embd,
        heads=config.n_head,
        vocabulary=config.vocab_size,
        positions=config.n_positions,
        learning_rate=SHAPES["medium"].learning_rate,
    )


def arrays(params: Params) -> dict[str, np.ndarray] | None:
    """Return every array from the checkpoint; None where the weights are to be random."""
    if weights_of(params) == NONE:
        return None
    return weights.load(weights.checkpoint_file(weights_of(params), "gpt"), shapes(shape_of(params)), _rename)


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden, shape.inner
    found: dict[str, tuple[int, ...]] = {
        "wte.weight": (shape.vocabulary, hidden),
        "wpe.weight": (shape.positions, hidden),
    }

    def projection(name: str, inputs: int, outputs: int) -> None:
        found[f"{name}.weight"] = (inputs, outputs)
        found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (hidden,)

    for number in range(shape.layers):
        norm(f"h.{number}.ln_1")
        projection(f"h.{number}.attn.c_attn", hidden, 3 * hidden)
        projection(f"h.{number}.attn.c_proj", hidden, hidden)
        norm(f"h.{number}.ln_2")
        projection(f"h.{number}.mlp.c_fc", hidden, inner)
        projection(f"h.{number}.mlp.c_proj", inner, hidden)
    norm("ln_f")
    return found


def is_projection(name: str) -> bool:
    """Tell the weights that lie with the inputs first, where PyTorch and MLX have the outputs first."""
    return ".c_" in name and name.endswith(".weight")


def _rename(name: str) -> str:
    return name.removeprefix("transformer.")


WORKLOAD = Workload(
    name="gpt",
    title="GPT-2 language model, AdamW, random tokens or text",
    params=(
        Param("batch_size", 12, "samples per step", minimum=1),
        Param(
            "seq_len", 128, "tokens per sample, up to 1024; in decode, those in the cache", minimum=1, maximum=POSITIONS
        ),
        Param("size", "small", "how large a GPT: small has 124 million parameters", choices=tuple(SHAPES)),
        Param(
            "phase",
            Phase.FULL.value,
            "inference: logits of every token, prefill (of the prompt's next), or decode (one token, with a cache)",
            choices=tuple(phase.value for phase in Phase),
        ),
        Param("lora", 0, "train adapters of this rank on queries and values, all else frozen; 0 trains all", minimum=0),
        Param(
            "weights",
            NONE,
            "none (random), or a GPT-2 checkpoint: its folder, or its .safetensors or .bin file beside config.json",
            choices=(NONE,),
            path=True,
        ),
    ),
    build=builders(__name__),
    batch=make_batch,
    datasets=("text",),
    sample=make_sample,
    task=Task.LANGUAGE,
    tokens=tokens_per_sample,
    flops=forward_flops,
    training_factor=training_factor,
    notes=notes,
)
