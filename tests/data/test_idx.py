from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metalmark.data import mnist
from metalmark.data.mnist import FILES, MAX_BYTES, idx_bytes, load_mnist, read_idx
from metalmark.errors import FormatError
from tests.data.files import idx_arrays, numbers, write_idx

IMAGES = numbers(3, 4, 5)
WHOLE = idx_bytes(IMAGES)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_reads_back(tmp_path: Path, pack) -> None:
    np.testing.assert_array_equal(read_idx(written(tmp_path, pack(WHOLE)), dimensions=3), IMAGES)


def test_the_header_is_what_the_format_says() -> None:
    assert WHOLE[:16] == bytes.fromhex("00000803 00000003 00000004 00000005")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_cut_short_anywhere(tmp_path: Path, pack) -> None:
    whole = pack(WHOLE)
    for length in range(len(whole)):
        with pytest.raises(FormatError, match=r"train-images-idx3-ubyte can't be read as IDX") as caught:
            read_idx(written(tmp_path, whole[:length]), dimensions=3)
        assert "--data real" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (WHOLE + b"\0", "bytes after the 3 x 4 x 5"),
        (gzip.compress(WHOLE + b"\0", mtime=0), "bytes after the 3 x 4 x 5"),
        (gzip.compress(WHOLE, mtime=0) + b"junk", "compressed data is damaged"),
        (b"\x01" + WHOLE[1:], "starts with 01 00 08 03"),
        (WHOLE[:2] + b"\x0d" + WHOLE[3:], "type 0x0d, not unsigned bytes"),
        (idx_bytes(IMAGES[0]), "2 dimensions and images have 3"),
        (WHOLE[:4] + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 1), "more than any such file"),
        (WHOLE[:4] + struct.pack(">3I", MAX_BYTES, 1, 1), "0 are there: it is cut short"),
        (b"<!DOCTYPE html>", "starts with 3c 21 44 4f"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_idx(written(tmp_path, data), dimensions=3)


def test_a_flipped_bit_in_a_gz_is_found(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(WHOLE))
    whole[len(whole) // 2] ^= 1
    with pytest.raises(FormatError):
        read_idx(written(tmp_path, bytes(whole)), dimensions=3)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        read_idx(tmp_path / "absent", dimensions=3)
    with pytest.raises(FormatError, match="directory"):
        read_idx(tmp_path, dimensions=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=100), start=st.sampled_from([b"", WHOLE[:4], WHOLE[:16], b"\x1f\x8b\x08\0"]))
def test_any_bytes(tmp_path: Path, data: bytes, start: bytes) -> None:
    try:
        array = read_idx(written(tmp_path, start + data), dimensions=3)
    except FormatError:
        return
    assert idx_bytes(array) == start + data


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_the_four_files(tmp_path: Path, packed: bool, dotted: bool) -> None:
    dataset = load_mnist("mnist", write_idx(tmp_path, packed=packed, dotted=dotted))
    arrays = idx_arrays()
    assert dataset.source == "mnist, given files, not the official ones"
    assert dataset.train.images.shape == (20, 28, 28, 1)
    np.testing.assert_array_equal(dataset.train.images[..., 0], arrays[0])
    np.testing.assert_array_equal(dataset.validation.images[..., 0], arrays[2])
    np.testing.assert_array_equal(dataset.validation.labels, arrays[3])
    assert dataset.train.labels.dtype == np.int32
    assert dataset.digest == load_mnist("mnist", write_idx(tmp_path / "plain")).digest


def test_training_and_validation_come_from_different_files(tmp_path: Path) -> None:
    dataset = load_mnist("mnist", write_idx(tmp_path))
    train = {image.tobytes() for image in dataset.train.images}
    assert not train & {image.tobytes() for image in dataset.validation.images}
    assert not np.shares_memory(dataset.train.images, dataset.validation.images)


@pytest.mark.parametrize(
    ("file", "array", "words"),
    [
        (0, numbers(20, 27, 28), "27 x 28, and mnist's are 28 x 28"),
        (0, numbers(19, 28, 28), "20 labels for 19 images"),
        (0, numbers(0, 28, 28), "it holds none"),
        (1, np.full(20, 10, np.uint8), "the label 10, and the last is 9"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, file: int, array: np.ndarray, words: str) -> None:
    write_idx(tmp_path)
    (tmp_path / FILES[file]).write_bytes(idx_bytes(array))
    with pytest.raises(FormatError, match=words):
        load_mnist("mnist", tmp_path)


def test_exchanged_files(tmp_path: Path) -> None:
    write_idx(tmp_path)
    shutil.copy(tmp_path / FILES[1], tmp_path / FILES[0])
    with pytest.raises(FormatError, match="1 dimensions") as caught:
        load_mnist("mnist", tmp_path)
    assert "exchanged" in caught.value.hint


def test_a_missing_one_of_the_four(tmp_path: Path) -> None:
    write_idx(tmp_path)
    (tmp_path / FILES[3]).unlink()
    with pytest.raises(FormatError, match="has no t10k-labels-idx1-ubyte"):
        load_mnist("mnist", tmp_path)


def test_one_is_not_taken_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metalmark.data.files import md5_of_bytes

    write_idx(tmp_path, packed=True)
    ours = tuple(md5_of_bytes(idx_bytes(array)) for array in idx_arrays())
    monkeypatch.setitem(mnist.CONTENT_MD5, "fashion-mnist", ours)
    with pytest.raises(FormatError, match="holds fashion-mnist, not mnist"):
        load_mnist("mnist", tmp_path)
    # Packed by us, so no .gz is the official one; the contents are.
    assert load_mnist("fashion-mnist", tmp_path).source == "fashion-mnist, official files, md5 verified"


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="no real Fashion-MNIST: apt-get install dataset-fashion-mnist")
def test_real_fashion_mnist() -> None:
    dataset = load_mnist("fashion-mnist", DEBIAN)
    assert dataset.source == "fashion-mnist, official files, md5 verified"
    assert dataset.train.images.shape == (60_000, 28, 28, 1)
    assert dataset.validation.images.shape == (10_000, 28, 28, 1)
    assert np.bincount(dataset.train.labels).tolist() == [6000] * 10
    assert np.bincount(dataset.validation.labels).tolist() == [1000] * 10
    assert 72 < dataset.train.images.mean() < 74
    with pytest.raises(FormatError, match="holds fashion-mnist, not mnist"):
        load_mnist("mnist", DEBIAN)
