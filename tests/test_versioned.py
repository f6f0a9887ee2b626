"""A structure of a newer Metalmark is refused as that, whatever its fields have become."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metalmark.errors import FormatError
from metalmark.model.codec import decode_versioned
from metalmark.training.job import JOB, RECORD, read_record, read_request
from metalmark.training.lineup import LINEUP, read_lineup


class Thing(msgspec.Struct, kw_only=True):
    schema: int = 2
    name: str


def test_old_new_and_newer() -> None:
    assert decode_versioned(b'{"schema": 2, "name": "a"}', Thing, newest=2, source="x").name == "a"
    assert decode_versioned(b'{"name": "a"}', Thing, newest=2, source="x").name == "a"
    with pytest.raises(FormatError, match="x has schema 3; this Metalmark reads up to 2"):
        decode_versioned(b'{"schema": 3, "title": "a"}', Thing, newest=2, source="x")
    with pytest.raises(msgspec.DecodeError):
        decode_versioned(b'{"schema": 2, "title": "a"}', Thing, newest=2, source="x")


@pytest.mark.parametrize(
    ("file", "read"), [(RECORD, read_record), (JOB, read_request), (LINEUP, read_lineup)], ids=[RECORD, JOB, LINEUP]
)
def test_a_training_s_files_of_a_newer_metalmark(file: str, read: object, tmp_path: Path) -> None:
    (tmp_path / file).write_text('{"schema": 99, "in": "another form"}')
    with pytest.raises(FormatError, match="schema 99"):
        read(tmp_path)  # type: ignore[operator]
