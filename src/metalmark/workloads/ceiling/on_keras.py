from typing import Any

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.ceiling import MEGA, PRODUCTS, SCALE


class Scaled(layers.Layer):
    def build(self, _: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(SCALE))

    def call(self, numbers: Any) -> Any:
        return numbers * self.scale


def matmul(params: Params) -> Recipe:
    width = params["width"]
    return _recipe((width,), [layers.Dense(width, use_bias=False) for _ in range(PRODUCTS)])


def copy(params: Params) -> Recipe:
    return _recipe((params["megafloats"] * MEGA,), [Scaled()])


def _recipe(shape: tuple[int, ...], made: list[Any]) -> Recipe:
    model = keras.Sequential([keras.Input(shape), *made])
    return Recipe(model=model, loss=keras.losses.MeanSquaredError(), optimizer=keras.optimizers.SGD)
