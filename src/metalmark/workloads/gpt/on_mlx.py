import math
from functools import partial
from typing import Any

from mlx import core as mx
from mlx import nn, optimizers

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
    is_projection,
    lora_of,
    optimizer_of,
    shape_of,
)


def build(params: Params) -> Recipe:
    shape = shape_of(params)
    model = Gpt(shape, cache_of(params), lora_of(params))
    _begin_small(model, shape)
    if (found := arrays(params)) is not None:
        own = [(name, mx.array(array.T if is_projection(name) else array)) for name, array in found.items()]
        # Not strict: adapters are not in a checkpoint, and `arrays` has seen to the rest.
        model.load_weights(own, strict=False)
    if lora_of(params):
        model.freeze()
        for block in model.h:
            block.attn.lora_query.unfreeze()
            block.attn.lora_value.unfreeze()
    return Recipe(
        model=model,
        loss=cross_entropy,
        optimizer=optimizer_of(params, partial(Adamw, shape.learning_rate)),
    )


class Adapter(nn.Module):
    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(hidden, rank, bias=False)
        self.up = nn.Linear(rank, hidden, bias=False)
        self.scale = LORA_ALPHA / rank

    def __call__(self, states: Any) -> Any:
        return self.scale * self.up(self.down(states))


class Attention(nn.Module):
    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.heads, self.rank = shape.heads, rank
        self.c_attn = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.c_proj = nn.Linear(shape.hidden, shape.hidden)
        if rank:
            self.lora_query, self.lora_value = Adapter(shape.hidden, rank), Adapter(shape.hidden, rank)
        self.cache = cache

    def __call__(self, states: Any) -> Any:
        batch, length, hidden = states.shape
        query, key, value = mx.split(self.c_attn(states), 3, axis=-1)
        if self.rank:
            query, value = query + self.lora_query(states), value + self.lora_value(states)
        query, key, value = (
            part.reshape(batch, length, self.heads, -1).transpose(0, 2, 1, 3) for part in (query, key, value)
        )
        if self.cache is not None:
            key, value = self._remembered("_keys", key), self._remembered("_values", value)
        scale = 1 / math.sqrt(hidden // self.heads)
        mask = "causal" if length > 1 else None
        mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)
        return self.c_proj(mixed.transpose(0, 2, 1, 3).reshape(batch, length, hidden))

    def _remembered(self, name: str, newest: Any) -> Any:
        """Write the newest keys or values at the end of the cache and return all of it.

        Its name begins with an underscore, which keeps it from the parameters. It is made at the first call, which
        knows its dtype.
        """
        assert self.cache is not None
        if name not in self:
            size = (*newest.shape[:2], self.cache.length, newest.shape[3])
            # Not zeros: a GPU draws less power for them, and runs faster.
            self[name] = mx.random.normal(size, newest.dtype, key=mx.random.key(0))
        self[name][:, :, self.cache.length - newest.shape[2] :] = newest
        return self[name]


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.c_fc = nn.Linear(shape.hidden, shape.inner)
        self.c_proj = nn.Linear(shape.inner, shape.hidden)

    def __call__(self, states: Any) -> Any:
        return self.c_proj(nn.gelu_approx(self.c_fc(states)))


class Block(nn.Module):
    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.attn = Attention(shape, cache, rank)
        self.ln_2 = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.mlp = Mlp(shape)

    def __call__(self, states: Any) -> Any:
        states = states + self.attn(self.ln_1(states))
        return states + self.mlp(self.ln_2(states))


class Gpt(nn.Module):
    """The hub's names for its modules, so that its arrays need no others; the head shares the words' weight."""

    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.cache = cache
        self.wte = nn.Embedding(shape.vocabulary, shape.hidden)
        self.wpe = nn.Embedding(shape.positions, shape.hidden)
        self.h = [Block(shape, cache, rank) for _ in range(shape.layers)]
        self.ln_f = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)

    def __call__(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        begin = self.cache.length - length if self.cache is not None else 0
        states = self.wte(tokens) + self.wpe.weight[begin : begin + length]
        for block in self.h:
            states = block(states)
        if self.cache is not None:
            states = states[:, -1]
        return self.wte.as_linear(self.ln_f(states))


class Adamw(optimizers.AdamW):
    """AdamW that leaves biases and the gains of norms undecayed."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate, betas=list(BETAS), eps=EPSILON, weight_decay=WEIGHT_DECAY, bias_correction=True)

    def apply_single(self, gradient: Any, parameter: Any, state: dict[str, Any]) -> Any:
        if parameter.ndim > 1:
            return super().apply_single(gradient, parameter, state)
        return optimizers.Adam.apply_single(self, gradient, parameter, state)


def cross_entropy(logits: Any, targets: Any) -> Any:
    return nn.losses.cross_entropy(logits.astype(mx.float32), targets, reduction="mean")


def _begin_small(model: Gpt, shape: Shape) -> None:
    """Weights from a narrow normal and biases at 0, as GPT-2's are; an adapter begins by adding nothing."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            deviation = shape.initial_residual if name.endswith("c_proj") else INITIAL
            module.weight = (0.0 if name.endswith("up") else deviation) * mx.random.normal(module.weight.shape)
        if isinstance(module, nn.Linear) and "bias" in module:
            module.bias = mx.zeros_like(module.bias)
