from __future__ import annotations

from functools import partial

import keras
from keras import layers

from metalmark.workload import Params, Recipe
from metalmark.workloads.mnist_mlp import CLASSES, HIDDEN, LEARNING_RATE, PIXELS


def build(_: Params) -> Recipe:
    model = keras.Sequential(
        [
            keras.Input((PIXELS,)),
            layers.Dense(HIDDEN, activation="relu"),
            # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    return Recipe(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, LEARNING_RATE),
    )
