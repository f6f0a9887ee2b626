from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metalmark.data.catalog import DataFormat, FileReading, format_of, load, load_path
from metalmark.errors import FormatError, MetalmarkError, UsageError
from tests.data.files import cifar_files, member, tar_bytes, write_files, write_idx, write_tree
from tests.data.test_flowers import write_flowers


@pytest.fixture
def places(tmp_path: Path) -> dict[DataFormat, Path]:
    return {
        DataFormat.IDX: write_idx(tmp_path / "idx"),
        DataFormat.CIFAR: write_files(tmp_path / "cifar", cifar_files(binary=True)),
        DataFormat.FLOWERS: write_flowers(tmp_path / "flowers", unpacked=True),
        DataFormat.TREE: write_tree(tmp_path / "tree", {"a": 5, "b": 5}),
        DataFormat.CSV: write_table(tmp_path / "t.csv"),
        DataFormat.NPZ: write_table(tmp_path / "t.npz"),
        DataFormat.PARQUET: write_table(tmp_path / "t.parquet"),
        DataFormat.TEXT: write_table(tmp_path / "t.txt"),
    }


def write_table(path: Path) -> Path:
    """Write ten samples, in the kind of file that the name says."""
    if path.suffix == ".npz":
        np.savez(path, x=np.ones((10, 3)), y=np.arange(10))
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").table(TABLE), path)
    elif path.suffix == ".csv":
        rows = zip(*TABLE.values(), strict=True)
        path.write_text("\n".join([",".join(TABLE), *(",".join(map(str, row)) for row in rows)]))
    else:
        path.write_text("to be or not to be " * 10)
    return path


TABLE = {"a": list(range(10)), "b": [0.5] * 10, "y": [1.5, 2.5] * 5}

GOOD = [
    ("mnist", DataFormat.IDX),
    ("fashion-mnist", DataFormat.IDX),
    ("cifar-10", DataFormat.CIFAR),
    ("flowers-102", DataFormat.FLOWERS),
    ("flowers-102", DataFormat.TREE),
    ("folder", DataFormat.TREE),
    ("table", DataFormat.CSV),
    ("table", DataFormat.NPZ),
    ("table", DataFormat.PARQUET),
    ("text", DataFormat.TEXT),
]
NAMES = ["mnist", "fashion-mnist", "cifar-10", "flowers-102", "folder", "table", "text"]


@pytest.mark.parametrize(("name", "kind"), GOOD)
def test_a_path_is_read_as_what_it_holds(places: dict[DataFormat, Path], name: str, kind: DataFormat) -> None:
    assert format_of(places[kind]) is kind
    dataset = load(name, str(places[kind]), reading=FileReading(pixels=16, seq_len=4))
    assert dataset.name == name
    assert "synthetic" not in dataset.source
    assert str(places[kind].parent) not in dataset.source, "sources are stored, and paths are not"
    assert len(dataset.digest) == 64


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in NAMES for kind in DataFormat if (name, kind) not in GOOD]
)
def test_another_format_is_named(places: dict[DataFormat, Path], name: str, kind: DataFormat) -> None:
    with pytest.raises(FormatError, match=f"holds {kind.value}, which {name} is not read from") as caught:
        load(name, str(places[kind]))
    assert caught.value.hint.startswith("Expected: ")


@pytest.mark.parametrize("name", NAMES)
def test_paths_that_hold_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="none of the known data formats"):
        load(name, str(tmp_path))
    (tmp_path / "file.bin").write_bytes(b"x\0")
    with pytest.raises(FormatError, match="none of the known data formats"):
        load(name, str(tmp_path / "file.bin"))
    with pytest.raises(UsageError, match="There is no file or folder") as caught:
        load(name, str(tmp_path / "absent"))
    assert "--data takes real, synthetic or a path" in caught.value.hint


def test_an_archive_without_batches(tmp_path: Path) -> None:
    path = tmp_path / "other.tar.gz"
    path.write_bytes(tar_bytes([member("readme", b"x")]))
    with pytest.raises(FormatError, match="has no data_batch_1"):
        load("cifar-10", str(path))


def test_names_that_are_none() -> None:
    with pytest.raises(UsageError, match="did you mean cifar-10") as caught:
        load("cifar10", "synthetic")
    assert "flowers-102" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "choice"),
    [("folder", "real"), ("folder", "synthetic"), ("table", "real"), ("table", "synthetic"), ("text", "real")],
)
def test_files_are_the_users_own(name: str, choice: str) -> None:
    with pytest.raises(MetalmarkError) as caught:
        load(name, choice)
    assert "--data PATH" in caught.value.hint


def test_a_workload_that_names_no_data_set_takes_any_files(places: dict[DataFormat, Path]) -> None:
    for kind in (DataFormat.TREE, DataFormat.CSV, DataFormat.NPZ, DataFormat.PARQUET, DataFormat.TEXT):
        assert len(load_path(places[kind], reading=FileReading(pixels=16, seq_len=4)).digest) == 64
    for kind in (DataFormat.IDX, DataFormat.CIFAR, DataFormat.FLOWERS):
        with pytest.raises(FormatError, match=f"holds {kind.value}") as caught:
            load_path(places[kind])
        assert ".csv" in caught.value.hint


def test_a_target_column_of_what_has_none(places: dict[DataFormat, Path]) -> None:
    for kind in (DataFormat.TREE, DataFormat.TEXT):
        with pytest.raises(UsageError, match=r"--target-column y: .* has no columns"):
            load_path(places[kind], reading=FileReading(target_column="y"))
