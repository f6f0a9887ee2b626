from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

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
    if (found := arrays(params)) is not None:
        _fill(model, found)
    if lora_of(params):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
    return Recipe(
        model=model,
        loss=cross_entropy,
        optimizer=optimizer_of(params, partial(adamw, lr=shape.learning_rate)),
    )


class Projection(nn.Linear):
    """Queries, keys and values in one product, and the cache of keys and values.

    The cache lives here because weights that are cast to half precision for inference take along what lies beside them.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, shape: Shape, cache: Cache | None) -> None:
        super().__init__(shape.hidden, 3 * shape.hidden)
        self.cached = cache is not None
        if cache is not None:
            size = (cache.sequences, shape.heads, cache.length, shape.hidden // shape.heads)
            # Not zeros: a GPU draws less power for them, and runs faster.
            for name in ("keys", "values"):
                self.register_buffer(name, torch.randn(size), persistent=False)

    def remember(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the newest keys and values at the end of the cache and return all of it."""
        begin = self.keys.shape[2] - keys.shape[2]
        self.keys[:, :, begin:] = keys
        self.values[:, :, begin:] = values
        return self.keys, self.values


class Adapter(nn.Module):
    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(hidden, rank, bias=False)
        self.up = nn.Linear(rank, hidden, bias=False)
        self.scale = LORA_ALPHA / rank

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.scale * self.up(self.down(states))


class Attention(nn.Module):
    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.heads = shape.heads
        self.c_attn = Projection(shape, cache)
        self.c_proj = nn.Linear(shape.hidden, shape.hidden)
        self.rank = rank
        if rank:
            self.lora_query, self.lora_value = Adapter(shape.hidden, rank), Adapter(shape.hidden, rank)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = states.shape
        query, key, value = self.c_attn(states).split(hidden, dim=2)
        if self.rank:
            query, value = query + self.lora_query(states), value + self.lora_value(states)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (query, key, value))
        if self.c_attn.cached:
            key, value = self.c_attn.remember(key, value)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.c_fc = nn.Linear(shape.hidden, shape.inner)
        self.c_proj = nn.Linear(shape.inner, shape.hidden)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.c_proj(functional.gelu(self.c_fc(states), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.attn = Attention(shape, cache, rank)
        self.ln_2 = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.mlp = Mlp(shape)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self.attn(self.ln_1(states))
        return states + self.mlp(self.ln_2(states))


class Gpt(nn.Module):
    """The hub's names for its modules, so that its arrays need no others; the head shares the words' weight."""

    def __init__(self, shape: Shape, cache: Cache | None, rank: int) -> None:
        super().__init__()
        self.cache = cache
        self.wte = nn.Embedding(shape.vocabulary, shape.hidden)
        self.wpe = nn.Embedding(shape.positions, shape.hidden)
        self.h = nn.ModuleList(Block(shape, cache, rank) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.hidden, eps=NORM_EPSILON)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.head.weight = self.wte.weight
        self._begin(shape)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        begin = self.cache.length - length if self.cache is not None else 0
        states = self.wte(tokens) + self.wpe.weight[begin : begin + length]
        for block in self.h:
            states = block(states)
        if self.cache is not None:
            return self.head(self.ln_f(states[:, -1]))
        return self.head(self.ln_f(states))

    def _begin(self, shape: Shape) -> None:
        """Weights from a narrow normal and biases at 0, as GPT-2's are; an adapter begins by adding nothing."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or "up.weight" in name:
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=shape.initial_residual if "c_proj" in name else INITIAL)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().long())


def adamw(parameters: Iterable[nn.Parameter], *, lr: float, **options: Any) -> torch.optim.Optimizer:
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.ndim > 1 else vectors).append(parameter)
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": WEIGHT_DECAY}]
    if vectors:
        groups.append({"params": vectors, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, eps=EPSILON, **options)


def _fill(model: Gpt, found: dict[str, Any]) -> None:
    state = {name: torch.from_numpy(array.T if is_projection(name) else array) for name, array in found.items()}
    # Not strict: the head is the words' weight, adapters are not in a checkpoint, and `arrays` has seen to the rest.
    model.load_state_dict(state, strict=False)
