"""A benchmark fed by a user's own data: by position through the framework's loader, or as a stream as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError, UsageError
from metalmark.feeds.source import Source, open_batches, thread_loader, with_data
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Plan, Scalar
from metalmark.model.workload import Batch, Data, Param, Recipe, Workload

ROOT = Path(__file__).parents[2]
X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20)
RECIPE = Recipe(model=None)


def workload(data: Callable[[Any], Any] | None, **more: Any) -> Workload:
    return Workload(name="net", title="a net", params=(Param("batch_size", 4),), build={}, data=data, **more)


def plan(*, data: str = "own", batch_size: int | None = 4, **loader: Any) -> Plan:
    params: dict[str, Scalar] = {} if batch_size is None else {"batch_size": batch_size}
    return Plan(
        workload="net",
        params=params,
        mode=Mode.TRAINING,
        framework="jax",
        device=Device(kind=DeviceKind.CPU),
        data=data,
        feed=Feed.PIPELINE,
        loader=Loader(**loader),
    )


def fed_batches(given: Any, count: int = 7, **changes: Any) -> list[tuple[np.ndarray, ...]]:
    what = plan(**changes)
    fed, _ = with_data(workload(lambda _: given), what)
    assert what.loader is not None
    with open_batches(Source(fed, RECIPE, what), what.loader, thread_loader) as opened:
        return list(islice(opened, count))


def stream_of_18(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, 18, 4):
        end = min(begin + 4, 18)
        yield X[begin:end] + 100 * epoch, Y[begin:end]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_by_position_go_through_the_frameworks_loader(workers: int) -> None:
    one, two = (fed_batches((X, Y), workers=workers, prefetch=workers) for _ in range(2))
    for (inputs, targets), (again, _) in zip(one, two, strict=True):
        np.testing.assert_array_equal(inputs, X[targets])
        np.testing.assert_array_equal(inputs, again)
    assert len({tuple(targets) for _, targets in one}) > 1


def test_a_stream_is_gone_through_again_and_again_without_its_short_batch() -> None:
    whole = [(inputs[:, 0].tolist(), targets.tolist()) for inputs, targets in fed_batches(stream_of_18, 9)]
    assert [targets for _, targets in whole[:4]] == [list(range(i, i + 4)) for i in (0, 4, 8, 12)]
    assert len(whole) == 9, "the fifth batch of each pass has two samples: other work than the steps before it"
    assert whole[4][1] == [0, 1, 2, 3]
    assert whole[4][0][0] == 200, "the second pass is asked for as epoch 2"


def test_what_a_workload_does_with_samples_it_does_with_a_users() -> None:
    def sample(_: Any, inputs: np.ndarray, labels: np.ndarray) -> Batch:
        return Batch(inputs=(inputs * 2,), targets=labels + 1)

    def augment(_: Any, inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return inputs + rng.integers(1000, 2000)

    for given in ((X, Y), stream_of_18):
        fed, _ = with_data(workload(lambda _, given=given: given, sample=sample), plan())
        batch = fed.batch({"batch_size": 4}, np.random.default_rng(0))
        shift = 200 if callable(given) else 0
        np.testing.assert_array_equal(batch.inputs[0], 2 * X[batch.targets - 1] + shift)
        fed, _ = with_data(workload(lambda _, given=given: given, augment=augment), plan())
        assert fed.batch({"batch_size": 4}, np.random.default_rng(0)).inputs.min() >= 1000


def test_what_fails_on_samples_is_named_with_what_it_was_given() -> None:
    def sample(_: Any, inputs: np.ndarray, labels: np.ndarray) -> Batch:
        return Batch(inputs=inputs.reshape(2, 99), targets=labels)

    fed, _ = with_data(workload(lambda _: (X, Y), sample=sample), plan())
    said = (
        r"`sample` of net failed in line \d+ of test_own_data.py \(ValueError: .*inputs, an array of float32 \(4, 3\)"
    )
    with pytest.raises(UsageError, match=said):
        fed.batch({"batch_size": 4}, np.random.default_rng(0))


def test_the_data_is_named_in_the_record() -> None:
    fed, said = with_data(workload(lambda _: (X, Y)), plan())
    assert said.startswith("your arrays, 20 samples, ")
    assert fed.notes is not None
    assert fed.notes({}) == ()
    fed, said = with_data(workload(lambda _: stream_of_18), plan())
    assert said.startswith("your iterable (known by its length and its first batch), ")
    assert fed.notes is not None
    assert "as it is, with its own workers" in fed.notes({})[0]
    resident = msgspec.structs.replace(plan(), feed=Feed.RESIDENT, loader=None)
    fed, _ = with_data(workload(lambda _: stream_of_18), resident)
    assert fed.notes is not None
    assert fed.notes({}) == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"workers": 3}, "--workers 3"), ({"prefetch": 5}, "--prefetch 5"), ({"pin": True}, "--pin on")],
)
def test_a_streams_own_workers_are_kept_and_others_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{said}: net's data makes its batches itself") as caught:
        fed_batches(stream_of_18, **options)
    assert "num_workers" in caught.value.hint


def test_a_size_that_is_not_what_was_asked_for() -> None:
    with pytest.raises(UsageError, match="gives batches of 4 samples, and --batch-size is 8") as caught:
        fed_batches(stream_of_18, batch_size=8)
    assert "params['batch_size']" in caught.value.hint
    assert len(fed_batches(stream_of_18, batch_size=None)) == 7
    with pytest.raises(UsageError, match="no parameter batch_size, and its data comes sample by sample"):
        fed_batches((X, Y), batch_size=None)


class Once:
    """Passes for a collection, and is used up like an iterator."""

    def __init__(self) -> None:
        self.left = [(X[:4], Y[:4]), (X[:4], Y[:4]), (X[:4], Y[:4])]

    def __iter__(self) -> Iterator[Any]:
        while self.left:
            yield self.left.pop()


def test_what_can_be_gone_through_only_once() -> None:
    with pytest.raises(UsageError, match="gave no batches when it was gone through again, in epoch 2") as caught:
        fed_batches(Once())
    assert "give a function that returns a new one" in caught.value.hint


def test_words_for_data_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="net brings no data of its own"):
        with_data(workload(None), plan(data="own"))
    for word in ("real", "mnist"):
        with pytest.raises(UnsupportedError, match="net has no data set"):
            with_data(workload(None), plan(data=word))
    with pytest.raises(UnsupportedError, match="net takes no files"):
        with_data(workload(None), plan(data="x.csv"))
    with pytest.raises(UnsupportedError, match="has no `batch`"):
        workload(None).batch({}, np.random.default_rng(0))


def test_files_feed_a_workload_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{number},{2 * number}\n" for number in range(10)))
    mine = workload(None)
    object.__setattr__(mine, "origin", "net.py")
    fed, said = with_data(mine, plan(data=str(path)))
    batch = fed.batch({}, np.random.default_rng(0))
    np.testing.assert_array_equal(batch.targets, 2 * batch.inputs)
    assert said.startswith("table of 10 rows, 1 column and the target y")
    fed, _ = with_data(mine, msgspec.structs.replace(plan(data=str(path)), target_column="a"))
    batch = fed.batch({}, np.random.default_rng(0))
    np.testing.assert_array_equal(batch.inputs, 2 * batch.targets)


TORCH = """
from itertools import islice
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split
from metalmark.data.dataset import Stream
from metalmark.data.own import read_own
from metalmark.errors import UsageError
from metalmark.feeds.on_torch import torch_loader
from metalmark.feeds.source import Source, open_batches, with_data
from metalmark.model.plan import Loader
from metalmark.model.workload import Data, Recipe
from tests.feeds.test_own_data import plan, workload

