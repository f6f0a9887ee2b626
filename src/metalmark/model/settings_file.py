"""SettingsFile: the settings that a tuning found best, as a small file that `bench` and `train` take with --settings.

Pure data. `app/settings_file.py` reads and writes the file, and applies it.
"""

import msgspec
from msgspec import Struct

from metalmark.errors import FormatError, did_you_mean
from metalmark.model.codec import read_json, refuse_newer
from metalmark.model.plan import Feed, Loader, Mode, Scalar, Settings
from metalmark.model.run import Identifier

FORMAT = "metalmark-settings"
VERSION = 1
"""It goes up whenever an older reader would misread a newer file."""
WHAT = "a settings file of Metalmark"
MAKE_ONE = "`metalmark tune` makes a settings file."

CORRECT_IT = "Correct the name. If a newer Metalmark wrote the file: pip install --upgrade metalmark"


class SettingsFile(Struct, frozen=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    workload: str
    workload_digest: str = ""
    """SHA-256 of the user's own file; empty for a built-in."""
    framework: str
    mode: Mode
    device: str
    """The type of device that it was tuned on: "cpu", "cuda", "mps"."""
    settings: Settings
    loader: Loader | None = None
    """Of a pipeline; None where batches are resident."""
    feed: Feed = Feed.RESIDENT
    params: dict[str, Scalar] = {}
    """Parameters of the workload that were changed, such as the batch size."""
    run: Identifier | None = None
    """The tuning that found these settings; None where nobody tuned."""
    gain: float | None = None
    """How many times better than the baseline they are."""


class _Start(Struct):
    """What is read before anything else is believed."""

    format: str = ""
    version: int = 0


def encode_settings(file: SettingsFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def decode_settings(data: bytes, *, source: str) -> SettingsFile:
    start = read_json(data, _Start, source=source, what=WHAT, hint=MAKE_ONE)
    if start.format != FORMAT:
        raise FormatError(f"{source} is not {WHAT}: its format is {start.format[:40]!r}.", hint=MAKE_ONE)
    refuse_newer(start.version, VERSION, source, what="version", hint=MAKE_ONE)
    file = read_json(data, SettingsFile, source=source, what=WHAT, hint=MAKE_ONE)
    _refuse_unknown_names(msgspec.json.decode(data), file, source)
    return file


def _refuse_unknown_names(given: dict[str, object], file: SettingsFile, source: str) -> None:
    """Refuse what a reader would pass over: a setting that is misspelled, or one of a newer Metalmark."""
    for part, structure in ((given, file), (given.get("settings"), file.settings), (given.get("loader"), file.loader)):
        if not isinstance(part, dict) or structure is None:
            continue
        for name in part.keys() - set(structure.__struct_fields__):
            known = did_you_mean(name[:40], structure.__struct_fields__)
            raise FormatError(f"{source} has {name[:40]!r}, which this Metalmark does not know{known}", hint=CORRECT_IT)
