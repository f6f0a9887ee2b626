"""Runs and other structures to and from JSON, of this schema, of an older and of a newer one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.errors import FormatError
from metalmark.model import codec
from metalmark.model.codec import (
    TYPES,
    AnyRun,
    decode,
    decode_as,
    decode_export,
    decode_versioned,
    encode,
    encode_export,
    read_json,
)
from metalmark.model.measurement import BenchRun
from metalmark.model.run import SCHEMA, RunKind
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.training.folder import JOB, LINEUP, RECORD, read_record, read_request
from metalmark.training.lineup import read_lineup
from tests.samples import (
    completed,
    explanation_run,
    failed,
    parity_run,
    record,
    training_run,
    tuning_run,
    watched_run,
)

RUNS: dict[str, AnyRun] = {
    "completed": record(completed()),
    "failed": record(failed()),
    "training": training_run(sweep="sweep00001", cell=1, repeat=2),
    "watch": watched_run(),
    "parity": parity_run(),
    "explain": explanation_run(),
    "tune": tuning_run(),
}
ENDINGS = ("completed", "out of memory", "all epochs done", "agrees", "input-bound", "2.00x")


@pytest.mark.parametrize("original", RUNS.values(), ids=RUNS)
def test_a_run_survives_the_way_there_and_back(original: AnyRun) -> None:
    assert decode(encode(original)) == original
    assert decode_as(encode(original), type(original), source="x") == original
    assert decode_export(encode_export([original]), source="x") == [original]
    assert decode_export(encode_export([original], {original.id: {"more": 1}}), source="x") == [original]


def test_every_kind_is_known_by_its_word_and_has_the_same_header() -> None:
    assert set(TYPES) == set(RunKind)
    for run in RUNS.values():
        header = run.header
        assert json.loads(encode(run))["kind"] == header.kind
        assert (header.id, header.started_at, type(run)) == (run.id, run.started_at, TYPES[header.kind])
        assert header.label
        assert header.ending in ENDINGS
        assert header.machine is not None
    assert training_run(sessions=()).header.ending == "not begun"


def as_the_first_schema(run: AnyRun) -> bytes:
    """It wrote no kind, and trainings did not say which sweep they belong to."""
    document = json.loads(encode(run))
    for name in ("kind", *(("sweep", "cell", "repeat") if isinstance(run, TrainingRun) else ())):
        del document[name]
    return json.dumps({**document, "schema": 1}).encode()


def test_a_run_of_the_first_schema_is_upgraded_on_read() -> None:
    bench, training, watched = record(), training_run(), watched_run()
    assert decode(as_the_first_schema(bench)) == bench
    assert decode_as(as_the_first_schema(training), TrainingRun, source="x") == training
    assert decode_as(as_the_first_schema(watched), WatchedRun, source="x") == watched
    with pytest.raises(FormatError, match="not a Metalmark run"):
        decode(as_the_first_schema(training))


def test_a_newer_run_is_refused_by_name() -> None:
    for run in RUNS.values():
        newer = {**json.loads(encode(run)), "schema": SCHEMA + 1}
        with pytest.raises(FormatError, match=f"theirs.json has schema {SCHEMA + 1}") as caught:
            decode(json.dumps(newer).encode(), source="theirs.json")
        assert "upgrade" in caught.value.hint


def test_a_kind_of_a_newer_metalmark_is_refused_by_name() -> None:
    other = {**json.loads(encode(record())), "kind": "dream"}
    with pytest.raises(FormatError, match=r"theirs\.json is a run of the kind 'dream'") as caught:
        decode(json.dumps(other).encode(), source="theirs.json")
    assert "upgrade" in caught.value.hint


def test_a_run_is_not_read_as_another_kind() -> None:
    with pytest.raises(FormatError, match="kind"):
        decode_as(encode(record()), WatchedRun, source="x")


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
    b'{"schema": ' + b"9" * 5000 + b"}",
    b'{"schema": 1e999}',
    b"\xff\xfe",
    b'{"schema":2,"kind":"\xff"}',
    b'{"schema":2,"kind":"watch","id":"\xc3\x28"}',
    b'{"schema":2,"kind":"\\ud800"}',
    b'{"schema":2,"kind":null}',
    b'{"schema":2,"kind":["bench"]}',
    b'{"schema":2,"kind":"' + b"x" * 100_000 + b'"}',
    b"[" * 100_000,
    b'{"schema":1,' + b'"a":' + b'{"a":' * 50_000,
    b'{"schema":2,"kind":"training","plan":' + b"[" * 50_000,
    b'{"format":"metalmark-records","schema":1,"records":[{"schema":1}]}',
    b'{"format":"metalmark-records","schema":2,"records":[{"schema":2,"kind":"parity"}]}',
    b'{"format":"metalmark-records","schema":2,"records":[' + b"[" * 100_000,
    b'{"format":"metalmark-records","schema":0,"records":[]}',
    b'{"format":"metalmark-records","schema":-7,"records":[]}',
    b'{"format":"metalmark-records\xff","schema":2,"records":[]}',
    b'{"format":"other","schema":1,"records":[]}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)
    with pytest.raises(FormatError):
        decode_export(data, source="x")
    for kind in TYPES.values():
        with pytest.raises(FormatError):
            decode_as(data, kind, source="x")


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
    ("kind", "field", "value"),
    [
        ("completed", "id", "../../etc/passwd"),
        ("completed", "id", "A" * 10),
        ("completed", "sweep", "x"),
        ("completed", "sweep", ""),
        ("completed", "started_at", "yesterday"),
        ("completed", "cell", -1),
        ("completed", "outcome", {"type": "stolen"}),
        ("training", "id", "../../etc/passwd"),
        ("training", "sweep", "/Users/ada"),
        ("training", "started_at", "now"),
        ("training", "repeat", -1),
        ("training", "ending", "some day"),
        ("training", "epochs", [{"number": 0}]),
        ("watch", "id", "<script>"),
        ("watch", "ended", "never"),
        ("watch", "elapsed_s", -0.5),
        ("watch", "params", {"deep": {"er": 1}}),
    ],
)
def test_fields_are_checked(kind: str, field: str, value: object) -> None:
    document = {**json.loads(encode(RUNS[kind])), field: value}
    with pytest.raises(FormatError, match=field):
        decode(json.dumps(document).encode())


def test_negative_times_are_refused() -> None:
    document = json.loads(encode(record()))
    document["outcome"]["measurement"]["blocks"][0]["elapsed_s"] = -1
    with pytest.raises(FormatError, match="elapsed_s"):
        decode(json.dumps(document).encode())


def test_the_schema_describes_every_kind() -> None:
    definitions = codec.json_schema()["$defs"]
    for kind, structure in TYPES.items():
        found = definitions[structure.__name__]
        assert found["required"]
        assert set(found["properties"]) == {"kind", *structure.__struct_fields__}
        assert found["properties"]["kind"]["enum"] == [kind]


def test_runs_are_frozen() -> None:
    for run in (record(), training_run()):
        with pytest.raises(AttributeError):
            run.cell = 3  # type: ignore[misc]
        assert msgspec.structs.replace(run, cell=3).cell == 3
    assert isinstance(record(), BenchRun)


class Thing(msgspec.Struct, kw_only=True):
    schema: int = 2
    name: str


def test_a_structure_of_a_newer_metalmark_is_refused_as_that_whatever_its_fields_have_become() -> None:
    assert decode_versioned(b'{"schema": 2, "name": "a"}', Thing, newest=2, source="x").name == "a"
    assert decode_versioned(b'{"name": "a"}', Thing, newest=2, source="x").name == "a"
    for schema, why in ((3, "this Metalmark reads up to 2"), (0, "which never existed")):
        with pytest.raises(FormatError, match=rf"x has schema {schema}[;,] {why}"):
            decode_versioned(b'{"schema": %d, "title": "a"}' % schema, Thing, newest=2, source="x")
    for damaged in (b'{"schema": 2, "title": "a"}', b'{"name": "\xff"}', b"", b'{"a":' + b"[" * 100_000):
        with pytest.raises(FormatError, match="x is damaged"):
            decode_versioned(damaged, Thing, newest=2, source="x")


@pytest.mark.parametrize(
    ("file", "read"), [(RECORD, read_record), (JOB, read_request), (LINEUP, read_lineup)], ids=[RECORD, JOB, LINEUP]
)
def test_a_trainings_files_of_a_newer_metalmark_and_damaged_ones(file: str, read: object, tmp_path: Path) -> None:
    (tmp_path / file).write_text('{"schema": 99, "in": "another form"}')
    with pytest.raises(FormatError, match="schema 99"):
        read(tmp_path)  # type: ignore[operator]
    for damaged in (b'{"schema": 1, "id": "\xff"}', b'{"a":' + b"[" * 100_000, b'{"schema": 1'):
        (tmp_path / file).write_bytes(damaged)
        with pytest.raises(FormatError, match="damaged"):
            read(tmp_path)  # type: ignore[operator]


class Loose(msgspec.Struct, kw_only=True):
    count: int = 0
    share: float = 0.0
    text: str = ""
    any: Any = None


LONG = b"9" * 400


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"text":"\xff"}', "not text in UTF-8"),
        (b'{"any":' + b"[" * 100_000, "nested too deeply"),
        (b'{"other":' + b'{"a":' * 100_000, "nested too deeply"),
        (b'{"count":' + LONG + b"}", "more than 64 bits"),
        (b'{"count":-' + LONG + b"}", "more than 64 bits"),
        (b'{"any":[{"a":' + LONG + b"}]}", "more than 64 bits"),
        (b'{"count":' + b"9" * 5000 + b"}", "out of range"),
        (b'{"share":' + LONG + b"}", "out of range"),
        (b'{"text":"cut', "truncated"),
        (b"", "truncated"),
    ],
    ids=range(10),
)
def test_damage_is_one_sentence_that_names_the_file(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=f"theirs.json is damaged: .*{why}") as caught:
        read_json(data, Loose, source="theirs.json", hint="Do this.")
    assert caught.value.hint == "Do this."
    assert len(caught.value.message) < 300
    with pytest.raises(FormatError, match=f"theirs.json is not a list of songs: .*{why}"):
        read_json(data, Loose, source="theirs.json", what="a list of songs")


def test_long_digits_that_are_no_integer_are_read() -> None:
    for sound in (
        Loose(text="9" * 400),
        Loose(share=0.00001234567890123456789),
        Loose(count=2**64 - 1),
        Loose(any=["9" * 50, 1e22]),
    ):
        assert read_json(msgspec.json.encode(sound), Loose, source="x") == sound
    assert read_json(b'{"share":0.' + LONG + b"}", Loose, source="x").share == 1.0
