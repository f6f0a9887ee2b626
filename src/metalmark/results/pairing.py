"""Which cells of two sides differ only in what is compared; of any others it is said why they are not like for like."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from msgspec import Struct

from metalmark.model.codec import AnyRun
from metalmark.results.measured import Measured, measured_of, samples_by_seed

MAY_LACK = {"data read", "samples per step"}
"""Keys that are known only of a cell that completed."""


class Pair(NamedTuple):
    a: Measured
    b: Measured


class Unpaired(Struct, frozen=True, kw_only=True):
    side: str
    cell: str
    reason: str


class Pairing(Struct, frozen=True, kw_only=True):
    pairs: tuple[Pair, ...]
    unpaired: tuple[Unpaired, ...]
    compared: tuple[str, ...]
    """The keys in which the sides differ: what is compared."""
    unlike: dict[str, str]
    """Key of the question → how the sides differ in it. Not empty: no pair is like for like."""


class Side(NamedTuple):
    """Runs that are compared with those of another side, under the name that a reader knows them by."""

    name: str
    cells: Sequence[Measured]

    @classmethod
    def of_runs(cls, name: str, runs: Iterable[AnyRun]) -> Self:
        return cls(name, measured_of(runs))


def pair(a: Side, b: Side, *, by: Sequence[str] = (), anyway: bool = False) -> Pairing:
    """Pair each cell of `b` with the cell of `a` that answers the same question.

    A key in which the sides have nothing in common is what is compared; in every other one the two cells of a pair
    must agree. A part of the question (batch size, data, mode ...) with nothing in common leaves no pair, unless
    `anyway`. `by` names keys that are compared because the user says so.
    """
    asked = _keys([cell.what for cell in (*a.cells, *b.cells)])
    ways = _keys([cell.how for cell in (*a.cells, *b.cells)])
    values = {key: (_values(a, key), _values(b, key)) for key in (*asked, *ways) if key not in by}
    apart = [key for key, (ours, theirs) in values.items() if ours and theirs and not ours & theirs]
    speakable = frozenset().union(*(cell.speakable for cell in (*a.cells, *b.cells)))
    meant = [key for key in by if key in speakable or key not in asked]
    other = [key for key in asked if key in (*apart, *by) and key not in meant]
    unlike = {key: _against(a, b, key) for key in _told(other)}
    if "data" not in unlike and "data read" not in unlike:
        unlike |= _other_samples(a, b)
    compared = tuple(dict.fromkeys([*by, *(key for key in apart if key not in other)]))
    if unlike and not anyway:
        return Pairing(pairs=(), unpaired=(), compared=compared, unlike=unlike)
    match = [key for key in (*asked, *ways) if key not in apart and key not in by]
    pairs: list[Pair] = []
    unpaired: list[Unpaired] = []
    for cell in b.cells:
        found = [other for other in a.cells if not _differing(other, cell, match)]
        around = [key for key in cell.around if key not in by]
        alike = [other for other in found if all(other.around.get(key) == cell.around[key] for key in around)]
        found = alike or found  # where several fit: those on the same machine with the same versions
        if len(found) > 1 and not (cell.published or found[0].published):
            keys = _keys([keys for other in found for keys in (other.what, other.how, other.around)])
            differ = [shown(key) for key in keys if len({other.value(key) for other in found}) > 1]
            reason = f"{len(found)} cells of {a.name} fit it; they differ in {', '.join(differ)}"
            unpaired.append(Unpaired(side=b.name, cell=cell.name, reason=reason))
        elif found:
            pairs += [Pair(other, cell) for other in found]
        else:
            unpaired.append(Unpaired(side=b.name, cell=cell.name, reason=_nearest(cell, a, match)))
    used = {id(one.a) for one in pairs}
    # Nobody expects to have measured every cell of a published table.
    left = [cell for cell in a.cells if id(cell) not in used and not cell.published]
    unpaired += [Unpaired(side=a.name, cell=cell.name, reason=_nearest(cell, b, match)) for cell in left]
    return Pairing(pairs=tuple(pairs), unpaired=tuple(unpaired), compared=compared, unlike=unlike)


def _other_samples(a: Side, b: Side) -> dict[str, str]:
    """Whether trainings of one seed trained on other samples, which nothing else of the question shows."""
    ours, theirs = (samples_by_seed(run for cell in side.cells for run in cell.trainings) for side in (a, b))
    for seed, digests in ours.items():
        if seed in theirs and not digests & theirs[seed]:
            found = f"{', '.join(sorted(digests))} against {', '.join(sorted(theirs[seed]))}"
            return {"samples trained on": f"samples trained on {found} with seed {seed}"}
    return {}


def around_changes(one: Pair) -> list[str]:
    """What differs around them, as far as both know it: "torch 2.9.1 → 2.10.0"."""
    a, b = one.a.around, one.b.around
    return [f"{key} {a[key]} → {b[key]}" for key in a if key in b and a[key] != b[key]]


def _keys(every: Sequence[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for keys in every for key in keys))


def _values(side: Side, key: str) -> set[str]:
    """The side's values of a key. What a published figure does not say is not known, so it differs from nothing."""
    values = {cell.value(key) for cell in side.cells if key in cell.what or key in cell.how or not _silent(cell, key)}
    return {value or "" for value in values}


def _silent(cell: Measured, key: str) -> bool:
    return bool(cell.published) or key in MAY_LACK


def _differing(a: Measured, b: Measured, keys: Sequence[str]) -> list[str]:
    """The keys in which two cells differ, as far as both say anything."""
    told = [key for key in keys if not any(cell.value(key) is None and _silent(cell, key) for cell in (a, b))]
    return [key for key in told if (a.value(key) or "") != (b.value(key) or "")]


def _nearest(cell: Measured, other: Side, match: Sequence[str]) -> str:
    """Why no cell of the other side fits: what its nearest cell has instead."""
    gaps = [(keys, candidate) for candidate in other.cells if (keys := _differing(candidate, cell, match))]
    if not gaps:
        return f"every cell of {other.name} that fits has its pair already"
    keys, candidate = min(gaps, key=lambda gap: len(gap[0]))
    keys = _told(keys)
    has = ", ".join(f"{shown(key)} {candidate.value(key) or 'not said'}" for key in keys)
    own = ", ".join(f"{shown(key)} {cell.value(key) or 'not said'}" for key in keys)
    return f"it has {own}; the nearest of {other.name} has {has}"


def _against(a: Side, b: Side, key: str) -> str:
    def listed(side: Side) -> str:
        values = sorted(_values(side, key), key=lambda value: (len(value), value))
        return ", ".join(value if len(value) <= 40 else f"{value[:12]}…" for value in values) or "not said"

    if listed(a) == listed(b):
        return f"{shown(key)} decides what is done, not how it is done"
    return f"{shown(key)} {listed(a)} against {listed(b)}"


def _told(keys: Sequence[str]) -> list[str]:
    """A step's samples are its batch size, and what was read follows from the data set: one of the two is said."""
    said_by = {"samples per step": "batch_size", "data read": "data"}
    return [key for key in keys if said_by.get(key) not in keys]


def shown(key: str) -> str:
    return key.replace("_", " ")
