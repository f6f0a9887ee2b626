from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from metalmark.errors import UnsupportedError
from metalmark.model.workload import Params, Recipe
from metalmark.workloads.gpt import (
    BETAS,
    EPSILON,
    INITIAL,
    LORA_ALPHA,
    NORM_EPSILON,
    WEIGHT_DECAY,
    Cache,
    Shape,
    arrays,
    cache_of,
    lora_of,
    optimizer_of,
    shape_of,
    tokens_per_sample,
)


def build(params: Params) -> Recipe:
    if not hasattr(ops, "dot_product_attention"):
        raise UnsupportedError(
            f"gpt needs keras.ops.dot_product_attention, which Keras {keras.__version__} has not.",
            hint="pip install --upgrade keras",
        )
    shape, cache, rank = shape_of(params), cache_of(params), lora_of(params)
    # A cache belongs to a fixed number of sequences.
    tokens = keras.Input((tokens_per_sample(params),), cache.sequences if cache is not None else None, dtype="int32")
    words = Words(shape)
    positions = Positions(shape, cache)
    blocks = [Block(shape, cache, rank) for _ in range(shape.layers)]
    norm = layers.LayerNormalization(epsilon=NORM_EPSILON)
    states = positions(words(tokens))
    for block in blocks:
        states = block(states)
    if cache is not None:
        states = states[:, -1]
    model = keras.Model(tokens, words(norm(states), reverse=True))
    if (found := arrays(params)) is not None:
        _fill(words, positions, blocks, norm, found)
    if rank:
        for layer in (words, positions, norm, *(part for block in blocks for part in block.base)):
            layer.trainable = False
    return Recipe(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=optimizer_of(params, partial(adamw, shape.learning_rate)),
    )


class Words(layers.Layer):
    """Tokens to states, and with the same weight states to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = self.add_weight((shape.vocabulary, shape.hidden), initializer=_initial(), name="words")

    def call(self, values: Any, reverse: bool = False) -> Any:
        weight = ops.cast(self.weight, self.compute_dtype)
        return ops.matmul(values, ops.transpose(weight)) if reverse else ops.take(weight, values, axis=0)


class Positions(layers.Layer):
    def __init__(self, shape: Shape, cache: Cache | None) -> None:
        super().__init__()
        self.cache = cache
        self.weight = self.add_weight((shape.positions, shape.hidden), initializer=_initial(), name="positions")

    def call(self, states: Any) -> Any:
        length = states.shape[1]
        begin = self.cache.length - length if self.cache is not None else 0
        return states + ops.cast(self.weight[begin : begin + length], self.compute_dtype)


class Adapter(layers.Layer):
    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.down = layers.Dense(rank, use_bias=False, kernel_initializer=_initial())
        self.up = layers.Dense(hidden, use_bias=False, kernel_initializer="zeros")
        self.scale = LORA_ALPHA / rank

    def call(self, states: Any) -> Any:
        return self.scale * self.up(self.down(states))


class Block(layers.Layer):
    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.heads = shape.heads
        self.ln_1 = layers.LayerNormalization(epsilon=NORM_EPSILON)
        self.c_attn = layers.Dense(3 * shape.hidden, kernel_initializer=_initial())
        self.c_proj = layers.Dense(shape.hidden, kernel_initializer=_initial(shape.initial_residual))
        self.ln_2 = layers.LayerNormalization(epsilon=NORM_EPSILON)
        self.inner = layers.Dense(shape.inner, kernel_initializer=_initial())
        self.outer = layers.Dense(shape.hidden, kernel_initializer=_initial(shape.initial_residual))
        self.rank = rank
        if rank:
            self.lora_query, self.lora_value = Adapter(shape.hidden, rank), Adapter(shape.hidden, rank)
        self.cached = cache is not None
        if cache is not None:
            size = (cache.sequences, cache.length, shape.heads, shape.hidden // shape.heads)
            # Not zeros: a GPU draws less power for them, and runs faster.
            options: dict[str, Any] = {"initializer": "random_normal", "trainable": False, "dtype": self.compute_dtype}
            self.keys = self.add_weight(size, name="keys", **options)
            self.values = self.add_weight(size, name="values", **options)

    @property
    def base(self) -> tuple[Any, ...]:
        """Return the layers that LoRA freezes."""
        return self.ln_1, self.c_attn, self.c_proj, self.ln_2, self.inner, self.outer

    def call(self, states: Any) -> Any:
        states = states + self.c_proj(self._mixed(self.ln_1(states)))
        return states + self.outer(ops.gelu(self.inner(self.ln_2(states)), approximate=True))

    def _mixed(self, states: Any) -> Any:
        length, hidden = states.shape[1:]
        query, key, value = ops.split(self.c_attn(states), 3, axis=-1)
        if self.rank:
            query, value = query + self.lora_query(states), value + self.lora_value(states)
        query, key, value = (
            ops.reshape(part, (-1, length, self.heads, hidden // self.heads)) for part in (query, key, value)
        )
        if self.cached:
            key, value = _remembered(self.keys, key), _remembered(self.values, value)
        mixed = ops.dot_product_attention(query, key, value, is_causal=length > 1)
        return ops.reshape(mixed, (-1, length, hidden))


def _remembered(cache: Any, newest: Any) -> Any:
    """Write the newest keys or values at the end of the cache and return all of it."""
    begin = cache.shape[1] - newest.shape[1]
    whole = ops.slice_update(cache.value, (0, begin, 0, 0), newest) if begin else newest
    cache.assign(whole)
    return whole


def adamw(rate: float) -> Any:
    optimizer = keras.optimizers.AdamW(
        rate, weight_decay=WEIGHT_DECAY, beta_1=BETAS[0], beta_2=BETAS[1], epsilon=EPSILON
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def _fill(words: Any, positions: Any, blocks: list[Block], norm: Any, found: dict[str, np.ndarray]) -> None:
    words.weight.assign(found["wte.weight"])
    positions.weight.assign(found["wpe.weight"])
    places = {"ln_f": norm}
    for number, block in enumerate(blocks):
        names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        places |= {f"h.{number}.{name}": layer for name, layer in zip(names, block.base, strict=True)}
    for name, layer in places.items():
        weight, bias = layer.weights
        weight.assign(found[f"{name}.weight"])
        bias.assign(found[f"{name}.bias"])


def _initial(deviation: float = INITIAL) -> Any:
    return keras.initializers.RandomNormal(stddev=deviation)
