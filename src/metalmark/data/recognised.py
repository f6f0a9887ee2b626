"""What a user's own data is recognised by when a training goes on, and what is to be said of it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metalmark.data.arrays import ArraySplit
from metalmark.data.dataset import Part, Stream
from metalmark.model.nest import Layout, flatten
from metalmark.model.workload import Batch


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
        note = f"{kind} gives other values each time a sample is asked for: no training of it can be repeated exactly."
        return cls(hashlib.sha256(f"{count} {digest}".encode()).hexdigest(), source, "" if same else note)

    @classmethod
    def _by_stream(cls, part: Stream) -> "Recognised":
        digest, same = _hashed_twice(lambda: [part.first()])
        count = "" if part.length is None else f" of {part.length:,} batches"
        source = f"your {part.kind}{count} (known by its length and its first batch)"
        note = f"{part.name} begins with another batch each time: a resumed training sees them in another order."
        digest = hashlib.sha256(f"{part.length} {digest}".encode()).hexdigest()
        return cls(digest, source, part.note if same else note)


Leaves = tuple[list[np.ndarray], Layout]


def _leaves(batch: Batch | ArraySplit) -> Leaves:
    return flatten({"inputs": batch.inputs, "targets": batch.targets})


def _hashed_twice(take: Callable[[], list[Batch]]) -> tuple[str, bool]:
    """Return a digest, and whether the same samples came twice. Of others only the form counts, which stays."""
    one, two = ([_leaves(batch) for batch in take()] for _ in range(2))
    digest = _hashed(one)
    if digest == _hashed(two):
        return digest, True
    return _hashed([([_form(leaf) for leaf in leaves], layout) for leaves, layout in one]), False


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
