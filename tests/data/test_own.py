"""A user's own data: what is taken, how it is split and told from other data, and the sentence for each mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from metalmark.data.arrays import ArraySplit, MappedSplit
from metalmark.data.dataset import Dataset, Part, Stream, held_out
from metalmark.data.own import read_own
from metalmark.errors import UsageError
from metalmark.model.workload import Batch, Data

X = np.arange(60, dtype=np.float64).reshape(20, 3)
Y = np.arange(20)


class Squares:
    """A Dataset as PyTorch's are, without PyTorch."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return np.full(3, number, np.float32), number


def batches(count: int = 5) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(count):
        yield X[4 * number : 4 * number + 4], Y[4 * number : 4 * number + 4]


def read(given: Any, *, validated: bool = True, seed: int = 0) -> Dataset:
    return read_own(given, name="net.py:net", seed=seed, validated=validated)


def rows(part: Part | None) -> list[int]:
    """The targets of a part, which number its samples."""
    assert part is not None
    if isinstance(part, Stream):
        return [int(number) for batch in part.batches(0) for number in batch.targets]
    return [int(number) for number in part.take(np.arange(len(part))).targets]


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X, Y],
        {"x": X, "y": Y},
        {"Inputs": X, "Targets": Y},
        Batch(inputs=X, targets=Y),
        Squares(),
        Data(train=(X, Y)),
        ((X, X), Y),
        ({"a": X, "b": X}, {"number": Y}),
    ],
    ids=["pair", "list of two", "x and y", "inputs and targets", "Batch", "Dataset", "Data", "two inputs", "dicts"],
)
def test_samples_are_split_by_their_positions(given: Any) -> None:
    dataset = read(given)
    assert not isinstance(dataset.train, Stream)
    assert dataset.validation is not None
    taken = [part.take(np.arange(len(part))) for part in (dataset.train, dataset.validation)]  # type: ignore[arg-type]
    targets = [batch.targets["number"] if isinstance(batch.targets, dict) else batch.targets for batch in taken]
    assert [each.tolist() for each in targets] == [each.tolist() for each in held_out(20)]
    inputs = taken[0].inputs
    first = inputs["a"] if isinstance(inputs, dict) else inputs[0] if isinstance(inputs, tuple) else inputs
    assert first.dtype == np.float32, "float64 is what NumPy makes, and no network computes with it"
    assert first.shape == (len(dataset.train), 3)


def test_a_sample_keeps_its_side_when_others_are_added() -> None:
    few, many = (set(held_out(count)[1].tolist()) for count in (1000, 1500))
    assert few == {number for number in many if number < 1000}
    assert 150 < len(few) < 250
    for count in (2, 3, 4):
        assert all(map(len, held_out(count)))


def test_parts_that_are_given_stay_as_they_are() -> None:
    dataset = read(Data(train=(X[:15], Y[:15]), validation=(X[15:], Y[15:])))
    assert rows(dataset.train) == list(range(15))
    assert rows(dataset.validation) == list(range(15, 20))
    named = read({"x_train": X[:15], "y_train": Y[:15], "x_test": X[15:], "y_test": Y[15:]})
    assert (rows(named.train), rows(named.validation)) == (list(range(15)), list(range(15, 20)))
    parts = read({"train": Squares(15), "test": (X, Y), "validation": Squares(5)})
    assert (rows(parts.train), rows(parts.validation)) == (list(range(15)), list(range(5)))


def test_inputs_without_targets() -> None:
    """A model that computes its loss itself takes what it needs by name."""
    dataset = read({"input_ids": Y, "labels": Y})
    batch = dataset.train.take(np.array([0]))  # type: ignore[union-attr]
    assert sorted(batch.inputs) == ["input_ids", "labels"]
    assert batch.targets is None
    assert read(X).train.take(np.array([0])).targets is None  # type: ignore[union-attr]


class Numbered:
    """Keras knows its own by this name; see `PyDataset` below."""

    def __init__(self) -> None:
        self.epochs = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        return X[4 * number : 4 * number + 4], Y[4 * number : 4 * number + 4]

    def on_epoch_end(self) -> None:
        self.epochs += 1


