"""Records to and from JSON: checked on the way in, upgraded when old, refused by name when newer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from metalmark.errors import FormatError
from metalmark.model.record import SCHEMA, Record
from metalmark.model.versioned import refuse_newer

FORMAT = "metalmark-records"
MOST_BYTES = 512 << 20

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: dict[int, Upgrade] = {}
"""From schema N to N + 1. None yet: 1 is the first."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A file of records as `runs export` writes it."""

    format: str
    schema: int
    records: list[msgspec.Raw]


class Shown(Export, frozen=True, kw_only=True):
    """... with what a program would else derive itself, by record; a reader of records passes over it."""

    derived: dict[str, Any]


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes | msgspec.Raw, *, source: str = "record") -> Record:
    """A Record from JSON of this schema or an older one."""
    raw = bytes(data)
    schema = _schema_of(raw, source)
    try:
        if schema == SCHEMA:
            return _decoder.decode(raw)
        document = msgspec.json.decode(raw)
        for version in range(schema, SCHEMA):
            document = UPGRADES[version](document)
        return msgspec.convert({**document, "schema": SCHEMA}, Record)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise FormatError(
            f"{source} is not a Metalmark record: {error}.",
            hint="`metalmark schema` prints what a record looks like.",
        ) from error


def encode_export(records: list[Record], derived: dict[str, Any] | None = None) -> bytes:
    raw = [msgspec.Raw(encode(record)) for record in records]
    export = Export(format=FORMAT, schema=SCHEMA, records=raw)
    if derived is not None:
        export = Shown(format=FORMAT, schema=SCHEMA, records=raw, derived=derived)
    return msgspec.json.format(_encoder.encode(export), indent=1) + b"\n"


def decode_export(data: bytes, *, source: str) -> list[Record]:
    try:
        export = msgspec.json.decode(data, type=Export)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{source} is not an export of Metalmark: {error}.",
            hint="Make one with `metalmark runs export -o FILE`.",
        ) from error
    if export.format != FORMAT:
        raise FormatError(
            f"{source} has the format {export.format[:40]!r}, not {FORMAT!r}.",
            hint="Make one with `metalmark runs export -o FILE`.",
        )
    refuse_newer(export.schema, SCHEMA, source)
    return [decode(raw, source=f"{source}, record {index}") for index, raw in enumerate(export.records)]


def read_export(name: str) -> list[Record]:
    path = Path(name)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FormatError(f"{name} is larger than {MOST_BYTES >> 20} MiB.", hint="Export fewer runs at a time.")
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{name} can't be read: {error.strerror}.", hint="Name a file of `runs export`.") from error
    return decode_export(data, source=name)


def json_schema() -> dict[str, Any]:
    return msgspec.json.schema(Record)


class _Versioned(msgspec.Struct):
    schema: int


def _schema_of(raw: bytes, source: str) -> int:
    try:
        schema = msgspec.json.decode(raw, type=_Versioned).schema
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{source} is not a Metalmark record: {error}.",
            hint="`metalmark schema` prints what a record looks like.",
        ) from error
    refuse_newer(schema, SCHEMA, source)
    if schema < 1:
        raise FormatError(f"{source} has schema {schema}, which never existed.")
    return schema
