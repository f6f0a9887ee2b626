from functools import partial

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads import ADAM_EPSILON
from metalmark.workloads.conv256 import CHANNELS, CLASSES, FILTERS, KERNEL, LEARNING_RATE


def build(params: Params) -> Recipe:
    side = params["pixels"]
    model = keras.Sequential(
        [
            keras.Input((side, side, CHANNELS)),
            layers.Conv2D(FILTERS, KERNEL, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    return Recipe(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, LEARNING_RATE, epsilon=ADAM_EPSILON),
    )