PyDataset = type("PyDataset", (Numbered,), {"__module__": "keras.src.trainers", "on_epoch_end": Numbered.on_epoch_end})


@pytest.mark.parametrize(
    ("given", "length"),
    [
        (list(batches()), 5),
        (batches, None),
        (lambda epoch: list(batches())[:: 1 if epoch < 2 else -1], None),
        (PyDataset(), 5),
    ],
    ids=["list", "function", "function of the epoch", "PyDataset"],
)
def test_batches_in_an_order_of_their_own(given: Any, length: int | None) -> None:
    dataset = read(Data(train=given, validation=(X, Y)))
    stream = dataset.train
    assert isinstance(stream, Stream)
    assert stream.length == length
    assert rows(stream) == list(range(20))
    for _ in range(2):
        assert sorted(number for batch in stream.batches(2) for number in batch.targets) == list(range(20))
    assert next(iter(stream.batches(1))).inputs.dtype == np.float32


def test_batches_can_be_split_where_their_order_stays() -> None:
    for given in (list(batches()), PyDataset()):
        dataset = read(given)
        train, validation = rows(dataset.train), rows(dataset.validation)
        assert sorted(train + validation) == list(range(20))
        assert validation
        assert rows(dataset.validation) == validation
        assert isinstance(dataset.train, Stream)
        assert dataset.train.length == len(list(dataset.train.batches(3)))
    assert read(batches, validated=False).validation is None, "bench needs none"


def test_keras_batches_are_shuffled_by_seed_and_epoch_and_told_when_an_epoch_ends() -> None:
    given = PyDataset()
    stream = read(Data(train=given, validation=(X, Y))).train
    assert isinstance(stream, Stream)

    def pass_of(epoch: int) -> list[int]:
        return [int(batch.targets[0]) for batch in stream.batches(epoch)]

    assert pass_of(1) == pass_of(1) != pass_of(2)
    assert given.epochs == 3
    mine = type("Mine", (PyDataset,), {"on_epoch_end": lambda _: None})()
    assert "on_epoch_end" in " ".join(read(Data(train=mine, validation=(X, Y))).notes)


def test_the_digest_is_of_the_contents() -> None:
    changed = X.copy()
    changed[7, 1] += 1
    assert read((X, Y)).digest == read((X.copy(), Y)).digest != read((changed, Y)).digest
    assert read(Squares()).digest == read(Squares()).digest != read(Squares(19)).digest
    assert "first, middle and last sample" in read(Squares()).source, "a change elsewhere is not seen, so it is said"
    assert read((X, Y)).digest != read(Data(train=(X, Y), validation=(X, Y))).digest


def test_what_is_random_is_said_and_can_go_on_all_the_same() -> None:
    rng = np.random.default_rng()
    noisy = type("Noisy", (Squares,), {"__getitem__": lambda _, number: (rng.normal(size=3), number)})
    one, two = read(noisy()), read(noisy())
    assert one.digest == two.digest, "or a training that augments could never be resumed"
    assert "Noisy draws its samples from random numbers of its own" in one.notes[0]
    seeded = type("Seeded", (Squares,), {"__getitem__": lambda _, number: (np.random.rand(3), number)})
    assert read(seeded()).notes == (), "these numbers are seeded for each epoch"

    def shuffled() -> Iterator[Any]:
        order = rng.permutation(20)
        yield X[order], Y[order]

    streams = [read(Data(train=shuffled, validation=(X, Y))) for _ in range(2)]
    assert streams[0].digest == streams[1].digest
    assert "sees another order" in streams[0].notes[0]
    assert read(Data(train=batches, validation=(X, Y))).notes == ()


