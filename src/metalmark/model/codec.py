"""Runs to and from JSON: checked when read, upgraded when old, refused by name when newer than this Metalmark."""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from metalmark.errors import FormatError
from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun
from metalmark.model.run import SCHEMA, Run, RunKind
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.scrub import printable

FORMAT = "metalmark-records"
UPGRADE = "A newer Metalmark wrote it: pip install --upgrade metalmark"
MOST_REASON = 200
MAKE_ONE = "Make one with `metalmark runs export -o FILE`."

AnyRun = BenchRun | TrainingRun | WatchedRun | ParityRun | ExplanationRun | TuningRun
TYPES: dict[str, type[AnyRun]] = {
    RunKind.BENCH: BenchRun,
    RunKind.TRAINING: TrainingRun,
    RunKind.WATCH: WatchedRun,
    RunKind.PARITY: ParityRun,
    RunKind.EXPLAIN: ExplanationRun,
    RunKind.TUNE: TuningRun,
}
SCHEMA_HINT = "`metalmark schema` prints what a run looks like."
LARGEST = 2**64
"""Beyond it no figure of a run lies, and neither SQLite nor other programs could hold it."""
_LONG_INTEGER = re.compile(rb"(?<![.\d])\d{20,}(?![.\deE])")
"""Digits that may be an integer of more than 64 bits; they may also stand inside a string."""
_DIGITS = bytes.maketrans(b"0123456789", b"9" * 10)

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


def read_json(data: bytes | str | msgspec.Raw, kind: type[T], *, source: str, what: str = "", hint: str = "") -> T:
    """Read bytes into a structure: the one way in for every file, line and column that holds JSON.

    Whatever is wrong with them becomes a FormatError that names the source: bytes that are not text, an end in the
    middle, nesting deeper than Python goes, integers that no field can hold. With `what` it says what the source is
    not ("a bundle of Metalmark"), else that the source is damaged.
    """
    raw = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    try:
        found = msgspec.json.decode(raw, type=kind)
        # Python's integers have no end, and what is computed from a longer one overflows far from here.
        # The first test is the quick one.
        long = b"9" * 20 in raw.translate(_DIGITS) and _LONG_INTEGER.search(raw) is not None
        if long and _has_long_integer(msgspec.json.decode(raw)):
            raise ValueError("it holds an integer of more than 64 bits")
        return found
    except (RecursionError, ValueError) as error:  # msgspec's own are ValueErrors too
        why = printable(str(error))[:MOST_REASON]
        if isinstance(error, RecursionError):
            why = "it is nested too deeply"
        elif isinstance(error, UnicodeDecodeError):
            why = "it holds bytes that are not text in UTF-8"
        raise FormatError(f"{source} is {f'not {what}' if what else 'damaged'}: {why}.", hint=hint) from error


def _has_long_integer(value: object) -> bool:
    values = [value]
    while values:
        inner = values.pop()
        if isinstance(inner, int) and abs(inner) >= LARGEST:
            return True
        if isinstance(inner, dict):
            values += inner.values()
        elif isinstance(inner, list):
            values += inner
    return False


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
    run = read_json(raw, kind, source=source, what="a Metalmark run", hint=SCHEMA_HINT)
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
    export = read_json(data, Export, source=source, what="an export of Metalmark", hint=MAKE_ONE)
    if export.format != FORMAT:
        raise FormatError(f"{source} has the format {export.format[:40]!r}, not {FORMAT!r}.", hint=MAKE_ONE)
    refuse_newer(export.schema, SCHEMA, source)
    return [decode(raw, source=f"{source}, record {index}") for index, raw in enumerate(export.records)]


def decode_versioned(data: bytes, kind: type[T], *, newest: int, source: str, hint: str = "") -> T:
    """Read a structure with a schema number. `hint` says what to do when it is damaged."""
    refuse_newer(read_json(data, _Head, source=source, hint=hint).schema, newest, source)
    return read_json(data, kind, source=source, hint=hint)


def refuse_newer(number: int, newest: int, source: str, *, what: str = "schema", hint: str = "") -> None:
    """Refuse what a newer Metalmark wrote, and numbers that none has written."""
    if number < 1:
        raise FormatError(f"{source} has {what} {number}, which never existed.", hint=hint)
    if number > newest:
        raise FormatError(f"{source} has {what} {number}; this Metalmark reads up to {newest}.", hint=UPGRADE)


def json_schema() -> dict[str, Any]:
    return msgspec.json.schema(AnyRun)


def _head(raw: bytes, source: str) -> _Head:
    head = read_json(raw, _Head, source=source, what="a Metalmark run", hint=SCHEMA_HINT)
    refuse_newer(head.schema, SCHEMA, source)
    return head
