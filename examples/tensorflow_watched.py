"""A TensorFlow loop with mm.run: is it the GPU that is slow, or is it waiting for its input?

python examples/tensorflow_watched.py [--steps 60] [--produce-ms 5]

The input pipeline takes --produce-ms for each batch, as decoding images does. The first loop asks for each batch when
it is needed, the second has tf.data make them ahead. Where the step takes longer than the batch, that hides all of the
waiting; where it does not, some share stays, and the pipeline is what to make faster.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import metalmark as mm

BATCH = 128


def batches(steps, produce_s):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        time.sleep(produce_s)
        images = rng.random((BATCH, 28, 28, 1), np.float32)
        yield images, (images.mean((1, 2, 3)) > 0.5).astype(np.int32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--produce-ms", type=float, default=5.0)
    options = parser.parse_args()

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1024, "relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    shapes = (tf.TensorSpec((BATCH, 28, 28, 1), tf.float32), tf.TensorSpec((BATCH,), tf.int32))
    source = tf.data.Dataset.from_generator(
        lambda: batches(options.steps, options.produce_ms / 1000), output_signature=shapes
    )
    step(*next(iter(source)))  # traced outside of the loops, so that neither pays for it
    print(f"{mm.device()}, because: {mm.device().why}")
    for name, data in (("when needed", source), ("made ahead", source.prefetch(8))):
        with mm.run(f"tensorflow, {name}", params={"produce_ms": options.produce_ms}) as run:
            for images, labels in run.watch(data):
                loss = step(images, labels)
                run.log(loss=loss)
        print(run)


if __name__ == "__main__":
    main()
