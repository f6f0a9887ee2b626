from __future__ import annotations

from functools import partial

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vgg16.on_keras import backbone
from metalmark.workloads.vgg16_flowers import HIDDEN, LEARNING_RATE
from metalmark.workloads.vision.on_keras import images, transfer


def build(params: Params) -> Recipe:
    # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
    head = [
        layers.Flatten(),
        layers.Dense(HIDDEN, activation="relu"),
        layers.Dense(params["classes"], dtype="float32"),
    ]
    return Recipe(
        model=transfer(images(params), backbone(params), head, params),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, LEARNING_RATE),
    )
