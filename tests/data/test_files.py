from __future__ import annotations

import contextlib
import gzip
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metalmark.data import files
from metalmark.data.files import read_members
from metalmark.errors import FormatError
from tests.data.files import member, tar_bytes

WHOLE = tar_bytes([member("top/a", b"one" * 300), member("top/b", b"two")])


def read(path: Path, data: bytes, *, max_bytes: int = 10**6, member_bytes: int = 10**4) -> dict[str, bytes]:
    path.write_bytes(data)
    return read_members(path, {"a", "b"}.__contains__, max_bytes=max_bytes, member_bytes=member_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.tar.gz"


def test_wanted_members_by_last_name(path: Path) -> None:
    assert read(path, WHOLE) == {"a": b"one" * 300, "b": b"two"}
    assert read(path, gzip.decompress(WHOLE)) == {"a": b"one" * 300, "b": b"two"}


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (member("../../a", b"x"), "leads out of it"),
        (member("/etc/a", b"x"), "leads out of it"),
        (member("top/../../a", b"x"), "leads out of it"),
        (member("top/a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
        (member("top/a", type=tarfile.LNKTYPE, linkname="b"), "is a link"),
        (member("top/a", type=tarfile.FIFOTYPE), "is a link or a device"),
        (member("top/a", type=tarfile.CHRTYPE), "is a link or a device"),
        (member("top/a", b"x" * 10_001), "claims 10,001 bytes"),
        (member("top/b", b"again"), "has b twice"),
    ],
)
def test_hostile_members(path: Path, hostile: tuple[tarfile.TarInfo, bytes], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read(path, tar_bytes([member("top/b", b"first"), hostile]))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "something was written"


def test_names_out_of_the_archive_that_nobody_wants_do_no_harm(path: Path) -> None:
    data = tar_bytes([member("../evil", b"x"), member("link", type=tarfile.SYMTYPE, linkname="/"), member("a", b"1")])
    assert read(path, data) == {"a": b"1"}
    assert not (path.parent.parent / "evil").exists()


@pytest.mark.parametrize("size", [10**9, 2**40, -1, -512])
def test_a_size_that_is_a_lie(path: Path, size: int) -> None:
    info, _ = member("top/a", b"short")
    info.size = size
    header = info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(FormatError):
        read(path, gzip.compress(header + b"short" + bytes(507)))
    info.name = "unwanted"
    header = info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(FormatError):
        read(path, gzip.compress(header + b"short" + bytes(507) + header))


def test_a_sparse_member_whose_stored_size_is_a_lie(path: Path) -> None:
    info, _ = member("unwanted", type=tarfile.GNUTYPE_SPARSE)
    info.size = 2**40
    header = info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(FormatError):
        read(path, header + header)


def test_a_small_file_that_unpacks_to_a_huge_one(path: Path) -> None:
    bomb = tar_bytes([member("unwanted", bytes(5 * 10**6)), member("a", b"1")])
    assert len(bomb) < 50_000
    with pytest.raises(FormatError, match="far more"):
        read(path, bomb)


def test_bytes_after_the_end_are_bounded_too(path: Path) -> None:
    with pytest.raises(FormatError, match="far more"):
        read(path, gzip.compress(gzip.decompress(WHOLE) + bytes(5 * 10**6), 1))


def test_too_many_members(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_MEMBERS", 5)
    with pytest.raises(FormatError, match="more than 5 members"):
        read(path, tar_bytes([member(f"n{number}") for number in range(6)]))


def test_control_characters_of_a_name_do_not_reach_the_terminal(path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read(path, tar_bytes([member("\x1b[2J/../a", b"x")]))
    assert "\x1b" not in caught.value.message


def test_gz_cut_short_anywhere(path: Path) -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(FormatError):
            read(path, WHOLE[:length])


def test_tar_cut_short_in_a_member(path: Path) -> None:
    plain = gzip.decompress(WHOLE)
    for length in (1, 100, 511, 513, 600, 1411):
        with pytest.raises(FormatError):
            read(path, plain[:length])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=600), start=st.integers(0, 700))
def test_any_bytes(path: Path, data: bytes, start: int) -> None:
    try:
        found = read(path, gzip.decompress(WHOLE)[:start] + data)
    except FormatError:
        return
    assert set(found) <= {"a", "b"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(at=st.integers(0, 511), new=st.binary(min_size=1, max_size=12))
def test_a_damaged_header_with_its_checksum_put_right(path: Path, at: int, new: bytes) -> None:
    plain = bytearray(gzip.decompress(WHOLE))
    plain[at : at + len(new)] = new
    plain[148:156] = b"        "
    plain[148:156] = b"%06o\0 " % sum(plain[:512])
    with contextlib.suppress(FormatError):
        read(path, bytes(plain))
