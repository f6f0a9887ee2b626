"""Numbers of any framework as NumPy arrays, alone or stacked, and the sentences for what can't be either.

Numbers of 64 bits after the point become float32, which every framework computes with; all others keep their type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any

import numpy as np

from metalmark.data.dataset import Positions
from metalmark.errors import UsageError
from metalmark.model.nest import Layout, flatten, map_leaves
from metalmark.model.workload import Batch

PAIRS = (("x", "y"), ("inputs", "targets"), ("input", "target"), ("images", "labels"), ("features", "labels"),
         ("data", "target"))  # fmt: skip
VALIDATION = ("val", "valid", "validation", "test")
TWO_PARTS = "For two parts give mm.Data(train=..., validation=...)."
CONTAINERS = (Mapping, tuple, list, type(None))
A_PAIR = "Give (inputs, targets): several inputs as ((a, b), targets), or by name as ({'a': a, 'b': b}, targets)."


def is_array(thing: Any) -> bool:
    return hasattr(thing, "shape") and (hasattr(thing, "dtype") or hasattr(thing, "__array__"))


def named_arrays(
    arrays: Mapping[Any, Any], *, name: str, any_names: bool = False
) -> tuple["ArraySplit", "ArraySplit | None"]:
    """Find inputs and targets by their usual names. `any_names`: others are all inputs, by name."""
    known = {str(key).lower(): value for key, value in arrays.items()}
    for x, y in PAIRS:
        if x in known and y in known and len(known) == 2:
            return ArraySplit.of(known[x], known[y], name=name, names=(x, y)), None
        train = _named(known, x, y, ("train",), name)
        if train is not None:
            return train, _named(known, x, y, VALIDATION, name)
    if not arrays:
        raise UsageError(f"{name} has no arrays: it is empty.", hint="Give x and y.")
    if any_names:
        return ArraySplit.of(dict(arrays), None, name=name), None
    raise UsageError(
        f"{name} has the arrays {', '.join(map(str, arrays))}; which are the inputs and which the targets?",
        hint="Name them x and y (or x_train, y_train, x_test, y_test), or say --target-column NAME.",
    )


def _named(known: Mapping[str, Any], x: str, y: str, parts: Sequence[str], name: str) -> "ArraySplit | None":
    for part in parts:
        for first, second in ((f"{x}_{part}", f"{y}_{part}"), (f"{part}_{x}", f"{part}_{y}")):
            if first in known and second in known:
                return ArraySplit.of(known[first], known[second], name=name, names=(first, second))
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySplit:
    """Nests of arrays whose first axis counts the samples."""

    inputs: Any
    targets: Any
    classes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        inputs: Any,
        targets: Any,
        *,
        name: str,
        classes: tuple[str, ...] = (),
        names: tuple[str, str] = ("x", "y"),
    ) -> "ArraySplit":
        """Take arrays of any framework, and refuse what does not belong together."""
        arrays, layout = arrays_in(inputs, targets, name, names)
        split = cls(**layout.rebuild(arrays), classes=classes)
        if not arrays:
            raise UsageError(f"{name} has no arrays.", hint="Give (x, y).")
        return split

    def __len__(self) -> int:
        return len(flatten(self.inputs)[0][0])

    def take(self, positions: Positions) -> Batch:
        return Batch(
            inputs=map_leaves(lambda array: array[positions], self.inputs),
            targets=map_leaves(lambda array: array[positions], self.targets),
        )


@dataclass(frozen=True, eq=False)
class MappedSplit:
    """Samples of an object that has a length and gives sample number i when it is indexed with i."""

    dataset: Any
    count: int
    name: str

    def __len__(self) -> int:
        return self.count

    def take(self, positions: Positions) -> Batch:
        return collated([(int(number), self.dataset[int(number)]) for number in positions], self.name)


def collated(samples: list[tuple[int, Any]], name: str) -> Batch:
    """Stack numbered samples into one batch of NumPy arrays."""
    pairs = [pair_of(sample, f"{name}: sample {number}") for number, sample in samples]
    kinds = {type(part) for pair in pairs for part in pair}
    if not any(issubclass(kind, CONTAINERS) or is_dataclass(kind) for kind in kinds):
        # Two arrays each, as most samples are: taking nests apart would take as long as the rest.
        columns = zip(*pairs, strict=True)
        inputs, targets = map(partial(_stacked, samples, name), ("inputs", "targets"), columns)
        return Batch(inputs=inputs, targets=targets)
    taken = [flatten({"inputs": inputs, "targets": targets}) for inputs, targets in pairs]
    layout = taken[0][1]
    for (number, _), (_, its) in zip(samples, taken, strict=True):
        if its.names != layout.names:
            raise UsageError(
                f"{name}: sample {number:,} has {_places(its.names)}, and sample {samples[0][0]:,} has "
                f"{_places(layout.names)}.",
                hint="Every sample must hold the same parts.",
            )
    whole = [
        _stacked(samples, name, _place(where), [leaves[place] for leaves, _ in taken])
        for place, where in enumerate(layout.names)
    ]
    return Batch(**layout.rebuild(whole))


def _stacked(samples: list[tuple[int, Any]], name: str, where: str, values: Sequence[Any]) -> np.ndarray:
    """Stack what is in the same place of each sample."""
    called = f"{name}: {where}"
    column = [_array(value, called) for value in values]
    shape = column[0].shape
    for (number, _), array in zip(samples, column, strict=True):
        if array.shape != shape:
            as_array(array, called)  # words have no shape at all, and another message
            raise UsageError(
                f"{called} of sample {number:,} has the shape {array.shape}, and that of sample "
                f"{samples[0][0]:,} has {shape}: they can't be stacked into a batch.",
                hint="Crop or pad them to one shape in the Dataset, or give a DataLoader with a collate_fn.",
            )
    return as_array(np.stack(column), called)


def _array(value: Any, name: str) -> np.ndarray:
    try:
        if hasattr(value, "detach"):  # a PyTorch tensor, perhaps on a device
            return np.asarray(value.detach().cpu().numpy())
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} can't be turned into an array: {error}.", hint="Give arrays of numbers.") from error


def as_array(value: Any, name: str) -> np.ndarray:
    """Return numbers of any framework as a NumPy array."""
    array = _array(value, name)
    if array.dtype == object:
        raise UsageError(
            f"{name} is an array of Python objects ({type(value).__name__}), not of numbers.",
            hint="Rows of different lengths make one: pad them to one length. Numbers: array.astype('float32').",
        )
    if array.dtype.kind in "USTMmV":
        what = "text" if array.dtype.kind in "UST" else f"of the type {array.dtype}"
        raise UsageError(
            f"{name} is {what}, which no framework computes with.",
            hint="Turn it into numbers first: words into token numbers, classes into 0, 1, 2, ...",
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array


def shown(what: Any) -> str:
    """Describe what came: "a tuple of 3 (float32 (4, 2), int64 (4,), float32 (4,))"."""
    if is_array(what):
        return f"an array of {getattr(what, 'dtype', 'values')} {tuple(what.shape)}"
    kind = type(what).__name__
    article = "an" if kind[0].lower() in "aeio" else "a"
    if isinstance(what, Mapping):
        return f"{article} {kind} with {', '.join(map(repr, list(what)[:8]))}"
    if isinstance(what, (tuple, list)):
        parts = [shown(each) for each in what[:4]]
        return f"{article} {kind} of {len(what)} ({', '.join(parts)}{', ...' if len(what) > 4 else ''})"
    return f"{article} {kind}"


def pair_of(what: Any, called: str) -> tuple[Any, Any]:
    """Return inputs and targets of a sample or a batch; `called` is what messages call it."""
    if isinstance(what, Batch):
        return what.inputs, what.targets
    if isinstance(what, (tuple, list)) and not hasattr(what, "_fields"):
        if len(what) == 1:
            return what[0], None
        if len(what) == 2:
            return what[0], what[1]
        raise UsageError(f"{called} is {shown(what)}, not a pair of inputs and targets.", hint=A_PAIR)
    if isinstance(what, Mapping):
        for x, y in PAIRS:
            if set(what) == {x, y}:
                return what[x], what[y]
        return dict(what), None
    if what is None or isinstance(what, (str, bytes)):
        raise UsageError(f"{called} is {shown(what)}, not a pair of inputs and targets.", hint=A_PAIR)
    return what, None


def arrays_in(inputs: Any, targets: Any, name: str, names: tuple[str, str]) -> tuple[list[np.ndarray], Layout]:
    """Return the arrays of inputs and targets, whose first axis must count the same samples, and their form."""
    leaves, layout = flatten({"inputs": inputs, "targets": targets})
    called = [where.replace("['inputs']", names[0], 1).replace("['targets']", names[1], 1) for where in layout.names]
    arrays = [as_array(leaf, f"{name}: {where}") for leaf, where in zip(leaves, called, strict=True)]
    count = 0
    for array, where in zip(arrays, called, strict=True):
        if not array.ndim:
            raise UsageError(
                f"{name}: {where} is one number, without an axis that counts samples.",
                hint="Give batches: of a tf.data.Dataset with .batch(params['batch_size']).",
            )
        if array is arrays[0]:
            count = len(array)
        if len(array) != count:
            raise UsageError(
                f"{name}: {called[0]} has {count:,} samples and {where} has {len(array):,}.",
                hint=f"Each sample needs one of both. {TWO_PARTS}",
            )
    if arrays and not count:
        raise UsageError(f"{name} is empty: {called[0]} has 0 samples.", hint="Give at least one sample.")
    return arrays, layout


def _place(where: str) -> str:
    return where.replace("['inputs']", "inputs", 1).replace("['targets']", "targets", 1)


def _places(names: Sequence[str]) -> str:
    return ", ".join(map(_place, names)) or "nothing"
