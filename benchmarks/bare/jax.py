from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import keras


def make(model: Any, ring: Sequence[tuple[Any, Any]]) -> Callable[[int], None]:
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-5)
    optimizer.build(model.trainable_variables)

    def compute(trainable: Any, fixed: Any, x: Any, y: Any) -> Any:
        outputs, fixed = model.stateless_call(trainable, fixed, x, training=True)
        return loss_of(y, outputs), fixed

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, x: Any, y: Any) -> Any:
        trainable, fixed, slots = state
        (loss, fixed), gradients = jax.value_and_grad(compute, has_aux=True)(trainable, fixed, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return (trainable, fixed, slots), loss

    held = [
        (
            [jax.numpy.array(v.value, copy=True) for v in model.trainable_variables],
            [jax.numpy.array(v.value, copy=True) for v in model.non_trainable_variables],
            [v.value for v in optimizer.variables],
        )
    ]

    def loop(steps: int) -> None:
        state = held[0]
        for number in range(steps):
            state, _ = step(state, *ring[number % len(ring)])
        held[0] = jax.block_until_ready(state)

    return loop
