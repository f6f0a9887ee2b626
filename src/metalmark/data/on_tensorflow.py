"""A tf.data.Dataset as it was given."""

from collections.abc import Callable, Iterator
from typing import Any

from metalmark.data.dataset import Stream
from metalmark.errors import UsageError
from metalmark.model.workload import Batch

INFINITE, UNKNOWN = -1, -2
"""What `cardinality` says; tf.data.INFINITE_CARDINALITY and UNKNOWN_CARDINALITY."""


def tensorflow_stream(dataset: Any, *, name: str, read: Callable[[int, Any], Batch]) -> Stream:
    count = int(dataset.cardinality())
    if count == 0:
        raise UsageError(f"{name} is empty: it has no batches.", hint="Give at least one batch.")

    def begin(_: int) -> Iterator[tuple[int, Any]]:
        return enumerate(dataset)

    return Stream(
        name=name, kind="tf.data.Dataset", open=begin, read=read, length=count if count > 0 else None,
        endless=count == INFINITE,
    )  # fmt: skip
