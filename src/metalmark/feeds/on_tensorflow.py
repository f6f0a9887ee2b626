"""tf.data: a map over batch numbers, in as many parallel calls as there are workers, prefetched."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from metalmark.feeds.leaves import Arrays
from metalmark.feeds.source import Source
from metalmark.model.plan import Loader

ENDLESS = 2**62
QUIET_S = 0.1
PATIENCE_S = 5.0


class Tap:
    """The source as tf.data's threads see it. Closed, it gives any batch at once: their buffers fill and they rest.

    TensorFlow holds Python's lock while it takes its iterator down, and waits there for the calls that are under way:
    one that needs the lock to end makes both wait for ever.
    """

    def __init__(self, source: Source) -> None:
        self.first = source[0]
        self._source = source
        self._lock = threading.Lock()
        self._closed = False
        self._calls = self._running = 0

    def __call__(self, number: Any) -> Arrays:
        with self._lock:
            self._calls += 1
            if self._closed:
                return self.first
            self._running += 1
        try:
            return self._source[int(number)]
        finally:
            with self._lock:
                self._running -= 1

    def close(self) -> None:
        """Returns when nobody is in it and nobody came for a while."""
        with self._lock:
            self._closed = True
        seen, until_s = -1, time.monotonic() + PATIENCE_S
        while (self._running or seen != self._calls) and time.monotonic() < until_s:
            seen = self._calls
            time.sleep(QUIET_S)


@contextmanager
def tensorflow_loader(source: Source, loader: Loader) -> Iterator[Iterator[Arrays]]:
    tap = Tap(source)
    types = [array.dtype for array in tap.first]

    def make(index: Any) -> Any:
        arrays = tf.numpy_function(tap, [index], types)
        # The shapes are lost on the way through Python, and a step must not be traced for unknown ones.
        return tuple(tf.ensure_shape(array, known.shape) for array, known in zip(arrays, tap.first, strict=True))

    parallel = {"num_parallel_calls": loader.workers, "deterministic": True} if loader.workers > 1 else {}
    batches = tf.data.Dataset.range(ENDLESS).map(make, **parallel)
    options = tf.data.Options()
    # AutoTune would put a prefetch of its own where none was asked for.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    if loader.prefetch:
        batches = batches.prefetch(loader.prefetch)
    try:
        yield iter(batches.with_options(options))
    finally:
        tap.close()
