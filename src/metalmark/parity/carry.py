"""Which parameter of one framework is which of another's.

Both sides hold their arrays in the common layout already. Names tell which is which where both networks use the same
ones; else the order of definition does, among arrays of the same shape.
"""

from collections.abc import Iterable, Mapping, Sequence

from metalmark.errors import UnsupportedError
from metalmark.parity.base import Slot
from metalmark.parity.conventions import notes_on

STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
COMMON = STATISTICS | {"kernel": "weight", "depthwise_kernel": "weight", "embeddings": "weight"} | {
    "gamma": "weight", "beta": "bias"
}  # fmt: skip
"""Keras' words for parts of a layer, as PyTorch's and MLX's."""
ENOUGH = 0.5
"""Share of the parameters whose names must be known to the other network before names are believed at all: single ones
agree by chance ("dense")."""
Shapes = Mapping[str, tuple[int, ...]]


def pair(
    own: Sequence[Slot], theirs: Shapes, *, frameworks: tuple[str, ...] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the reference's name of each of this side's parameters, and what a reader should know.

    `frameworks`: those of the two sides, whose conventions are told; none: all of them are. Raises where the two
    networks do not hold the same arrays.
    """
    found: dict[str, str] = {}
    for kind in ("parameter", "running statistic"):
        mine = {slot.name: slot.shape for slot in own if slot.statistic == (kind != "parameter")}
        other = {name: tuple(shape) for name, shape in theirs.items() if _is_statistic(name) == (kind != "parameter")}
        found |= _paired(mine, other, kind)
    ordered = {slot.name: found[slot.name] for slot in own}
    return ordered, notes_on(frameworks, has_statistics=any(slot.statistic for slot in own))


def _paired(mine: Shapes, theirs: Shapes, kind: str) -> dict[str, str]:
    found = _by_name(mine, theirs)
    if len(found) < ENOUGH * len(mine):
        found = {}
    rest = {name: shape for name, shape in mine.items() if name not in found}
    taken = set(found.values())
    others = {name: shape for name, shape in theirs.items() if name not in taken}
    by_shape: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, shape in others.items():
        by_shape.setdefault((_statistic(name), shape), []).append(name)
    for name, shape in rest.items():
        same = by_shape.get((_statistic(name), shape))
        if not same:
            raise _unfit(name, shape, rest, others, kind)
        found[name] = same.pop(0)
    left = [name for names in by_shape.values() for name in names]
    if left:
        first = next(name for name in others if name in left)
        raise UnsupportedError(
            f"The two networks are not the same: the reference's {kind} {first} {theirs[first]} has no counterpart.",
            hint="Build the same layers, in the same order, for both frameworks.",
        )
    return found


def _by_name(mine: Shapes, theirs: Shapes) -> dict[str, str]:
    """Pair names of which one is the end of the other, as far as there is no doubt."""
    ends: dict[str, list[str]] = {}
    for name in theirs:
        for end in _ends(_common(name)):
            ends.setdefault(end, []).append(name)
    whole = {_common(name): name for name in theirs}
    found: dict[str, str] = {}
    for name, shape in mine.items():
        common = _common(name)
        # The whole name first, then the other's that ends as this does, then the longest end of this that is a name.
        longer = ends.get(common, [])
        shorter = next((whole[end] for end in _ends(common) if end in whole), None)
        match = whole.get(common) or (longer[0] if len(longer) == 1 else shorter)
        if match is not None and theirs[match] == shape:
            found[name] = match
    counts: dict[str, int] = {}
    for match in found.values():
        counts[match] = counts.get(match, 0) + 1
    return {name: match for name, match in found.items() if counts[match] == 1}


def _ends(name: str) -> Iterable[str]:
    """Return the name without its first part, its first two, and so on: of at least two parts."""
    parts = name.split(".")
    return (".".join(parts[begin:]) for begin in range(len(parts) - 1))


def _common(name: str) -> str:
    """Return a name in PyTorch's words: "conv1/kernel" is "conv1.weight"."""
    *layers, last = name.replace("/", ".").split(".")
    return ".".join([*layers, COMMON.get(last, last)])


def _is_statistic(name: str) -> bool:
    return bool(_statistic(name))


def _statistic(name: str) -> str:
    last = _common(name).rpartition(".")[2]
    return last if last in STATISTICS.values() else ""


def _unfit(name: str, shape: tuple[int, ...], mine: Shapes, theirs: Shapes, kind: str) -> UnsupportedError:
    place = list(mine).index(name)
    names = list(theirs)
    other = f"{names[place]} {theirs[names[place]]}" if place < len(names) else "nothing"
    return UnsupportedError(
        f"The two networks are not the same: no {kind} of the reference fits {name} {shape}. In its place, in order, "
        f"the reference has {other}.",
        hint="Build the same layers, in the same order, for both frameworks.",
    )
