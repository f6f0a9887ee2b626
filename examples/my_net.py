"""Your own network as a workload, in one file, for PyTorch and Keras (TensorFlow, JAX):

metalmark bench examples/my_net.py:my_net --batch-size 16,64 --hidden 128

A workload says WHAT is trained: parameters, batches, and per framework a function that builds the model,
its loss and its optimiser. Device, dtype, compilation and timing are Metalmark's business.
"""

from functools import partial

import numpy as np

from metalmark import Batch, Param, Recipe, Workload

FEATURES, CLASSES = 64, 5


def make_batch(params, rng):
    """One batch of NumPy arrays; called again for each resident batch."""
    size = params["batch_size"]
    return Batch(
        inputs=(rng.standard_normal((size, FEATURES), np.float32),),
        targets=rng.integers(0, CLASSES, size, np.int32),
    )


def on_torch(params):
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Linear(FEATURES, params["hidden"]), nn.GELU(), nn.Dropout(0.1), nn.Linear(params["hidden"], CLASSES)
    )
    # Keyword arguments must reach the optimiser, so that --fused and --graph can: partial() passes them on.
    return Recipe(model=model, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.AdamW, lr=1e-3))


def on_keras(params):
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(params["hidden"], activation="gelu"),
            layers.Dropout(0.1),
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Recipe(model=model, loss=loss, optimizer=partial(keras.optimizers.AdamW, 1e-3))


my_net = Workload(
    name="my-net",
    title="A small perceptron of my own",
    params=(
        Param("batch_size", 32, "samples per step", minimum=1),
        Param("hidden", 256, "width of the hidden layer", minimum=1),
    ),
    build={"torch": on_torch, "keras": on_keras},
    batch=make_batch,
    flops=lambda params: 2.0 * params["hidden"] * (FEATURES + CLASSES),
)
