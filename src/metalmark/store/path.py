"""Which file the store is: --store, METALMARK_STORE, or one under the user's data folder."""

from __future__ import annotations

import os
from pathlib import Path

from metalmark.errors import StoreError

VARIABLE = "METALMARK_STORE"
NO_HOME = f"Name a file by its whole path, with --store FILE or {VARIABLE}."


def store_path(chosen: str | os.PathLike[str] | None = None) -> Path:
    given = chosen or os.environ.get(VARIABLE)
    try:
        if given:
            return Path(given).expanduser()
        import platformdirs

        folder = platformdirs.user_data_dir("metalmark", appauthor=False)
        # An older platformdirs leaves the ~ in, and a folder of that name is nobody's wish.
        return Path(folder).expanduser() / "records.sqlite3"
    except RuntimeError as error:
        what = f"The store {given} can't be found" if given else "There is no place for the store"
        raise StoreError(f"{what}: this user's home folder is not known.", hint=NO_HOME) from error