def check():
    whole = TensorDataset(torch.arange(60.0, dtype=torch.float64).reshape(20, 3), torch.arange(20))
    # Samples by position through PyTorch's own loader, with the plan's workers.
    mine = workload(lambda _: whole)
    seen = []
    for workers in (0, 2):
        what = plan(workers=workers, prefetch=2 * bool(workers))
        fed, said = with_data(mine, what)
        with open_batches(Source(fed, Recipe(model=None), what), what.loader, torch_loader) as batches:
            seen.append([np.asarray(targets).tolist() for _, targets in islice(batches, 6)])
    assert seen[0] == seen[1], seen
    assert "TensorDataset of 20 samples" in said, said

    # A loader in its own order, which the seed and the epoch decide; PyTorch's own random numbers stay.
    def orders(seed, make):
        stream = read_own(Data(train=make(), validation=whole), name="net", seed=seed).train
        torch.manual_seed(99)
        assert isinstance(stream, Stream) and stream.samples == 20 and stream.length == 5, stream
        found = [[n for batch in stream.batches(epoch) for n in batch.targets.tolist()] for epoch in (1, 2, 1)]
        assert torch.initial_seed() == 99
        return found, torch.get_rng_state()

    for workers in (0, 1):
        for generator in (None, torch.Generator()):
            make = lambda: DataLoader(whole, batch_size=4, shuffle=True, num_workers=workers, generator=generator)
            (one, two, again), state = orders(1, make)
            assert one == again != two and sorted(one) == list(range(20)), (one, two, again)
            assert orders(2, make)[0][0] != one
            assert torch.equal(state, orders(1, make)[1])
    same = [read_own(Data(train=make(), validation=whole), name="net") for _ in range(2)]
    assert same[0].digest == same[1].digest and same[0].notes == (), same
    batch = next(same[0].train.batches(1))
    assert batch.inputs.dtype == np.float32 and batch.inputs.shape == (4, 3)

    # A loader that is not shuffled can be split; one that is can't.
    parts = read_own(DataLoader(whole, batch_size=4), name="net", validated=True)
    found = [n for part in (parts.train, parts.validation) for b in part.batches(0) for n in b.targets.tolist()]
    assert sorted(found) == list(range(20)), found
    class Endless(IterableDataset):
        def __iter__(self):
            yield from whole
    for given, said in (
        (make(), "can't be split into training and validation: its batches come in another order"),
        (DataLoader(Endless(), batch_size=4), "can't be split into training and validation: it does not say"),
        (Endless(), "is the IterableDataset Endless, which gives single samples"),
        (DataLoader(TensorDataset(torch.zeros(3)), batch_size=4, drop_last=True), "drop_last leaves none of 3"),
        (DataLoader(TensorDataset(torch.zeros(0)), batch_size=4), "its Dataset has no samples"),
        (Dataset(), "the Dataset Dataset has no length"),
    ):
        try:
            read_own(given, name="net", validated=True)
        except UsageError as error:
            assert said in error.message, error.message
        else:
            raise AssertionError(said)
    # Tensors, subsets and dicts of tensors are samples too.
    for given in ((whole.tensors[0], whole.tensors[1]), random_split(whole, [15, 5])[0]):
        batch = read_own(given, name="net").train.take(np.array([0, 1]))
        assert batch.inputs.dtype == np.float32 and batch.targets.dtype == np.int64
    class Named(Dataset):
        def __len__(self): return 6
        def __getitem__(self, i): return {"ids": torch.arange(4) + i, "labels": i}
    batch = read_own(Named(), name="net").train.take(np.array([0, 1]))
    assert batch.inputs["ids"].shape == (2, 4) and batch.targets is None
    print("good")