class Point(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class NoLength:
    def __getitem__(self, number: int) -> Any:
        return number, number


def changed(number: int, sample: Any) -> Any:
    return type("Changed", (Squares,), {"__getitem__": lambda _, i: sample if i == number else (np.ones(3), i)})()


MISTAKES: dict[str, tuple[Any, str, str]] = {
    "lengths differ": ((X, Y[:19]), "x has 20 samples and y has 19", "Each sample needs one of both"),
    "two data sets": (((X, Y), (X[:5], Y[:5])), r"x\[0\] has 20 samples and y\[0\] has 5", "mm.Data(train="),
    "empty arrays": ((X[:0], Y[:0]), "is empty: x has 0 samples", "at least one sample"),
    "empty list": ([], "is an empty list", "at least one batch"),
    "empty Dataset": (Squares(0), "the Dataset Squares is empty: its length is 0", "at least one"),
    "empty dict": ({}, "it is empty", "Give x and y"),
    "one sample": ((X[:1], Y[:1]), "is one sample: training and validation each need one", "Give more"),
    "nothing": (None, "is None: `data` returned nothing", "return x, y"),
    "a class": (Squares, "is the class Squares, not an object of it", "Squares(...)"),
    "a path": ("data.csv", "is str 'data.csv', not samples", "--data PATH"),
    "a number": (3, "is a int, not samples", "arrays (x, y)"),
    "a generator": (batches(), "is a generator, which is used up after one epoch", "function that returns a new one"),
    "no length": (NoLength(), "the Dataset NoLength has no length", "def __len__"),
    "shapes differ": (
        changed(3, (np.ones(4), 1)),
        r"inputs of sample 3 has the shape \(4,\), and that of sample 0 has \(3,\): they can't be stacked",
        "collate_fn",
    ),
    "parts differ": (changed(3, {"a": 1}), r"sample 3 has inputs\['a'\], and sample 0 has inputs, targets", "same"),
    "three parts": (changed(3, (1, 2, 3)), r"sample 3 is a tuple of 3 \(an int, .*\), not a pair", "(a, b)"),
    "text": (changed(3, ("spam", 1)), "inputs is text, which no framework computes with", "token numbers"),
    "objects": ((np.array([[1], [2, 3]], object), Y[:2]), "x is an array of Python objects", "pad them"),
    "words": ((X, np.array(["cat"] * 20)), "y is text", "classes into 0, 1, 2"),
    "a dict that is no batch": ({"x": X, "y": "spam"}, "y is text", "token numbers"),
    "batch of three": ([(X, Y, Y)], r"batch 0 is a tuple of 3 \(an array of float64 \(20, 3\)", "Give (inputs"),
    "single samples": ([(X[0], 0)], "targets is one number, without an axis that counts samples", ".batch("),
    "batch of text": ([("a", "b")], "inputs is text", "token"),
    "batch lengths": ([(X, Y[:3])], "batch 0: inputs has 20 samples and targets has 3", "one of both"),
    "no batches": (lambda: iter(()), "gave no batches", "at least one batch"),
    "a function of nothing": (lambda: 3, "the function returned an int, which is not an iterable", ""),
    "function to split": (batches, "can't be split into training and validation: it does not say how many", "mm.Data("),
    "Datasets in a tuple": ((Squares(), Squares()), r"is a tuple of 2 \(a Squares, .*, not arrays", "mm.Data("),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_sentence_that_names_it(mistake: str) -> None:
    given, said, hint = MISTAKES[mistake]
    with pytest.raises(UsageError, match=said) as caught:
        rows(read(given).train)
    assert caught.value.message.startswith("net.py:net's data")
    assert hint in caught.value.hint


def test_a_named_tuple_is_one_nest_of_inputs() -> None:
    batch = read([Point(X, Y), Point(X, Y)]).train
    assert isinstance(batch, Stream)
    assert next(batch.batches(1)).inputs.y.tolist() == Y.tolist()


def test_kinds_are_told_apart_without_a_framework() -> None:
    assert isinstance(ArraySplit.of(X, Y, name="d"), ArraySplit)
    assert isinstance(MappedSplit(Squares(), 20, "d"), MappedSplit)
    iterable = type("IterableDataset", (), {"__module__": "torch.utils.data.dataset", "__iter__": lambda _: batches()})
    with pytest.raises(UsageError, match="which gives single samples") as caught:
        read(iterable())
    assert "DataLoader(dataset, batch_size=params['batch_size'])" in caught.value.hint
