"""A training on a user's own data: every sample once per epoch, and the same ones after it was resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from metalmark.data.dataset import Dataset
from metalmark.errors import UnsupportedError, UsageError
from metalmark.feeds.leaves import leaves_of
from metalmark.model.training import Goal
from metalmark.model.workload import Batch, Data, Param, Workload
from metalmark.training import samples
from metalmark.workloads.catalog import load
from tests.training.stub import RECIPE, StubTrainer, Told, loop, plan

X, Y = np.arange(44, dtype=np.float32).reshape(22, 2), np.arange(22, dtype=np.int32) % 10


class Numbered:
    def __len__(self) -> int:
        return 22

    def __getitem__(self, number: int) -> Any:
        return X[number], int(Y[number])


def shuffled() -> Iterator[Any]:
    order = np.random.permutation(22)  # as people write it, without a seed
    for begin in range(0, 22, 4):
        yield X[order[begin : begin + 4]], Y[order[begin : begin + 4]]


def by_epoch(epoch: int) -> Iterator[Any]:
    order = np.random.default_rng(epoch).permutation(22)
    for begin in range(0, 22, 4):
        yield Batch(inputs=X[order[begin : begin + 4]], targets=Y[order[begin : begin + 4]])


def in_batches() -> list[Any]:
    return [(X[begin : begin + 4], Y[begin : begin + 4]) for begin in range(0, 22, 4)]


def work(given: Any, **more: Any) -> Workload:
    return Workload(name="net", title="a net", params=(Param("batch_size", 4),), build={}, data=lambda _: given, **more)


KINDS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X, Y),
    "Dataset": Numbered,
    "list of batches": in_batches,
    "function": lambda: Data(train=shuffled, validation=(X, Y)),
    "function of the epoch": lambda: Data(train=by_epoch, validation=in_batches),
}


def trained(given: Any, folder: Path, epochs: int) -> list[list[float]]:
    """Train until there are so many epochs; return the samples of each step of this session."""
    folder.mkdir(exist_ok=True)
    trainer, net = StubTrainer(), work(given)
    dataset: Dataset = samples.dataset_of(net, plan())
    loop(trainer, dataset, folder, Told(), goal=Goal(epochs=epochs), work=net).run()
    return [arrays[0][:, 0].tolist() for arrays in trainer.trained]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_sees_what_an_uninterrupted_one_does(kind: str, tmp_path: Path) -> None:
    whole = trained(KINDS[kind](), tmp_path / "whole", 3)
    steps = len(whole) // 3
    epochs = [sorted(chain.from_iterable(whole[begin : begin + steps])) for begin in range(0, len(whole), steps)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(set(epochs[0])) == len(epochs[0]), "each sample once"
    if kind != "list of batches":
        assert whole[:steps] != whole[steps : 2 * steps], "another order in each epoch"
    parts = [trained(KINDS[kind](), tmp_path / "parts", number) for number in (1, 3)]
    assert parts[0] + parts[1] == whole


def test_other_data_is_not_gone_on_with(tmp_path: Path) -> None:
    trained((X, Y), tmp_path, 1)
    with pytest.raises(UnsupportedError, match="trained on other data"):
        trained((X + 1, Y), tmp_path, 2)


def test_a_pass_begins_anywhere() -> None:
    for given in ((X, Y), Data(train=by_epoch, validation=(X, Y))):
        net = work(given)
        part = samples.dataset_of(net, plan()).train
        with samples.open_pass(net, RECIPE, plan(), part, 2) as batches:
            whole = [arrays[0].tolist() for arrays in batches]
        with samples.open_pass(net, RECIPE, plan(), part, 2, first=2) as batches:
            assert [arrays[0].tolist() for arrays in batches] == whole[2:]
        count = samples.count_of(part, net, plan())
        assert count in (None, len(whole))


def test_workers_are_for_what_can_be_asked_by_several_threads() -> None:
    big = (np.zeros(1 << 20, np.uint8),)
    for given, wanted in (((X, Y), 3), (Numbered(), 0), (in_batches(), 0)):
        part = samples.dataset_of(work(given), plan()).train
        assert samples.choose_workers(None, part, big, cores=4) == wanted
    assert samples.choose_workers(2, samples.dataset_of(work(Numbered()), plan()).train, big, cores=4) == 2
    stream = samples.dataset_of(work(in_batches()), plan()).train
    with pytest.raises(UnsupportedError, match="--workers 2: net's data makes its batches itself"):
        samples.choose_workers(2, stream, big, cores=4)


def test_a_session_is_opened_with_one_sample() -> None:
    for given in ((X, Y), in_batches(), Data(train=by_epoch, validation=(X, Y))):
        net = work(given, sample=lambda _, inputs, labels: Batch(inputs=(inputs * 2,), targets=labels))
        one = samples.light(net, samples.dataset_of(net, plan())).batch(plan().params, np.random.default_rng(0))
        assert (one.inputs[0].shape, one.targets.shape) == ((1, 2), (1,))


def test_what_there_is_nothing_to_validate_on() -> None:
    with pytest.raises(UsageError, match="can't be split into training and validation"):
        samples.dataset_of(work(by_epoch), plan())
    with pytest.raises(UnsupportedError, match="has no data set, so there is nothing to validate on") as caught:
        samples.dataset_of(Workload(name="net", title="", params=(), build={}), plan())
    assert "--data PATH" in caught.value.hint


def test_a_stream_that_is_used_up_is_named(tmp_path: Path) -> None:
    class Once:
        """Gives its batches twice, to be looked at, and then once more."""

        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return iter(in_batches() if self.passes < 4 else [])

    with pytest.raises(UsageError, match="gave no batches when it was gone through again, in epoch 2") as caught:
        trained(Data(train=Once(), validation=(X, Y)), tmp_path, 2)
    assert "give a function that returns a new one" in caught.value.hint


def test_gpt_trains_on_text_and_on_made_up_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("to be or not to be, that is the question. " * 20)
    gpt = load("gpt")
    for data in (str(path), "synthetic"):
        what = msgspec.structs.replace(plan(seq_len=8, size="nano", phase="full", lora=0, weights="none"), data=data)
        dataset = samples.dataset_of(gpt, what)
        tokens, after = samples.first_batch(gpt, RECIPE, what, dataset.train)
        made, _ = leaves_of(gpt.batch(what.params, np.random.default_rng(0)))
        assert [(each.shape, each.dtype) for each in (tokens, after)] == [(each.shape, each.dtype) for each in made]
        np.testing.assert_array_equal(tokens[:, 1:], after[:, :-1])
    words = b"".join(bytes(row.tolist()) for row in tokens)
    assert words.isascii()
