from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.errors import FormatError
from metalmark.model import codec
from metalmark.model.codec import decode, decode_export, encode, encode_export
from metalmark.model.measurement import BenchRun
from metalmark.model.run import SCHEMA
from tests.samples import completed, failed, record


@pytest.mark.parametrize("outcome", [completed(), failed()])
def test_a_record_survives_the_way_there_and_back(outcome: Any) -> None:
    original = record(outcome)
    assert decode(encode(original)) == original
    assert decode_export(encode_export([original]), source="x") == [original]


def test_an_older_record_is_upgraded_on_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way a real change will go: schema 1 knew `cell` by another name, schema 2 renames it on read."""
    monkeypatch.setattr(codec, "SCHEMA", SCHEMA + 1)
    old = json.loads(encode(record()))
    old["position"] = old.pop("cell")

    def rename(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "cell": document.pop("position")}

    monkeypatch.setitem(codec.UPGRADES, SCHEMA, rename)
    upgraded = decode(json.dumps(old).encode())
    assert upgraded.schema == SCHEMA + 1
    assert upgraded.cell == 0


def test_every_older_schema_has_an_upgrade() -> None:
    assert set(codec.UPGRADES) == set(range(1, SCHEMA))


def test_a_newer_record_is_refused_by_name() -> None:
    newer = json.loads(encode(record()))
    newer["schema"] = SCHEMA + 1
    with pytest.raises(FormatError, match=f"theirs.json has schema {SCHEMA + 1}") as caught:
        decode(json.dumps(newer).encode(), source="theirs.json")
    assert "upgrade" in caught.value.hint


def test_a_newer_export_is_refused_whole() -> None:
    text = json.dumps({"format": codec.FORMAT, "schema": SCHEMA + 1, "records": []})
    with pytest.raises(FormatError, match="reads up to"):
        decode_export(text.encode(), source="x")


HOSTILE = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"schema": "one"}',
    b'{"schema": -1}',
    b'{"schema": 0}',
    b'{"schema": 99999999999999999999999}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"schema":1,' + b'"a":' + b'{"a":' * 50_000,
    b'{"format":"metalmark-records","schema":1,"records":[{"schema":1}]}',
    b'{"format":"other","schema":1,"records":[]}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)
    with pytest.raises(FormatError):
        decode_export(data, source="x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_json_raises_anything_else(document: Any) -> None:
    with pytest.raises(FormatError):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "../../etc/passwd"),
        ("id", "A" * 10),
        ("sweep", "x"),
        ("started_at", "yesterday"),
        ("cell", -1),
        ("outcome", {"type": "stolen"}),
    ],
)
def test_fields_are_checked(field: str, value: object) -> None:
    document = json.loads(encode(record()))
    document[field] = value
    with pytest.raises(FormatError):
        decode(json.dumps(document).encode())


def test_negative_times_are_refused() -> None:
    document = json.loads(encode(record()))
    document["outcome"]["measurement"]["blocks"][0]["elapsed_s"] = -1
    with pytest.raises(FormatError, match="elapsed_s"):
        decode(json.dumps(document).encode())


def test_the_schema_describes_the_record() -> None:
    schema = codec.json_schema()
    assert schema["$defs"]["Record"]["required"]
    assert set(schema["$defs"]["Record"]["properties"]) == set(BenchRun.__struct_fields__)


def test_records_are_frozen() -> None:
    with pytest.raises(AttributeError):
        record().cell = 3  # type: ignore[misc]
    assert msgspec.structs.replace(record(), cell=3).cell == 3
