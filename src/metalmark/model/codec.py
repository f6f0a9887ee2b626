"""Runs to and from JSON: checked when read, upgraded when old, refused by name when newer than this Metalmark."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from metalmark.errors import FormatError
from metalmark.model.measurement import BenchRun
from metalmark.model.run import SCHEMA, Run, RunKind
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun

FORMAT = "metalmark-records"
UPGRADE = "A newer Metalmark wrote it: pip install --upgrade metalmark"
MAKE_ONE = "Make one with `metalmark runs export -o FILE`."

AnyRun = BenchRun | TrainingRun | WatchedRun
TYPES: dict[str, type[BenchRun] | type[TrainingRun] | type[WatchedRun]] = {
    RunKind.BENCH: BenchRun,
    RunKind.TRAINING: TrainingRun,
    RunKind.WATCH: WatchedRun,
}
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for bytes that are not the structure asked for."""

T = TypeVar("T")
R = TypeVar("R", bound=Run)


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A file of runs as `runs export` writes it."""

    format: str
    schema: int
    records: list[msgspec.Raw]
    derived: Any = msgspec.UNSET
    """Figures by run that a program would otherwise derive itself, if they were asked for. Nobody here reads them."""


class _Head(msgspec.Struct):
    """What is read before anything else is believed. A structure without a number is of the first schema."""

    schema: int = 1
    kind: str = ""


def encode(run: Run) -> bytes:
    return msgspec.json.encode(run)


def decode(data: bytes | msgspec.Raw, *, source: str = "run") -> AnyRun:
    """Read a run of any kind, of this schema or an older one. The first schema named no kind for bench runs."""
    kind = _head(bytes(data), source).kind or RunKind.BENCH
    return decode_as(data, type_of(kind, source=source), source=source)


def decode_as(data: bytes | msgspec.Raw, kind: type[R], *, source: str) -> R:
    """Read a run whose kind is known: the first schema did not write it down."""
    raw = bytes(data)
    _head(raw, source)
    run = _decoded(raw, kind, source)
    return run if run.schema == SCHEMA else msgspec.structs.replace(run, schema=SCHEMA)


def type_of(kind: str, *, source: str) -> type[AnyRun]:
    if kind not in TYPES:
        raise FormatError(
            f"{source} is a run of the kind {kind[:40]!r}, which this Metalmark does not know.",
            hint=UPGRADE,
        )
    return TYPES[kind]


def encode_export(runs: Sequence[Run], derived: dict[str, Any] | None = None) -> bytes:
    raw = [msgspec.Raw(encode(run)) for run in runs]
    export = Export(format=FORMAT, schema=SCHEMA, records=raw, derived=msgspec.UNSET if derived is None else derived)
    return msgspec.json.format(msgspec.json.encode(export), indent=1) + b"\n"


def decode_export(data: bytes, *, source: str) -> list[AnyRun]:
    try:
        export = msgspec.json.decode(data, type=Export)
    except UNREADABLE as error:
        raise FormatError(f"{source} is not an export of Metalmark: {error}.", hint=MAKE_ONE) from error
    if export.format != FORMAT:
        raise FormatError(f"{source} has the format {export.format[:40]!r}, not {FORMAT!r}.", hint=MAKE_ONE)
    refuse_newer(export.schema, SCHEMA, source)
    return [decode(raw, source=f"{source}, record {index}") for index, raw in enumerate(export.records)]


def decode_versioned(data: bytes, kind: type[T], *, newest: int, source: str) -> T:
    """Read a structure with a schema number. What is not one raises msgspec's own error: what to say then depends on
    whose file it is."""
    try:
        refuse_newer(msgspec.json.decode(data, type=_Head).schema, newest, source)
        return msgspec.json.decode(data, type=kind)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error


def refuse_newer(number: int, newest: int, source: str, *, what: str = "schema", hint: str = "") -> None:
    """Refuse what a newer Metalmark wrote, and numbers that none has written."""
    if number < 1:
        raise FormatError(f"{source} has {what} {number}, which never existed.", hint=hint)
    if number > newest:
        raise FormatError(f"{source} has {what} {number}; this Metalmark reads up to {newest}.", hint=UPGRADE)


def json_schema() -> dict[str, Any]:
    return msgspec.json.schema(AnyRun)


def _head(raw: bytes, source: str) -> _Head:
    head = _decoded(raw, _Head, source)
    refuse_newer(head.schema, SCHEMA, source)
    return head


def _decoded(raw: bytes, kind: type[T], source: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        hint = "`metalmark schema` prints what a run looks like."
        raise FormatError(f"{source} is not a Metalmark run: {error}.", hint=hint) from error
