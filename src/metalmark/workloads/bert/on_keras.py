from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from metalmark.errors import UnsupportedError
from metalmark.model.workload import Params, Recipe
from metalmark.workloads import ADAM_EPSILON
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


def build(params: Params) -> Recipe:
    if params["attention"] != "sdpa":
        raise UnsupportedError("--attention is a choice of PyTorch's; Keras chooses its own attention.")
    shape = shape_of(params)
    tokens = keras.Input((params["seq_len"],), dtype="int32")
    states = Embeddings(shape)(tokens)
    for _ in range(shape.layers):
        states = _encoder_layer(states, shape)
    first = layers.Dense(shape.hidden, activation="tanh", kernel_initializer=_initial())(states[:, 0])
    first = layers.Dropout(DROPOUT)(first)
    # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
    logits = layers.Dense(LABELS, dtype="float32", kernel_initializer=_initial())(first)
    model = keras.Model(tokens, logits)
    if (found := arrays(params)) is not None:
        _fill(model, found)
    return Recipe(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, LEARNING_RATE, epsilon=ADAM_EPSILON),
    )


class Embeddings(layers.Layer):
    """Word, position and type, added, normalised and dropped out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = layers.Embedding(shape.vocabulary, shape.hidden, embeddings_initializer=_initial())
        self.positions = layers.Embedding(MAX_POSITIONS, shape.hidden, embeddings_initializer=_initial())
        self.types = layers.Embedding(TYPES, shape.hidden, embeddings_initializer=_initial())
        self.norm = layers.LayerNormalization(epsilon=NORM_EPSILON)
        self.dropout = layers.Dropout(DROPOUT)

    def call(self, tokens: Any) -> Any:
        places = ops.arange(tokens.shape[1], dtype="int32")
        # Every token is of the first type: there is one sentence.
        total = self.words(tokens) + self.positions(places) + self.types(ops.zeros_like(places))
        return self.dropout(self.norm(total))


def _encoder_layer(states: Any, shape: Shape) -> Any:
    attention = layers.MultiHeadAttention(
        shape.heads, shape.hidden // shape.heads, dropout=DROPOUT, kernel_initializer=_initial()
    )
    attended = layers.Dropout(DROPOUT)(attention(states, states))
    states = layers.LayerNormalization(epsilon=NORM_EPSILON)(states + attended)
    inner = layers.Dense(shape.inner, kernel_initializer=_initial())(states)
    inner = layers.Activation(partial(keras.activations.gelu, approximate=False))(inner)
    outer = layers.Dropout(DROPOUT)(layers.Dense(shape.hidden, kernel_initializer=_initial())(inner))
    return layers.LayerNormalization(epsilon=NORM_EPSILON)(states + outer)


def _fill(model: Any, found: dict[str, np.ndarray]) -> None:
    """In the order of the model's own variables, which is the checkpoint's; the two of the classifier stay."""
    *below, _, _ = model.weights
    for variable, (name, array) in zip(below, found.items(), strict=True):
        # Keras multiplies from the other side, and gives attention's heads an axis of their own.
        turned = array.T if array.ndim == 2 and "embeddings" not in name else array
        variable.assign(turned.reshape(variable.shape))


def _initial() -> Any:
    return keras.initializers.RandomNormal(stddev=INITIAL)
