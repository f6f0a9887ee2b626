"""Trains mnist-mlp on real Fashion-MNIST with each framework and compares what they learn:

python examples/fashion_mnist_accuracy.py PATH [--framework torch,tensorflow,jax,mlx] [--seed 0]

PATH is a folder with the four IDX files, or `real` to download them. On Debian and Ubuntu
`apt-get install dataset-fashion-mnist` puts them in /usr/share/datasets/fashion-mnist.

Five epochs, batch 32, Adam at 1e-3, on the CPU; every framework gets the same batches in the same order, and
only the first weights differ. Fails if one stays under 86 % of the 10,000 test images, or two differ by
more than 1.5 points. This is about what is learnt: for speed, use `metalmark bench mnist-mlp`.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from metalmark.backends.catalog import FRAMEWORKS, find
from metalmark.data.catalog import load as load_data
from metalmark.data.dataset import order
from metalmark.model.plan import Settings
from metalmark.workloads.catalog import load as load_workload

EPOCHS, BATCH = 5, 32
LEAST, APART = 86.0, 1.5
ALL = ",".join(framework.name for framework in FRAMEWORKS.values() if not framework.hidden)


def on_torch(recipe, epochs, test):
    import torch

    optimizer = recipe.optimizer(recipe.model.parameters())
    for epoch in epochs:
        for images, labels in epoch:
            optimizer.zero_grad()
            # PyTorch indexes classes with int64.
            loss = recipe.loss(recipe.model(torch.from_numpy(images)), torch.from_numpy(labels).long())
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return recipe.model(torch.from_numpy(test)).numpy()


def on_keras(recipe, epochs, test):
    recipe.model.compile(optimizer=recipe.optimizer(), loss=recipe.loss)
    for epoch in epochs:
        for images, labels in epoch:
            recipe.model.train_on_batch(images, labels)
    return recipe.model.predict(test, batch_size=1000, verbose=0)


def on_mlx(recipe, epochs, test):
    from mlx import core as mx
    from mlx import nn

    model, optimizer = recipe.model, recipe.optimizer()
    step = nn.value_and_grad(model, lambda images, labels: recipe.loss(model(images), labels))
    for epoch in epochs:
        for images, labels in epoch:
            _, gradients = step(mx.array(images), mx.array(labels))
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state)
    return np.array(model(mx.array(test)))


def seed_framework(framework, seed):
    if framework == "torch":
        import torch

        torch.manual_seed(seed)
    elif framework == "mlx":
        from mlx import core as mx

        mx.random.seed(seed)
    else:
        import keras

        keras.utils.set_random_seed(seed)


def flat(images):
    return np.divide(images, np.float32(255), dtype=np.float32).reshape(len(images), -1)


def batches(split, seed, epoch):
    """Every sample once, in an order that only the seed and the epoch decide."""
    positions = order(len(split), seed=seed, epoch=epoch)
    for start in range(0, len(positions), BATCH):
        chosen = positions[start : start + BATCH]
        yield flat(split.images[chosen]), split.labels[chosen]


def train(path, framework, seed):
    """In a process of its own: one framework each, as everywhere in Metalmark."""
    data = load_data("fashion-mnist", path)
    seed_framework(framework, seed)
    family = FRAMEWORKS[framework].family
    recipe = load_workload("mnist-mlp").recipe(family, {"batch_size": BATCH})
    epochs = (batches(data.train, seed, epoch) for epoch in range(EPOCHS))
    start_s = time.perf_counter()
    outputs = {"torch": on_torch, "keras": on_keras, "mlx": on_mlx}[family](
        recipe, epochs, flat(data.validation.images)
    )
    elapsed_s = time.perf_counter() - start_s
    right = int((outputs.argmax(1) == data.validation.labels).sum())
    print(json.dumps({"percent": 100 * right / len(data.validation), "elapsed_s": elapsed_s, "source": data.source}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--framework", default=ALL, help=f"one or more of {ALL}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.path, options.framework, options.seed)
        return 0
    reached = {}
    for name in options.framework.split(","):
        environment = {**os.environ, **find(name).environment(Settings())}
        arguments = [options.path, "--framework", name, "--seed", str(options.seed), "--child"]
        child = subprocess.run(
            [sys.executable, __file__, *arguments], env=environment, stdout=subprocess.PIPE, check=True
        )
        found = json.loads(child.stdout.splitlines()[-1])
        if not reached:
            print(f"data: {found['source']}")
        reached[name] = found["percent"]
        print(f"{name:<12} {found['percent']:.2f} %   {found['elapsed_s']:6.1f} s", flush=True)
    spread = max(reached.values()) - min(reached.values())
    good = min(reached.values()) >= LEAST and spread <= APART
    print(f"{'good' if good else 'FAILED'}: lowest {min(reached.values()):.2f} % (at least {LEAST:g}), "
          f"apart {spread:.2f} points (at most {APART:g})")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
