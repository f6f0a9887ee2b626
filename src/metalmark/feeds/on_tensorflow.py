"""tf.data: a map over batch numbers, in as many parallel calls as there are workers, prefetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from metalmark.feeds.source import Arrays, Source
from metalmark.plan import Loader

ENDLESS = 2**62


@contextmanager
def tensorflow_loader(source: Source, loader: Loader) -> Iterator[Iterator[Arrays]]:
    first = source[0]
    types = [array.dtype for array in first]

    def make(index: Any) -> Any:
        arrays = tf.numpy_function(lambda number: source[int(number)], [index], types)
        # The shapes are lost on the way through Python, and a step must not be traced for unknown ones.
        return tuple(tf.ensure_shape(array, known.shape) for array, known in zip(arrays, first, strict=True))

    parallel = loader.workers if loader.workers > 1 else None
    batches = tf.data.Dataset.range(ENDLESS).map(make, num_parallel_calls=parallel, deterministic=True)
    options = tf.data.Options()
    # AutoTune would put a prefetch of its own where none was asked for.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    if loader.prefetch:
        batches = batches.prefetch(loader.prefetch)
    yield iter(batches.with_options(options))
