"""mnist-mlp and input-pipeline: perceptrons with one hidden layer of ReLU; Adam, cross-entropy.

mnist-mlp is 784-128-10. input-pipeline is 256-512-10, fed by a producer whose cost is set, to see what prefetching
hides.
"""

from dataclasses import dataclass

import numpy as np

from metalmark.model.plan import Feed
from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads import builders

LEARNING_RATE = 1e-3
CLASSES = 10


@dataclass(frozen=True)
class Perceptron:
    inputs: int
    hidden: int

    def make_batch(self, params: Params, rng: np.random.Generator) -> Batch:
        size = params["batch_size"]
        return Batch(
            inputs=(rng.random((size, self.inputs), np.float32),), targets=rng.integers(0, CLASSES, size, np.int32)
        )

    def forward_flops(self, _: Params) -> float:
        return 2.0 * (self.inputs * self.hidden + self.hidden * CLASSES)

    @property
    def training_factor(self) -> float:
        # The input needs no gradient, so its layer, nearly all of the work, has no third product: 2, not 3.
        first, second = self.inputs * self.hidden, self.hidden * CLASSES
        return (2 * first + 3 * second) / (first + second)


MNIST = Perceptron(784, 128)
PIPELINE = Perceptron(256, 512)


def sample(_: Params, images: np.ndarray, labels: np.ndarray) -> Batch:
    return Batch(inputs=(images.reshape(len(images), MNIST.inputs).astype(np.float32) / 255,), targets=labels)


mnist_mlp = Workload(
    name="mnist-mlp",
    title="784-128-10 perceptron, Adam, cross-entropy",
    params=(Param("batch_size", 32, "samples per step", minimum=1),),
    build=builders(__name__, MNIST),
    batch=MNIST.make_batch,
    datasets=("mnist", "fashion-mnist"),
    sample=sample,
    flops=MNIST.forward_flops,
    training_factor=MNIST.training_factor,
)
input_pipeline = Workload(
    name="input-pipeline",
    title="256-512-10 perceptron fed by a producer whose cost is set",
    params=(
        Param("batch_size", 32, "samples per step", minimum=1),
        Param("produce_ms", 5.0, "how long the producer takes per batch, ms", minimum=0),
    ),
    build=builders(__name__, PIPELINE),
    batch=PIPELINE.make_batch,
    produce_s=lambda params: float(params["produce_ms"]) / 1e3,
    flops=PIPELINE.forward_flops,
    training_factor=PIPELINE.training_factor,
    feed=Feed.PIPELINE,
)
