"""Several processes in TensorFlow: MultiWorkerMirroredStrategy, a worker per process."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from metalmark.backends.ranks import ONE, Ranks
from metalmark.errors import UnsupportedError
from metalmark.feeds.share import share_here
from metalmark.model.plan import Dtype, Plan, Settings
from metalmark.model.run import Absent
from metalmark.model.workload import Recipe

ADDRESSES = "METALMARK_ADDRESSES"
OWN_STATISTICS = "Each process normalises by the statistics of its own part of the batch (BatchNorm)."
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
Step = Callable[..., Any]


class TensorflowRanks:
    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._gathered = tf.function(self._gather)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        # A sum of rows, each of which is 0 in all processes but one.
        mine = np.zeros((self.count, len(values)))
        mine[self.number] = values
        return [[float(value) for value in row] for row in self._gathered(tf.constant(mine)).numpy()]

    def _gather(self, mine: Any) -> Any:
        def add(rows: Any) -> Any:
            # The identity has the device of this process; an argument has none, which is refused.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(rows))

        return self.strategy.run(add, (mine,))

    def apart(self, session: Any) -> Absent:  # noqa: ARG002
        return Absent(reason="TensorFlow's strategy sums the gradients inside the step, and has no step without that")

    def leave(self) -> None:
        """Its connections end with the process."""


_joined: list[TensorflowRanks] = []
"""The one world of this process: TensorFlow can't leave it, and keeps no name for it outside of its scope."""


def join(plan: Plan) -> Ranks:
    """Start this process's server, and meet the others at theirs. What a session would configure comes before."""
    from metalmark.backends.tensorflow import configure  # which imports this file

    share = share_here(plan)
    if share is None:
        return ONE
    configure(plan)
    cluster = {"worker": os.environ[ADDRESSES].split(",")}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": share.number}})
    _joined.append(TensorflowRanks(share.number, share.count))
    return _joined[0]


def scope() -> AbstractContextManager[Any]:
    """Return the context in which variables are made that all processes have."""
    found: AbstractContextManager[Any] = _joined[0].strategy.scope() if _joined else nullcontext()
    return found


def refuse(recipe: Recipe, settings: Settings, optimizer: Any) -> None:
    """Refuse what would train another network than one process does."""
    if recipe.step is not None:
        raise UnsupportedError(
            "--nproc does not reach into a step of your own, which runs forward, backward and update itself.",
            hint="Give the recipe a model, a loss and an optimiser instead of a step, or leave --nproc out.",
        )
    if settings.dtype is Dtype.FLOAT16:
        raise UnsupportedError(
            "--dtype float16 with --nproc on tensorflow: each process would scale its loss by itself.",
            hint="Use --dtype bfloat16 or float32.",
        )
    if any(getattr(optimizer, name, None) is not None for name in CLIPS):
        raise UnsupportedError(
            "--nproc on tensorflow: Keras clips the gradients of each process before they are summed, which is not "
            "what one process does.",
            hint="Leave clipnorm, clipvalue and global_clipnorm out of the optimiser, or leave --nproc out.",
        )


def notes_on(models: Sequence[Any]) -> tuple[str, ...]:
    layers = [layer for model in models for layer in model._flatten_layers()]
    return (OWN_STATISTICS,) if any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers) else ()


def in_all(step: Step) -> Step:
    """Return a step that all processes take together, and whose gradients are summed over them."""
    strategy = _joined[0].strategy
    return lambda *leaves: strategy.run(step, leaves)


def mean_loss(loss: Any, share: Any) -> Any:
    """Return the loss over the whole batch, of each process's loss over its part. `share`: its weight over their
    number."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, loss * tf.cast(share, loss.dtype))
