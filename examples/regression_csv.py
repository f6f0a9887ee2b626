"""A regression on a table, with its own measure of error, for PyTorch and Keras (TensorFlow, JAX):

python examples/regression_csv.py houses.csv        # writes 2,000 made-up houses
metalmark train examples/regression_csv.py:prices --data houses.csv --target-column price --target error=8
metalmark bench examples/regression_csv.py:prices --data houses.csv --target-column price --data-from pipeline

Without --data it trains on what `data` returns: here the same houses as arrays.
"""

import sys
from functools import partial

import numpy as np

from metalmark import Batch, Param, Recipe, Task, Workload


def houses(_):
    """(inputs, targets) as arrays; a Dataset, a loader or an iterable of batches would do as well."""
    rng = np.random.default_rng(0)
    x = rng.uniform([1, 30, 0, 0], [7, 200, 90, 30], (2000, 4))
    price = 15 * x[:, 0] + 2.5 * x[:, 1] - 0.7 * x[:, 2] + 120 * np.exp(-x[:, 3] / 10) + rng.normal(0, 5, 2000)
    return x, price[:, np.newaxis]


def scaled(_, inputs, labels):
    """Called with the columns of each batch, as they are in the file: here they are brought to the same size."""
    return Batch(inputs=inputs / np.array([4, 100, 45, 15], np.float32) - 1, targets=labels / 100)


def error(outputs, targets):
    """The mean error in thousands, on NumPy arrays of one validation batch."""
    return 100 * np.abs(outputs - targets).mean()


def on_torch(params):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, params["hidden"]), nn.ReLU(), nn.Linear(params["hidden"], 1))
    adam = partial(torch.optim.Adam, lr=5e-3)
    return Recipe(model=model, loss=nn.MSELoss(), optimizer=adam, metrics={"error": error})


def on_keras(params):
    import keras

    layers = [keras.layers.Dense(params["hidden"], activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    return Recipe(model=model, loss="mse", optimizer=keras.optimizers.Adam(5e-3), metrics={"error": error})


prices = Workload(
    name="prices", title="Prices of houses", params=(Param("batch_size", 32), Param("hidden", 64)),
    build={"torch": on_torch, "keras": on_keras}, data=houses, sample=scaled, task=Task.REGRESSION,
)  # fmt: skip

if __name__ == "__main__":
    np.savetxt(sys.argv[1], np.hstack(houses({})), "%.3f", ",", header="rooms,area,age,distance,price", comments="")
