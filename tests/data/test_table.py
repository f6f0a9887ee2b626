"""CSV, NPZ and Parquet: numbers, classes, targets by name, and the cell that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metalmark.data.dataset import Dataset, Stream, classes_of
from metalmark.data.table import load_csv, load_npz, load_parquet
from metalmark.errors import FormatError, MetalmarkError, UsageError
from metalmark.model.workload import Batch, Task

HOUSES = "rooms,area,town,price\n3,70.5,1,210000\n4,90,0,300000.5\n2,40,1,120000\n5,120,0,400000\n"


def everything(dataset: Dataset) -> Batch:
    """All samples in the order of the file."""
    parts = [dataset.train, dataset.validation]
    found = []
    for part in parts:
        assert part is not None
        assert not isinstance(part, Stream)
        batch = part.take(np.arange(len(part)))
        found += [
            (position, row, target)
            for position, row, target in zip(part.positions, batch.inputs, batch.targets, strict=True)
        ]  # type: ignore[attr-defined]
    found.sort(key=lambda each: each[0])
    return Batch(inputs=np.array([row for _, row, _ in found]), targets=np.array([target for *_, target in found]))


def csv(folder: Path, text: str) -> Path:
    path = folder / "houses.csv"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("change", [lambda text: text, lambda text: text.replace(",", ";"),
                                    lambda text: text.replace(",", "\t").replace("\n", "\r\n"),
                                    lambda text: "\ufeff" + text + "\n"])  # fmt: skip
def test_the_last_column_is_told_from_the_others(tmp_path: Path, change: object) -> None:
    dataset = load_csv(csv(tmp_path, change(HOUSES)))  # type: ignore[operator]
    batch = everything(dataset)
    assert batch.inputs.dtype == batch.targets.dtype == np.float32
    np.testing.assert_array_equal(batch.inputs[1], np.array([4, 90, 0], np.float32))
    # With an axis of its own, as a layer of one output has: without it, losses broadcast to a wrong number.
    np.testing.assert_array_equal(batch.targets, np.array([[210000], [300000.5], [120000], [400000]], np.float32))
    assert classes_of(dataset.train) == ()
    assert dataset.source == "table of 4 rows, 3 columns and the target price"


def test_any_column_can_be_the_target(tmp_path: Path) -> None:
    path = csv(tmp_path, HOUSES)
    assert everything(load_csv(path, target="rooms")).targets.ravel().tolist() == [3, 4, 2, 5]
    two = everything(load_csv(path, target="rooms,price"))
    assert (two.inputs.shape, two.targets.shape) == ((4, 2), (4, 2))
    assert len({load_csv(path, target=name).digest for name in ("", "rooms", "town")}) == 3
    with pytest.raises(UsageError, match=r"no column 'prize'; did you mean price\?") as caught:
        load_csv(path, target="prize")
    assert "rooms, area, town, price" in caught.value.hint


def test_words_are_classes_and_so_are_numbers_where_the_task_says_so(tmp_path: Path) -> None:
    path = csv(tmp_path, 'a,kind\n1,"dog, big"\n2,cat\n3,cat\n4,eel\n')
    dataset = load_csv(path)
    assert classes_of(dataset.train) == classes_of(dataset.validation) == ("cat", "dog, big", "eel")  # type: ignore[arg-type]
    assert everything(dataset).targets.tolist() == [1, 0, 0, 2]
    assert everything(dataset).targets.dtype == np.int32
    path = csv(tmp_path, "a,kind\n1,7\n2,5\n3,5\n")
    assert everything(load_csv(path)).targets.dtype == np.float32
    dataset = load_csv(path, task=Task.CLASSIFICATION)
    assert everything(dataset).targets.tolist() == [1, 0, 0]
    assert classes_of(dataset.train) == ("5", "7")


BAD = {
    "text in a number column": (HOUSES.replace("90", "ninety"), r"row 3, column 'area' is 'ninety', not a number"),
    "empty cell": (HOUSES.replace("70.5", ""), r"row 2, column 'area' is empty"),
    "not finite": (HOUSES.replace("40,", "nan,"), r"row 4, column 'area' is nan"),
    "short row": (HOUSES.replace("4,90,0,", "4,90,"), "line 3 has 3 cells, and the line of names has 4"),
    "no header": (HOUSES.partition("\n")[2], "its first line is numbers"),
    "twice": (HOUSES.replace("area", "rooms"), "two columns named 'rooms'"),
    "no rows": ("a,b\n", "a line of names and no rows"),
    "nothing": ("\n", "it is empty"),
    "one row": ("a,b\n1,2\n", "has one sample"),
    "open quote": ('a,b\n1,"2\n', "can't be read as a table"),
    "only a target": ("a\n1\n2\n", "no column is left"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_bad_table_is_named_by_row_and_column(tmp_path: Path, mistake: str) -> None:
    text, said = BAD[mistake]
    with pytest.raises(MetalmarkError, match=said):
        load_csv(csv(tmp_path, text))


def test_words_where_the_task_wants_numbers(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"row 2, column 'b' is 'x', not a number"):
        load_csv(csv(tmp_path, "a,b\n1,x\n2,y\n"), task=Task.REGRESSION)
    path = tmp_path / "latin.csv"
    path.write_bytes(b"a,b\n\xe9,2\n")
    with pytest.raises(FormatError, match="byte 4 is not UTF-8"):
        load_csv(path)


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"

    def write(**columns: list[object]) -> Path:
        parquet.write_table(pyarrow.table(columns), path)
        return path

    dataset = load_parquet(write(a=[1, 2, 3], b=[True, False, True], kind=["x", "y", "x"]))
    assert everything(dataset).inputs.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert everything(dataset).targets.tolist() == [0, 1, 0]
    assert everything(load_parquet(write(a=[1, 2], b=[0.5, 1.5]), target="a")).targets.tolist() == [[1], [2]]
    with pytest.raises(FormatError, match="row 2, column 'a' is empty"):
        load_parquet(write(a=[1, None, 3], b=[1, 2, 3]))
    with pytest.raises(FormatError, match="row 1, column 'a' is 'x', not a number"):
        load_parquet(write(a=["x", "y"], b=[1, 2]))
    with pytest.raises(FormatError, match="its column 'a' holds object, not numbers"):
        load_parquet(write(a=[[1], [2, 3]], b=[1, 2]))
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(FormatError, match="can't be read as Parquet"):
        load_parquet(path)


def test_arrays_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.savez(path, X=x, y=y)
    batch = everything(load_npz(path))
    assert (batch.inputs.dtype, batch.inputs.tolist()) == (np.float32, x.tolist())
    assert batch.targets.tolist() == y.tolist()
    np.savez(path, x_train=x, y_train=y, x_val=x[:2], y_val=y[:2])
    dataset = load_npz(path)
    assert [len(part) for part in (dataset.train, dataset.validation)] == [6, 2]  # type: ignore[arg-type]
    np.savez(path, a=x, b=x, label=y)
    with pytest.raises(UsageError, match="has the arrays a, b, label; which are the inputs") as caught:
        load_npz(path)
    assert "--target-column NAME" in caught.value.hint
    taken = load_npz(path, target="label").train.take(np.array([0]))  # type: ignore[union-attr]
    assert sorted(taken.inputs) == ["a", "b"]
    with pytest.raises(UsageError, match="no array 'lable'; did you mean label"):
        load_npz(path, target="lable")
    np.savez(path, x=x, y=y[:5])
    with pytest.raises(UsageError, match="x has 6 samples and y has 5"):
        load_npz(path)
    np.savez(path, x=np.array([[1], [2, 3]], object), y=y[:2], allow_pickle=True)
    with pytest.raises(FormatError, match="holds Python objects"):
        load_npz(path)
    path.write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(FormatError, match="can't be read as NumPy arrays"):
        load_npz(path)
