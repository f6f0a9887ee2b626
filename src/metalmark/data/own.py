"""A user's own samples: arrays, a Dataset or loader of any framework, or any iterable of batches.

Objects of frameworks are recognised by the names of their classes: whoever made one has imported the framework, and
nobody else needs it.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from metalmark.data.arrays import (
    A_PAIR,
    TWO_PARTS,
    ArraySplit,
    MappedSplit,
    arrays_in,
    is_array,
    named_arrays,
    pair_of,
    shown,
)
from metalmark.data.dataset import Dataset, Part, Stream, Subset, held_out, order
from metalmark.data.recognised import Recognised
from metalmark.errors import UsageError
from metalmark.model.nest import flatten
from metalmark.model.workload import Batch, Data

A_NEW_ONE = "Give a function that returns a new one: `data=lambda params: make_batches`, without calling it."


def read_own(given: Any, *, name: str, seed: int = 0, validated: bool = False) -> Dataset:
    """Make a data set of what a workload's `data` returned. `validated`: a part for validation is needed."""
    called = f"{name}'s data"
    parts = _parts(given)
    train, validation = _divided(parts.train, called, seed)
    if parts.validation is not None:
        validation = part_of(parts.validation, name=f"{name}'s validation data", seed=seed)
    for part in (train, validation) if validated else ():
        if isinstance(part, Stream) and part.endless:
            raise UsageError(f"{part.name} never ends, so an epoch of it would not.", hint="Leave out .repeat().")
    digests = [Recognised.by(part) for part in (train, validation) if part is not None]
    if validation is None and (validated or not isinstance(train, Stream)):
        train, validation = _split_off(train, digests[0], called)
    source = digests[0].source
    notes = tuple(dict.fromkeys(known.note for known in digests if known.note))
    digest = hashlib.sha256("\n".join(known.digest for known in digests).encode()).hexdigest()
    return Dataset(name="own", source=source, train=train, validation=validation, digest=digest, notes=notes)


def _parts(given: Any) -> Data:
    """Take Data as it is, and a dict of parts, as the library `datasets` has them, for the same."""
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping) and "train" in given and not is_array(given["train"]):
        held = next((given[name] for name in ("validation", "valid", "val", "test") if name in given), None)
        return Data(train=given["train"], validation=held)
    return Data(train=given)


def _divided(given: Any, name: str, seed: int) -> tuple[Part, Part | None]:
    if isinstance(given, Mapping):
        return named_arrays(given, name=name, any_names=True)
    return part_of(given, name=name, seed=seed), None


def part_of(given: Any, *, name: str, seed: int) -> Part:
    """Recognise what was given, or say in a sentence what it is and what to give."""
    kind = type(given).__name__
    if given is None:
        raise UsageError(f"{name} is None: `data` returned nothing.", hint="End it with `return x, y`.")
    if isinstance(given, type):
        raise UsageError(
            f"{name} is the class {given.__name__}, not an object of it.", hint=f"Make one: {given.__name__}(...)."
        )
    if isinstance(given, (str, bytes, Path)):
        raise UsageError(
            f"{name} is {kind} {str(given)[:60]!r}, not samples.", hint="Read it in `data`, or give it as --data PATH."
        )
    if is_a(given, "torch", "DataLoader"):
        from metalmark.data.on_torch import loader_stream

        return loader_stream(given, name=name.replace("data", "DataLoader"), seed=seed, read=_reader(name))
    if is_a(given, "torch", "IterableDataset"):
        raise UsageError(
            f"{name} is the IterableDataset {kind}, which gives single samples.",
            hint="Put it into a DataLoader: DataLoader(dataset, batch_size=params['batch_size']).",
        )
    if is_a(given, "tensorflow", "DatasetV2"):
        from metalmark.data.on_tensorflow import tensorflow_stream

        return tensorflow_stream(given, name=name.replace("data", "tf.data.Dataset"), read=_reader(name))
    if is_a(given, "keras", "PyDataset") or is_a(given, "tf_keras", "Sequence"):
        return _numbered_stream(given, name=name.replace("data", kind), seed=seed)
    if isinstance(given, Mapping):
        return named_arrays(given, name=name, any_names=True)[0]
    if isinstance(given, (tuple, list, Batch)) or is_array(given):
        return _collection(given, name)
    return _object(given, name, kind)


def _collection(given: Any, name: str) -> Part:
    """A tuple of arrays is one set of inputs and targets; a list is of batches, unless it is of two arrays."""
    if isinstance(given, list) and not (len(given) == 2 and all(map(is_array, given))):
        if not given:
            raise UsageError(f"{name} is an empty list.", hint="Give (x, y), or a list with at least one batch.")
        return Stream(name=name, open=lambda _: enumerate(given), read=_reader(name), length=len(given))
    if isinstance(given, tuple) and any(not is_array(leaf) for leaf in flatten(given)[0]):
        raise UsageError(f"{name} is {shown(given)}, not arrays.", hint=f"Give (x, y). {TWO_PARTS}")
    inputs, targets = pair_of(given, name)
    return ArraySplit.of(inputs, targets, name=name)


