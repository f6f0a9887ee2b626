"""Structures with a schema number: a newer one is refused by name before its fields are looked at."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from metalmark.errors import FormatError

T = TypeVar("T")


def decode_versioned(data: bytes, kind: type[T], *, newest: int, source: str) -> T:
    """What is no such structure raises msgspec's own error: what to say of that depends on whose file it is."""
    refuse_newer(msgspec.json.decode(data, type=_Versioned).schema, newest, source)
    return msgspec.json.decode(data, type=kind)


def refuse_newer(schema: int, newest: int, source: str) -> None:
    if schema > newest:
        raise FormatError(
            f"{source} has schema {schema}; this Metalmark reads up to {newest}.",
            hint="A newer Metalmark wrote it: pip install --upgrade metalmark",
        )


class _Versioned(msgspec.Struct):
    schema: int = 1
    """What has no number is of the first."""
