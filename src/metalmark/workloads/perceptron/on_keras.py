from functools import partial

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads import ADAM_EPSILON
from metalmark.workloads.perceptron import CLASSES, LEARNING_RATE, Perceptron


def build(perceptron: Perceptron, _: Params) -> Recipe:
    hidden = layers.Dense(perceptron.hidden, activation="relu")
    # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
    logits = layers.Dense(CLASSES, dtype="float32")
    return Recipe(
        model=keras.Sequential([keras.Input((perceptron.inputs,)), hidden, logits]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, LEARNING_RATE, epsilon=ADAM_EPSILON),
    )
