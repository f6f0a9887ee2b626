import math
from functools import partial
from typing import Any

from mlx import core as mx
from mlx import nn, optimizers

from metalmark.errors import UnsupportedError
from metalmark.model.workload import Params, Recipe
from metalmark.workloads.bert import (
    DROPOUT,
    INITIAL,
    LABELS,
    LEARNING_RATE,
    MAX_POSITIONS,
    NORM_EPSILON,
    TYPES,
    Shape,
    arrays,
    shape_of,
)

NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
    "encoder.layer.": "layers.",
    "attention.self.": "attention.",
    "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "outer_norm",
    "pooler.dense": "pooler",
}
"""The hub's names as those of the modules below; longer ones stand before what they contain."""


def build(params: Params) -> Recipe:
    if params["attention"] != "sdpa":
        raise UnsupportedError("--attention is a choice of PyTorch's; MLX has its own fused attention.")
    shape = shape_of(params)
    model = Bert(shape)
    _begin_small(model)
    if (found := arrays(params)) is not None:
        renamed = [(_renamed(name), mx.array(array)) for name, array in found.items()]
        # Not strict: the classifier is not among them, and `arrays` has seen to the rest.
        model.load_weights(renamed, strict=False)
    return Recipe(
        model=model,
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, LEARNING_RATE, bias_correction=True),
    )


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.out = (nn.Linear(shape.hidden, shape.hidden) for _ in range(4))
        self.dropout = nn.Dropout(DROPOUT)

    def __call__(self, states: Any) -> Any:
        batch, length, hidden = states.shape
        query, key, value = (
            project(states).reshape(batch, length, self.heads, -1).transpose(0, 2, 1, 3)
            for project in (self.query, self.key, self.value)
        )
        scale = 1 / math.sqrt(hidden // self.heads)
        if self.training:
            # MLX's fused attention has no dropout, and BERT trains with it.
            weights = mx.softmax(scale * query @ key.transpose(0, 1, 3, 2), axis=-1, precise=True)
            mixed = self.dropout(weights) @ value
        else:
            mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale)
        return self.out(mixed.transpose(0, 2, 1, 3).reshape(batch, length, hidden))


class Encoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.inner = nn.Linear(shape.hidden, shape.inner)
        self.outer = nn.Linear(shape.inner, shape.hidden)
        self.outer_norm = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.dropout = nn.Dropout(DROPOUT)

    def __call__(self, states: Any) -> Any:
        states = self.attention_norm(states + self.dropout(self.attention(states)))
        return self.outer_norm(states + self.dropout(self.outer(nn.gelu(self.inner(states)))))


class Bert(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(MAX_POSITIONS, shape.hidden)
        self.types = nn.Embedding(TYPES, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.layers = [Encoder(shape) for _ in range(shape.layers)]
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.classifier = nn.Linear(shape.hidden, LABELS)
        self.dropout = nn.Dropout(DROPOUT)

    def __call__(self, tokens: Any) -> Any:
        places = mx.arange(tokens.shape[1])
        # Every token is of the first type: there is one sentence.
        states = self.words(tokens) + self.positions(places) + self.types(mx.zeros_like(places))
        states = self.dropout(self.norm(states))
        for layer in self.layers:
            states = layer(states)
        return self.classifier(self.dropout(mx.tanh(self.pooler(states[:, 0]))))


def _renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _begin_small(model: nn.Module) -> None:
    """Weights from a narrow normal and biases at 0, as BERT's are; norms stay as they are."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight = INITIAL * mx.random.normal(module.weight.shape)
        if isinstance(module, nn.Linear):
            module.bias = mx.zeros_like(module.bias)
