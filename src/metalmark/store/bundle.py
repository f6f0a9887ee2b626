"""A bundle: runs in one compressed file to hand to others. Schema-checked, hashed, without personal data, bounded.

The hash is over canonical bytes (keys sorted, no white space), so it is of what the records say and not of how a
program set them out; the same runs give the same file.
"""

import errno
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from metalmark.errors import FormatError, UsageError
from metalmark.machine.durable import TOO_LARGE, read_whole
from metalmark.model.codec import AnyRun, decode, decode_export, encode, read_json, refuse_newer
from metalmark.model.run import SCHEMA, Run
from metalmark.model.watch import WatchedRun
from metalmark.store.damage import LARGEST, damage_of
from metalmark.store.personal import look, without
from metalmark.store.store import NAME, RESERVED

FORMAT = "metalmark-bundle"
VERSION = 1
MOST_PACKED_BYTES = 64 << 20
MOST_BYTES = 256 << 20
"""Unpacked: a file of a few kB can claim to hold terabytes."""
MOST_NAMES = 10_000
GZIP = b"\x1f\x8b"
MOST_SHOWN = 5
MAKE_ONE = "Make one with `metalmark runs export --bundle FILE`."

Names = Mapping[str, Sequence[str]]


class BundleFile(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON inside the compression."""

    format: str
    bundle: int
    schema: int
    sha256: str
    names: dict[str, list[str]] = {}
    """Ids of runs or sweeps by name; only where whoever made the bundle asked for it."""
    records: list[msgspec.Raw]


class Bundle(NamedTuple):
    runs: list[AnyRun]
    names: Names
    sha256: str


class _Format(msgspec.Struct, frozen=True):
    format: str = ""
    bundle: int = 0
    schema: int = 0


def encode_bundle(runs: Iterable[Run], *, names: Names | None = None, scrubs: bool = False) -> bytes:
    """Refuse personal data, saying where it stands; with `scrubs`, put plain words in its place."""
    chosen = sorted({run.id: run for run in runs}.values(), key=lambda one: (one.started_at, one.id))
    if not chosen:
        raise UsageError("There is nothing to bundle.", hint="`metalmark runs list` shows what is stored.")
    if scrubs:
        chosen = [without(run) for run in chosen]
    _refuse_personal(chosen, "--scrub puts plain words there." if not scrubs else "")
    kept = {name: sorted(runs) for name, runs in sorted((names or {}).items())}
    raw = [encode(record) for record in chosen]
    if sum(map(len, raw)) > MOST_BYTES:
        raise UsageError(
            f"{len(raw)} runs are more than a bundle holds ({MOST_BYTES >> 20} MiB).",
            hint="Name fewer runs, and make several bundles.",
        )
    told, records = digest(raw, kept), [msgspec.Raw(one) for one in raw]
    document = BundleFile(format=FORMAT, bundle=VERSION, schema=SCHEMA, sha256=told, names=kept, records=records)
    packer = zlib.compressobj(6, wbits=31)  # gzip's own header, without a time: the same runs, the same bytes
    return packer.compress(msgspec.json.encode(document)) + packer.flush()


def decode_bundle(data: bytes, *, source: str) -> Bundle:
    """Check everything before anything is believed: size, form, versions, hash, each run, names."""
    plain = unpack(data, source=source)
    # Before the whole is read by its type: a newer form may have another one.
    head = _format(plain)
    if head.format != FORMAT:
        raise FormatError(f"{source} is not a bundle of Metalmark.", hint=MAKE_ONE)
    refuse_newer(head.bundle, VERSION, source, what="bundle version", hint=MAKE_ONE)
    refuse_newer(head.schema, SCHEMA, source, hint=MAKE_ONE)
    file = read_json(plain, BundleFile, source=source, what="a bundle of Metalmark", hint=MAKE_ONE)
    told = digest(file.records, file.names, source=source)
    if told != file.sha256:
        raise FormatError(
            f"{source} was altered: its contents have the hash {told[:12]}…, and it says {file.sha256[:12]}….",
            hint="Nothing was imported. Get it again from whoever made it.",
        )
    if len(file.names) > MOST_NAMES or any(
        NAME.fullmatch(name) is None or name.lower() in RESERVED for name in file.names
    ):
        raise FormatError(f"{source} holds names that no run can have.", hint=MAKE_ONE)
    runs = [decode(raw, source=f"{source}, record {index}") for index, raw in enumerate(file.records)]
    return Bundle(_refuse_damaged(runs, source), file.names, told)


def read_file(name: str) -> Bundle:
    """Read a bundle, or an export of `runs export`, whichever the file is."""
    path = Path(name)
    try:
        data = read_whole(path, MOST_BYTES * 2)
        if data.startswith(GZIP) and len(data) > MOST_PACKED_BYTES:
            raise OSError(errno.EFBIG, TOO_LARGE)
    except (OSError, ValueError) as error:  # ValueError: no file can have that name
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            hint = "Export fewer runs at a time."
            raise FormatError(f"{name} is larger than any bundle or export.", hint=hint) from error
        why = error.strerror if isinstance(error, OSError) else error
        raise FormatError(f"{name} can't be read: {why}.", hint="Name a file of `runs export`.") from error
    if data.startswith(GZIP) or _format(data).format == FORMAT:
        return decode_bundle(data, source=name)
    return Bundle(_refuse_damaged(decode_export(data, source=name), name), {}, "")


def digest(records: Sequence[bytes | msgspec.Raw], names: Names, *, source: str = "A run") -> str:
    """One record at a time, so that a large bundle is never in memory as Python's own objects."""
    found = hashlib.sha256(msgspec.json.encode(names, order="sorted") + b"\n")
    for raw in records:
        found.update(msgspec.json.encode(read_json(raw, Any, source=source), order="sorted") + b"\n")
    return found.hexdigest()


def unpack(data: bytes, *, source: str) -> bytes:
    if not data.startswith(GZIP):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(data, MOST_BYTES + 1)
    except zlib.error as error:
        raise FormatError(f"{source} is damaged: {error}.", hint="Get it again from whoever made it.") from error
    if len(plain) > MOST_BYTES:
        raise FormatError(f"{source} unpacks to more than {MOST_BYTES >> 20} MiB: refused.", hint=MAKE_ONE)
    if not unpacker.eof:
        raise FormatError(f"{source} ends in the middle.", hint="Copy it again: it was cut off.")
    if unpacker.unused_data:
        raise FormatError(f"{source} goes on after its end.", hint="Get it again from whoever made it.")
    return plain


def _format(data: bytes) -> _Format:
    try:
        return read_json(data, _Format, source="")
    except FormatError:
        return _Format()


def _refuse_personal(runs: Sequence[Run], hint: str) -> None:
    found = dict.fromkeys(f"{one.what} in {one.where} of run {one.run}" for run in runs for one in look(run))
    if not found:
        return
    shown = list(found)[:MOST_SHOWN]
    more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    raise UsageError(f"This would give away {'; '.join(shown)}{more}.", hint=f"Nothing was written. {hint}".strip())


def _refuse_damaged(runs: list[AnyRun], source: str) -> list[AnyRun]:
    """Runs that someone edited are found before they are stored."""
    for run in runs:
        if why := damage_of(run) or _unlike_a_batch(run):
            raise FormatError(f"Run {run.id} of {source} is damaged: {why}.", hint="Export it again.")
    return runs


def _unlike_a_batch(run: AnyRun) -> str:
    plan = None if isinstance(run, WatchedRun) else run.plan
    batch = None if plan is None else plan.params.get("batch_size")
    wrong = batch is not None and not (type(batch) is int and 0 < batch < LARGEST)
    return "its batch size is not a number of samples" if wrong else ""
