"""What the Keras frameworks share in an explanation: putting back what a session sets for the process, and reading the
profiles that XLA's and TensorFlow's tracers leave."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import keras

from metalmark.errors import UnsupportedError
from metalmark.model.explanation import OperationCost, Profile

MOST_OPERATIONS = 10


@contextmanager
def policy_restored() -> Iterator[None]:
    """Put back which dtype layers are made in."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


class ProfiledEvent(NamedTuple):
    """One execution of an operation."""

    name: str
    seconds: float


def summarise(events: Iterable[ProfiledEvent], steps: int, source: str) -> Profile | None:
    """Add up the events of some steps by name; None where there are none."""
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        seconds[event.name] += event.seconds
        calls[event.name] += 1
    total = sum(seconds.values())
    if not total:
        return None
    largest = sorted(seconds, key=lambda name: -seconds[name])[:MOST_OPERATIONS]
    operations = tuple(
        OperationCost(
            name=name, calls=max(1, round(calls[name] / steps)), seconds=seconds[name] / steps,
            share=seconds[name] / total,
        )
        for name in largest
    )  # fmt: skip
    return Profile(source=source, operations=operations, total_s=total / steps)


def threads_are_fixed(title: str) -> UnsupportedError:
    return UnsupportedError(
        f"{title} fixes its threads when it starts, so they can't be varied within one process.",
        hint="Compare runs: metalmark bench ... --threads 1,2,4",
    )
