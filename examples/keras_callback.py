"""A Keras fit with mm.keras_callback: where does its time go, computing or waiting for input?

python examples/keras_callback.py [--epochs 3] [--produce-ms 5]

The data set takes --produce-ms for each batch, as decoding images does. One fit asks for each batch when it is needed,
another has two threads make them ahead. Both are kept as runs: `metalmark runs list`, and `metalmark compare` of both.
"""

import argparse
import time

import keras
import numpy as np

import metalmark as mm

BATCH = 64


class Blobs(keras.utils.PyDataset):
    """Images with a bright half; which half is the label."""

    def __init__(self, steps, produce_s, **options):
        super().__init__(**options)
        self.steps, self.produce_s = steps, produce_s

    def __len__(self):
        return self.steps

    def __getitem__(self, number):
        time.sleep(self.produce_s)
        random = np.random.default_rng(number)
        labels = random.integers(0, 2, BATCH)
        images = random.random((BATCH, 8, 8), np.float32)
        images[np.arange(BATCH), :, :4] += 0.2 * labels[:, None, None]
        return images, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--produce-ms", type=float, default=5.0)
    options = parser.parse_args()
    for name, workers in (("when needed", 1), ("made ahead", 2)):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential([keras.Input((8, 8)), *layers])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        train = Blobs(20, options.produce_ms / 1e3, workers=workers)
        watched = mm.keras_callback(f"keras, {name}", params={"batch_size": BATCH, "workers": workers})
        model.fit(train, epochs=options.epochs, validation_data=Blobs(5, 0), callbacks=[watched], verbose=0)
        print(watched)
        print("waiting for input:", f"{watched.result.input_wait_share():.0%}")


if __name__ == "__main__":
    main()
