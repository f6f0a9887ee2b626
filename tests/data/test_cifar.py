from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metalmark.data.cifar import (
    BINARIES,
    PICKLES,
    PIXELS,
    find_batches,
    load_cifar,
    read_binary,
    read_pickle,
    unpickle_batch,
)
from metalmark.errors import FormatError
from tests.data.files import cifar_files, cifar_rows, member, pickled, tar_bytes, write_files

ROWS, LABELS = cifar_rows(0)
SMALL = pickled(ROWS[:2, :5].copy(), [1, 2])


def load(path: Path):
    place = find_batches(path)
    assert place is not None
    return load_cifar(place)


def test_binary_is_planes_of_red_green_blue() -> None:
    row = bytes([7]) + b"R" * 1024 + b"G" * 1023 + b"g" + b"B" * 1024
    images, labels = read_binary(row, "test_batch.bin")
    assert labels.tolist() == [7]
    assert images.shape == (1, 32, 32, 3)
    assert bytes(images[0, 0, 0]) == b"RGB"
    assert bytes(images[0, 31, 31]) == b"RgB"


def test_pickle_is_as_python_2_wrote_it() -> None:
    """Python's own unpickler agrees on what the bytes mean."""
    batch = pickle.loads(pickled(ROWS, LABELS), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], ROWS)
    assert batch[b"labels"] == LABELS
    rows, labels = unpickle_batch(pickled(ROWS, LABELS), "data_batch_1")
    np.testing.assert_array_equal(rows, ROWS)
    assert labels == LABELS


def test_pickle_by_column() -> None:
    rows, _ = unpickle_batch(pickled(ROWS, LABELS, order=b"\x88"), "data_batch_1")
    np.testing.assert_array_equal(rows, ROWS.ravel().reshape(ROWS.shape, order="F"))


@pytest.mark.parametrize("protocol", [3, 4])
def test_pickle_written_again_by_python_3(protocol: int) -> None:
    data = pickle.dumps({"data": ROWS, "labels": LABELS}, protocol)
    rows, labels = unpickle_batch(data, "data_batch_1")
    np.testing.assert_array_equal(rows, ROWS)
    assert labels == LABELS


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "pickle"])
def test_every_place(tmp_path: Path, binary: bool) -> None:
    files = cifar_files(binary=binary)
    kind = "bin" if binary else "py"
    write_files(tmp_path / "plain", files)
    write_files(tmp_path / "above" / f"cifar-10-batches-{kind}", files)
    members = [member(f"cifar-10-batches-{kind}/{name}", data) for name, data in files.items()]
    folder = member(f"cifar-10-batches-{kind}", type=tarfile.DIRTYPE)
    readme = member(f"cifar-10-batches-{kind}/readme.html", b"<html>")
    (tmp_path / "any.tar.gz").write_bytes(tar_bytes([folder, readme, *members]))
    (tmp_path / "any.tar").write_bytes(tar_bytes([folder, readme, *members], packed=False))
    packed = "binary" if binary else "python"
    write_files(tmp_path / "downloads", {f"cifar-10-{packed}.tar.gz": tar_bytes(members)})
    datasets = [load(tmp_path / place) for place in ("plain", "above", "any.tar.gz", "any.tar", "downloads")]
    assert len({dataset.digest for dataset in datasets}) == 1
    first = datasets[0]
    assert first.source == "cifar-10, given files, not verified"
    assert first.train.images.shape == (20, 32, 32, 3)
    assert first.validation.images.shape == (4, 32, 32, 3)
    assert first.validation.labels.tolist() == cifar_rows(5)[1]
    assert first.train.classes[first.train.labels[0]] == "airplane"


def test_binary_and_pickle_are_the_same_data(tmp_path: Path) -> None:
    one = load(write_files(tmp_path / "bin", cifar_files(binary=True)))
    two = load(write_files(tmp_path / "py", cifar_files(binary=False)))
    assert one.digest == two.digest


def test_training_and_validation_share_no_image(tmp_path: Path) -> None:
    dataset = load(write_files(tmp_path, cifar_files(binary=True)))
    train = {image.tobytes() for image in dataset.train.images}
    assert len(train) == 20
    assert not train & {image.tobytes() for image in dataset.validation.images}


@pytest.mark.parametrize("binary", [True, False])
def test_all_six_are_needed(tmp_path: Path, binary: bool) -> None:
    for missing in BINARIES if binary else PICKLES:
        files = cifar_files(binary=binary)
        del files[missing]
        with pytest.raises(FormatError, match=f"has no {missing}"):
            load(write_files(tmp_path / missing, files))