def _object(given: Any, name: str, kind: str) -> Part:
    if hasattr(given, "__getitem__"):
        try:
            count = len(given)
        except (TypeError, NotImplementedError) as error:
            raise UsageError(
                f"{name}: the Dataset {kind} has no length.",
                hint=f"Add `def __len__(self)` to {kind}, or give a DataLoader or an iterable of batches.",
            ) from error
        if not count:
            raise UsageError(f"{name}: the Dataset {kind} is empty: its length is 0.", hint="Give at least one sample.")
        return MappedSplit(given, count, name)
    if isinstance(given, Iterator):
        raise UsageError(f"{name} is a {kind}, which is used up after one epoch.", hint=A_NEW_ONE)
    if isinstance(given, Iterable):
        return _iterable_stream(lambda _: given, name, _length(given))
    if callable(given):
        return _function_stream(given, name)
    raise UsageError(
        f"{name} is a {kind}, not samples.",
        hint="Give arrays (x, y), a Dataset, a DataLoader, a tf.data.Dataset, or an iterable of batches.",
    )


def is_a(thing: Any, package: str, name: str) -> bool:
    """Whether a thing is of a class of this name in a package, without importing it."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(thing).__mro__)


def _reader(name: str) -> Callable[[int, Any], Batch]:
    def read(number: int, what: Any) -> Batch:
        inputs, targets = pair_of(what, f"{name}: batch {number:,}")
        arrays, layout = arrays_in(inputs, targets, f"{name}: batch {number:,}", ("inputs", "targets"))
        if not arrays:
            raise UsageError(f"{name}: batch {number:,} is {shown(what)}, without any array.", hint=A_PAIR)
        return Batch(**layout.rebuild(arrays))

    return read


def _iterable_stream(make: Callable[[int], Any], name: str, length: int | None) -> Stream:
    def begin(epoch: int) -> Iterator[tuple[int, Any]]:
        made = make(epoch)
        if not isinstance(made, Iterable):
            raise UsageError(f"{name}: the function returned {shown(made)}, which is not an iterable of batches.")
        return enumerate(made)

    return Stream(name=name, open=begin, read=_reader(name), length=length)


def _function_stream(make: Callable[..., Any], name: str) -> Stream:
    """A function of no arguments, or of the epoch's number."""
    try:
        needed = [each for each in inspect.signature(make).parameters.values() if each.default is each.empty]
        takes_epoch = any(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in needed)
    except (TypeError, ValueError):
        takes_epoch = False
    return _iterable_stream(make if takes_epoch else lambda _: make(), name, None)


def _numbered_stream(given: Any, *, name: str, seed: int) -> Stream:
    """Batches by number, as Keras has them; in another order in each epoch, as `fit` takes them."""
    count = _length(given)
    if not count:
        raise UsageError(f"{name} has no batches: its length is {count}.", hint="Let __len__ return their number.")
    read = _reader(name)

    def begin(epoch: int) -> Iterator[tuple[int, Any]]:
        numbers = order(count, seed=seed, epoch=epoch, shuffle=epoch > 0).tolist()
        yield from zip(numbers, numbers, strict=True)
        if epoch:
            given.on_epoch_end()

    owner = next(kind for kind in type(given).__mro__ if "on_epoch_end" in vars(kind))
    note = ""
    if owner.__module__.split(".")[0] not in ("keras", "tf_keras"):
        note = f"{name} changes its samples after each epoch (on_epoch_end), which a resumed training does not repeat."
    return Stream(
        name=name, kind=type(given).__name__, open=begin, read=lambda number, _: read(number, given[number]),
        length=count, note=note,
    )  # fmt: skip


def _length(given: Any) -> int | None:
    try:
        return len(given)
    except (TypeError, NotImplementedError):
        return None


def _split_off(part: Part, known: "Recognised", name: str) -> tuple[Part, Part]:
    """Keep about a fifth for validation: of the samples, or of a stream's batches where they come in one order."""
    if not isinstance(part, Stream):
        if len(part) < 2:
            raise UsageError(
                f"{name} is one sample: training and validation each need one.", hint=f"Give more. {TWO_PARTS}"
            )
        train, validation = held_out(len(part))
        return Subset(whole=part, positions=train), Subset(whole=part, positions=validation)
    why = ""
    if part.length is None:
        why = "it does not say how many batches it has"
    elif part.length < 2:
        why = "it has one batch"
    elif known.note or not part.steady:
        why = "its batches come in another order each time"
    if why:
        raise UsageError(
            f"{part.name} can't be split into training and validation: {why}.",
            hint="Give mm.Data(train=..., validation=...); or arrays or a Dataset, of which a fifth is kept.",
        )
    assert part.length is not None
    parts = [frozenset(positions.tolist()) for positions in held_out(part.length)]
    train_part, held = (replace(part, keep=numbers, length=len(numbers), samples=None) for numbers in parts)
    return train_part, held
