"""Which file the store is: --store, METALMARK_STORE, or one under the user's data folder."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "METALMARK_STORE"


def store_path(chosen: str | None = None) -> Path:
    given = chosen or os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("metalmark", appauthor=False)) / "records.sqlite3"