class Hostile:
    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_runs_code_does_not(tmp_path: Path, protocol: int) -> None:
    witness = tmp_path / "witness"
    data = pickle.dumps({"data": Hostile(os.system, f"touch {witness}"), "labels": [1]}, protocol)
    with pytest.raises(FormatError, match=r"data_batch_1 .*tries to run code \((posix|nt)\.system\).*nothing of it"):
        read_pickle(data, "data_batch_1")
    assert not witness.exists()
    pickle.loads(data)
    assert witness.exists(), "the pickle was harmless, so the test proved nothing"


@pytest.mark.parametrize(
    "function",
    [eval, getattr, __import__, np.load, np.fromfile, np.frombuffer, np.zeros],
    ids=lambda function: function.__name__,
)
def test_no_other_name_is_reached(function) -> None:
    with pytest.raises(FormatError, match="tries to run code"):
        read_pickle(pickle.dumps({"data": Hostile(function, "x")}, 2), "data_batch_1")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cposix\nsystem\nU\x04true\x85R.",
        b"(S'true'\niposix\nsystem\n.",
        b"\x80\x02(cposix\nsystem\nU\x04trueo.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02cnumpy\nndarray\n}U\x0c__setstate__K\x01sb.",
        b"\x80\x02cnumpy\nndarray\nN}U\x08__call__K\x01s\x86b.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pabc\n.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00.",
        b"\x80\x02Nr\xff\xff\xff\xff.",
        b"\x80\x02N0.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\xff.",
    ],
)
def test_hostile_opcodes(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_pickle(data, "data_batch_1")
    unpickle_batch(SMALL, "data_batch_1")


def test_an_object_made_without_a_call(tmp_path: Path) -> None:
    """INST names and calls in one opcode."""
    witness = tmp_path / "witness"
    data = f"(S'touch {witness}'\niposix\nsystem\n.".encode()
    with pytest.raises(FormatError, match="tries to run code"):
        read_pickle(data, "data_batch_1")
    assert not witness.exists()


def test_pickle_cut_short_anywhere() -> None:
    for length in range(len(SMALL)):
        with pytest.raises(FormatError, match="data_batch_1"):
            unpickle_batch(SMALL[:length], "data_batch_1")


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        (ROWS[:, :3000].copy(), LABELS, "4 x 3000, not rows of 3,072"),
        (ROWS, LABELS[1:], "3 labels for 4 images"),
        (ROWS, [0, 1, 2, 10], "labels outside 0 to 9"),
        (ROWS, [0, 1, 2, -1], "labels outside 0 to 9"),
        (ROWS[:0], [], "0 x 3072"),
    ],
)
def test_pickles_that_do_not_fit(rows: np.ndarray, labels: list[int], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_pickle(pickled(rows, labels), "data_batch_1")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([1, 2], "a list, not a dictionary"),
        ({"data": ROWS}, "no list of whole numbers"),
        ({"data": ROWS, "fine_labels": LABELS}, "CIFAR-100"),
        ({"data": ROWS, "labels": ["a"]}, "no list of whole numbers"),
        ({"data": ROWS.tolist(), "labels": LABELS}, "no array called data"),
        ({"data": ROWS.astype(np.int16), "labels": LABELS}, "not of bytes"),
        ({"data": ROWS[0], "labels": LABELS}, "shape does not fit"),
        ({"data": np.array([[None]]), "labels": [1]}, "not written as NumPy"),
    ],
)
def test_other_pickles(batch: object, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_pickle(pickle.dumps(batch, 3), "data_batch_1")


def test_binary_cut_short() -> None:
    whole = cifar_files(binary=True)["test_batch.bin"]
    for length in (0, 1, 3072, 3074, len(whole) - 1):
        with pytest.raises(FormatError, match=r"test_batch\.bin .*not whole rows"):
            read_binary(whole[:length], "test_batch.bin")
    with pytest.raises(FormatError, match="outside 0 to 9"):
        read_binary(b"\x0a" + whole[1:], "test_batch.bin")


def test_a_batch_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metalmark.data.cifar.BATCH_BYTES", PIXELS)
    with pytest.raises(FormatError, match="larger than 3,072 bytes"):
        load(write_files(tmp_path, cifar_files(binary=True)))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for read in (read_binary, read_pickle):
        with pytest.raises(FormatError):
            read(data, "data_batch_1")


@settings(deadline=None, max_examples=300)
@given(at=st.integers(0, len(SMALL) - 1), new=st.binary(min_size=1, max_size=4))
def test_a_damaged_pickle(at: int, new: bytes) -> None:
    data = SMALL[:at] + new + SMALL[at + len(new) :]
    try:
        rows, labels = unpickle_batch(data, "data_batch_1")
    except FormatError:
        return
    assert rows.dtype == np.uint8
    assert all(type(label) is int for label in labels)
