from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metalmark.data.flowers import read_mat
from metalmark.errors import FormatError


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def mat(**arrays: np.ndarray) -> bytes:
    """Uncompressed, small-endian, uint8 or uint16, as the documentation of the format has it."""
    out = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    for name, array in arrays.items():
        kind, numeric = {"uint8": (2, 9), "uint16": (4, 11)}[array.dtype.name]
        small = struct.pack("<HH", 1, len(name)) + name.encode().ljust(4, b"\0") if len(name) <= 4 else b""
        content = (
            element(6, struct.pack("<II", numeric, 0))
            + element(5, np.array(array.shape, "<i4").tobytes())
            + (small or element(1, name.encode()))
            + element(kind, array.tobytes(order="F"))
        )
        out += element(14, content)
    return out


LABELS = np.array([[1, 2, 3, 250]], np.uint8)
WHOLE = mat(labels=LABELS, ids=np.array([[1, 2], [3, 60_000]], np.uint16))


def test_reads_back() -> None:
    arrays = read_mat(WHOLE, "imagelabels.mat")
    np.testing.assert_array_equal(arrays["labels"], LABELS)
    np.testing.assert_array_equal(arrays["ids"], [[1, 2], [3, 60_000]])


@pytest.mark.parametrize("compressed", [False, True])
def test_reads_what_scipy_writes(compressed: bool) -> None:
    savemat = pytest.importorskip("scipy.io", reason="scipy writes these").savemat
    wanted = {
        "labels": np.arange(102, dtype=np.uint8)[np.newaxis],
        "trnid": np.arange(1, 2000, dtype=np.uint16)[np.newaxis],
        "f": np.linspace(0, 1, 6).reshape(2, 3),
        "deep": np.arange(24, dtype=np.int32).reshape(2, 3, 4),
        "a_name_longer_than_four": np.array([[-5]], np.int64),
    }
    stream = io.BytesIO()
    savemat(stream, wanted, do_compression=compressed)
    found = read_mat(stream.getvalue(), "x.mat")
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("value", [{"a": 1}, "text", np.array([1 + 2j]), np.array([[1, "x"]], object)])
def test_other_contents_are_refused(value: object) -> None:
    savemat = pytest.importorskip("scipy.io", reason="scipy writes these").savemat
    stream = io.BytesIO()
    savemat(stream, {"v": value})
    with pytest.raises(FormatError, match=r"x\.mat can't be read as a MATLAB 5 file"):
        read_mat(stream.getvalue(), "x.mat")


def test_cut_short_anywhere() -> None:
    whole = mat(labels=LABELS)
    for length in range(len(whole)):
        if length == 128:
            assert read_mat(whole[:length], "x.mat") == {}
            continue
        with pytest.raises(FormatError, match=r"x\.mat"):
            read_mat(whole[:length], "x.mat")


def test_other_versions() -> None:
    for head in (b"\x00\x02IM", b"\x01\x00IM", b"\x00\x01XX"):
        with pytest.raises(FormatError, match="another version"):
            read_mat(WHOLE[:124] + head + WHOLE[128:], "x.mat")


def test_a_compressed_part_that_unpacks_to_a_huge_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    monkeypatch.setattr("metalmark.data.flowers.MAT_BYTES", 1000)
    packed = zlib.compress(bytes(100_000))
    data = WHOLE[:128] + struct.pack("<II", 15, len(packed)) + packed
    with pytest.raises(FormatError, match="far too large"):
        read_mat(data, "x.mat")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for start in (b"", WHOLE[:128], WHOLE[:136]):
        try:
            read_mat(start + data, "x.mat")
        except FormatError:
            continue


@settings(deadline=None, max_examples=300)
@given(at=st.integers(0, len(WHOLE) - 1), new=st.binary(min_size=1, max_size=4))
def test_a_damaged_file(at: int, new: bytes) -> None:
    try:
        arrays = read_mat(WHOLE[:at] + new + WHOLE[at + len(new) :], "x.mat")
    except FormatError:
        return
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
