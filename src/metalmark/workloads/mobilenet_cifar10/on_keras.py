from __future__ import annotations

from functools import partial

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.mobilenet_cifar10 import CLASSES, DECAY_RATE, DROPOUT, LEARNING_RATE, decay_steps
from metalmark.workloads.mobilenet_v2.on_keras import backbone
from metalmark.workloads.vision.on_keras import images, transfer


def build(params: Params) -> Recipe:
    # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
    head = [layers.GlobalAveragePooling2D(), layers.Dropout(DROPOUT), layers.Dense(CLASSES, dtype="float32")]
    rate = keras.optimizers.schedules.ExponentialDecay(LEARNING_RATE, decay_steps(params), DECAY_RATE)
    return Recipe(
        model=transfer(images(params), backbone(params), head, params),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, rate),
    )
