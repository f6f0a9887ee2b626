"""A plain loop and the loops of snippets, side by side in a process without Metalmark.

python snippet_loops.py FRAMEWORK < cases.json > losses.json

A case is {"mode": "training", "inference" or "captured", "source": Python}, for PyTorch with "device" too. A captured
step is one for CUDA graphs, which are simulated on the CPU. The answer has one list of numbers per case, the losses of
its steps or its outputs, and says whether Metalmark was imported.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

STEPS = 20
CLASSES = (np.arange(16) % 4).astype(np.int64)
IMAGES = np.random.default_rng(0).normal(CLASSES[:, None, None, None] * 0.2, size=(16, 8, 8, 3)).astype(np.float32)


def torch_case(mode: str, made: dict[str, Any], device: str = "cpu") -> list[float]:
    from functools import partial

    import torch
    from torch import nn

    torch.manual_seed(0)
    images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).contiguous().to(device)
    targets = torch.from_numpy(CLASSES).to(device)
    blocks = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), blocks, nn.Flatten(), nn.Linear(8 * 36, 4)).to(device)
    if mode == "inference":
        return [float(number) for number in made["make_infer"](model)(images).flatten()]
    make_optimizer = partial(torch.optim.Adam, lr=3e-3)
    if mode == "captured":
        return captured_losses(torch, made["make_step"], model, (images, targets), make_optimizer)
    step = made["make_step"](model, nn.CrossEntropyLoss(), make_optimizer)
    return [float(step(images, targets)) for _ in range(STEPS)]


def captured_losses(torch: Any, make_step: Any, model: Any, batch: Any, make_optimizer: Any) -> list[float]:
    """Train with CUDA graphs whose replay is another call of the function that was captured, on the CPU."""

    class Graph:
        def replay(self) -> None:
            loss.copy_(train(*buffers))

    def make_capturable(parameters: Any, *, capturable: bool) -> Any:
        assert capturable
        return make_optimizer(parameters)  # on the CPU none is capturable

    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, fake in {"Stream": lambda: stream, "current_stream": lambda: stream, "CUDAGraph": Graph}.items():
        setattr(torch.cuda, name, fake)
    torch.cuda.stream = torch.cuda.graph = lambda _: nullcontext()
    step = make_step(model, torch.nn.CrossEntropyLoss(), make_capturable)
    capture = inspect.getclosurevars(step).nonlocals["capture"]
    train = inspect.getclosurevars(capture).nonlocals["train"]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    _, buffers, loss = captured = capture(*batch)
    assert all(map(torch.equal, model.parameters(), weights))
    # As at the first step, but with buffers that are known here, and empty until a step fills them.
    step.__closure__[step.__code__.co_freevars.index("captured")].cell_contents = captured
    for buffer in buffers:
        buffer.zero_()
    return [float(step(*batch)) for _ in range(STEPS)]


def keras_case(mode: str, made: dict[str, Any]) -> list[float]:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), layers.Dense(4)]
    )
    keras.config.set_dtype_policy("float32")  # the next case's model is made without this one's policy
    if mode == "inference":
        outputs = made["make_infer"](model)(IMAGES)
        return [float(number) for number in np.asarray(keras.ops.cast(outputs, "float32")).flatten()]
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = made["make_step"](model, loss_fn, keras.optimizers.Adam(3e-3))
    losses = [float(step(IMAGES, CLASSES)) for _ in range(STEPS)]
    if hasattr(step, "sync"):
        step.sync()
    # What was trained is in the model, whose loss is therefore the next of them.
    return [*losses, float(loss_fn(CLASSES, model(IMAGES)))]


def mlx_case(mode: str, made: dict[str, Any]) -> list[float]:
    import mlx.core as mx
    from mlx import nn, optimizers

    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    images, targets = mx.array(IMAGES), mx.array(CLASSES)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), lambda x: x.reshape(len(x), -1), nn.Linear(8 * 36, 4))
    if mode == "inference":
        return [float(number) for number in np.array(made["make_infer"](model)(images).astype(mx.float32)).flatten()]

    def loss_fn(outputs: Any, targets: Any) -> Any:
        return nn.losses.cross_entropy(outputs, targets, reduction="mean")

    step = made["make_step"](model, loss_fn, optimizers.Adam(learning_rate=3e-3))
    return [float(step(images, targets)) for _ in range(STEPS)]


CASES: dict[str, Callable[..., list[float]]] = {
    "torch": torch_case,
    "tensorflow": keras_case,
    "jax": keras_case,
    "mlx": mlx_case,
}

if __name__ == "__main__":
    framework = sys.argv[1]
    os.environ["KERAS_BACKEND"] = framework
    answers = []
    for case in json.load(sys.stdin):
        made: dict[str, Any] = {}
        exec(case["source"], made)
        where = [case["device"]] if "device" in case else []
        answers.append(CASES[framework](case["mode"], made, *where))
    json.dump({"numbers": answers, "metalmark": "metalmark" in sys.modules}, sys.stdout)
