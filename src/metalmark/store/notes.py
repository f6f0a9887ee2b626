"""What this machine alone knows of the runs on a server: the folders of trainings, and the files that sweeps use. No
path of a machine is written where others read it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from metalmark.errors import FormatError, StoreError
from metalmark.machine.durable import read_whole, write_whole
from metalmark.model.codec import read_json
from metalmark.model.run import RunKind
from metalmark.store.address import ServerAddress, local_folder
from metalmark.store.row import Row

MOST_BYTES = 1 << 20


class LocalNotes:
    """One small file for each training and each sweep that has any."""

    def __init__(self, address: ServerAddress) -> None:
        self._folder = local_folder(address)

    def write_folder(self, run: str, folder: Path) -> None:
        self._write(Path("folders", run), os.fsencode(folder))

    def with_folder(self, row: Row) -> Row:
        """Return the row of a training with its folder, where that is on this machine."""
        if row.kind != RunKind.TRAINING or not (row.id.isalnum() and row.id.isascii()):
            return row
        with suppress(OSError, ValueError):
            return msgspec.structs.replace(row, folder=read_whole(self._folder / "folders" / row.id, MOST_BYTES))
        return row

    def forget_folders(self, runs: Iterable[str]) -> None:
        for run in runs:
            with suppress(OSError, ValueError):
                (self._folder / "folders" / run).unlink()

    def write_paths(self, sweep: str, paths: dict[str, str]) -> None:
        if paths:
            self._write(Path("paths", f"{sweep}.json"), msgspec.json.encode(paths))

    def paths(self, sweep: str) -> dict[str, str]:
        with suppress(OSError, ValueError, FormatError):
            data = read_whole(self._folder / "paths" / f"{sweep}.json", MOST_BYTES)
            return read_json(data, dict[str, str], source=f"the paths of sweep {sweep}")
        return {}

    def _write(self, name: Path, data: bytes) -> None:
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        except OSError as error:
            raise StoreError(
                f"{path} can't be written: {error.strerror}.",
                hint="Paths of this machine are kept there, and not in the store that others read.",
            ) from error
