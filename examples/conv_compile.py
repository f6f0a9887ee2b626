"""A network whose compiled gradient is wrong with PyTorch 2.13 on the CPU, for `metalmark parity`:

metalmark parity examples/conv_compile.py:conv_compile --compile --device cpu --batch-size "1-32*2" --repro fault.py

torch.compile turns convolutions to channels-last by itself. Metalmark's --compile leaves their layout as it is, so this
file asks for what plain torch.compile does. At batch sizes 2 to 7 the gradient of the convolution is then exactly zero.
"""

import os
from functools import partial

import numpy as np

from metalmark import Batch, Param, Recipe, Workload

PIXELS, CLASSES = 256, 10


def make_batch(params, rng):
    size = params["batch_size"]
    return Batch(
        inputs=(rng.standard_normal((size, 3, PIXELS, PIXELS), np.float32),),
        targets=rng.integers(0, CLASSES, size, np.int64),
    )


def on_torch(params):
    import torch
    from torch import nn

    os.environ.setdefault("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "1")
    side = (PIXELS - 2) // 2
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * side * side, CLASSES)
    )
    return Recipe(model=model, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=1e-3))


conv_compile = Workload(
    name="conv-compile",
    title="One convolution and a classifier",
    params=(Param("batch_size", 4, "samples per step", minimum=1),),
    build={"torch": on_torch},
    batch=make_batch,
)