if __name__ == "__main__":
    check()
"""

KERAS = """
import numpy as np, keras, tensorflow as tf
from metalmark.data.dataset import Stream
from metalmark.data.own import read_own
from metalmark.data.recognised import seed_random_numbers
from metalmark.errors import UsageError
from metalmark.model.workload import Data

x, y = np.arange(60.0).reshape(20, 3), np.arange(20)
plain = tf.data.Dataset.from_tensor_slices((x, y))
found = read_own(plain.batch(4), name="net", validated=True)
assert isinstance(found.train, Stream) and found.notes == (), found
rows = [n for part in (found.train, found.validation) for b in part.batches(1) for n in b.targets.tolist()]
assert sorted(rows) == list(range(20)), rows
assert next(found.train.batches(1)).inputs.dtype == np.float32
assert found.digest == read_own(plain.batch(4), name="net", validated=True).digest
shuffled = plain.shuffle(20).batch(4)
found = read_own(Data(train=shuffled, validation=(x, y)), name="net", validated=True)
assert "sees another order" in found.notes[0], found.notes
assert found.digest == read_own(Data(train=shuffled, validation=(x, y)), name="net").digest
named = tf.data.Dataset.from_tensor_slices({"a": x, "b": y}).batch(4)
assert sorted(next(read_own(named, name="net").train.batches(1)).inputs) == ["a", "b"]
for given, said in (
    (shuffled, "can't be split into training and validation: its batches come in another order"),
    (plain.batch(4).repeat(), "never ends"),
    (plain, "is one number, without an axis that counts samples"),
    (plain.take(0).batch(4), "is empty"),
    (tf.data.Dataset.from_tensor_slices((["a", "b"], [1, 2])).batch(2), "is an array of Python objects"),
):
    try:
        read_own(given, name="net", validated=True)
    except UsageError as error:
        assert said in error.message, error.message
    else:
        raise AssertionError(said)

class Numbered(keras.utils.PyDataset):
    def __len__(self): return 5
    def __getitem__(self, i): return x[4 * i:4 * i + 4], y[4 * i:4 * i + 4]
found = read_own(Numbered(), name="net", validated=True)
assert found.notes == () and found.train.length + found.validation.length == 5, found
one, two, again = ([int(b.targets[0]) for b in found.train.batches(epoch)] for epoch in (1, 2, 1))
assert one == again and sorted(one) == sorted(two)
made = []
for _ in range(2):
    seed_random_numbers()
    made.append([np.random.rand(), float(tf.random.uniform(()))])
assert made[0] == made[1]
print("good")
"""


@pytest.mark.parametrize(("framework", "code"), [("torch", TORCH), ("tensorflow", KERAS)])
def test_the_frameworks_own_data_sets_and_loaders(framework: str, code: str, tmp_path: Path) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    script = tmp_path / "own.py"
    script.write_text(code)
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=200,
    )
    assert run.stdout.strip().endswith("good"), run.stderr[-3000:]


def test_a_part_for_validation_is_not_measured() -> None:
    targets = {int(each) for _, some in fed_batches(Data(train=(X, Y), validation=(X, Y + 100))) for each in some}
    assert max(targets) < 100
