"""What a user's own data is recognised by when a training goes on, and what is to be said of it."""

import hashlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metalmark.data.arrays import ArraySplit
from metalmark.data.dataset import Part, Stream
from metalmark.model.nest import Layout, flatten
from metalmark.model.workload import Batch


def seed_random_numbers() -> None:
    """Set the seeds that a user's own functions draw from, so that what they make up is the same in each process."""
    random.seed(0)
    np.random.seed(0)
    for module, function in (("torch", "manual_seed"), ("tensorflow", "random.set_seed")):
        found: Any = sys.modules.get(module)
        for name in function.split(".") if found is not None else ():
            found = getattr(found, name)
        if found is not None:
            found(0)


@dataclass(frozen=True)
class Recognised:
    """The digest of a part of the data, what to call it, and what to say of it."""

    digest: str
    source: str
    note: str = ""

    @classmethod
    def by(cls, part: Part) -> "Recognised":
        """Arrays are known by all of their contents; what must be asked for its samples, by a few."""
        if isinstance(part, ArraySplit):
            return cls(_hashed([_leaves(part)]), f"your arrays, {len(part):,} samples")
        if isinstance(part, Stream):
            return cls._by_stream(part)
        count, kind = len(part), type(getattr(part, "dataset", part)).__name__
        numbers = [np.array([number]) for number in sorted({0, count // 2, count - 1})]
        digest, same = _hashed_twice(lambda: list(map(part.take, numbers)))
        source = f"your {kind} of {count:,} samples (known by its length and its first, middle and last sample)"
        note = f"{kind} draws its samples from random numbers of its own: no training on it can be repeated exactly."
        return cls(hashlib.sha256(f"{count} {digest}".encode()).hexdigest(), source, "" if same else note)

    @classmethod
    def _by_stream(cls, part: Stream) -> "Recognised":
        digest, same = _hashed_twice(lambda: [part.first()])
        count = "" if part.length is None else f" of {part.length:,} batches"
        source = f"your {part.kind}{count} (known by its length and its first batch)"
        note = f"{part.name} is shuffled by random numbers of its own: a resumed training sees another order."
        digest = hashlib.sha256(f"{part.length} {digest}".encode()).hexdigest()
        return cls(digest, source, part.note if same else note)


Leaves = tuple[list[np.ndarray], Layout]


def _leaves(batch: Batch | ArraySplit) -> Leaves:
    return flatten({"inputs": batch.inputs, "targets": batch.targets})


def _hashed_twice(take: Callable[[], list[Batch]]) -> tuple[str, bool]:
    """Return a digest, and whether the same seeds give the same samples twice. Where they do not, only the form of the
    samples counts, which stays: a training that augments can go on all the same."""
    taken = []
    for _ in range(2):
        seed_random_numbers()
        taken.append([_leaves(batch) for batch in take()])
    digest = _hashed(taken[0])
    if digest == _hashed(taken[1]):
        return digest, True
    return _hashed([([_form(leaf) for leaf in leaves], layout) for leaves, layout in taken[0]]), False


def _form(array: np.ndarray) -> np.ndarray:
    """Return zeros of the same type and shape beyond the first axis, whose length may be random too."""
    return np.zeros((1, *array.shape[1:]), array.dtype)


def _hashed(nests: list[Leaves]) -> str:
    digest = hashlib.sha256()
    for leaves, layout in nests:
        for leaf, where in zip(leaves, layout.names, strict=True):
            digest.update(f"{where} {leaf.dtype.str} {leaf.shape}\n".encode())
            digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
    return digest.hexdigest()
