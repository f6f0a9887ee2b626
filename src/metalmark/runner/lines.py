"""Lines of JSON that a worker writes as it goes, each whole: what is there after a crash or Ctrl-C can be read."""

from pathlib import Path
from typing import IO, Any

import msgspec

from metalmark.errors import FormatError
from metalmark.model.codec import read_json


class JsonLineWriter:
    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("wb")

    def __call__(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path, kind: Any) -> tuple[Any, ...]:
    """Return what has been written so far, each line of one of the types of `kind`; one that was cut short is left
    out."""
    if not path.exists():
        return ()
    found: list[Any] = []
    for text in path.read_bytes().split(b"\n"):
        try:
            found.append(read_json(text, kind, source=path.name))
        except FormatError:
            continue
    return tuple(found)
