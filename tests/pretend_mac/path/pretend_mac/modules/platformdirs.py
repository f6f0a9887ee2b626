"""platformdirs on a Mac: folders below ~/Library, with a space in one of their names."""

from __future__ import annotations

from typing import Any

from platformdirs.macos import MacOS


def changed(_: Any) -> dict[str, Any]:
    def user_data_dir(name: str, **_: object) -> str:
        return MacOS(name).user_data_dir

    def user_cache_dir(name: str, **_: object) -> str:
        return MacOS(name).user_cache_dir

    return {"user_data_dir": user_data_dir, "user_cache_dir": user_cache_dir}
