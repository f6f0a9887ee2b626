from __future__ import annotations

from functools import partial

import keras
from keras import layers

from metalmark.model.workload import Recipe


def perceptron(inputs: int, hidden: int, classes: int, *, learning_rate: float) -> Recipe:
    model = keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(hidden, activation="relu"),
            # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
            layers.Dense(classes, dtype="float32"),
        ]
    )
    return Recipe(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, learning_rate),
    )
