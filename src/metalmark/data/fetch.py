"""Official files: downloaded only when asked for (--data real), kept in a cache, used only if their MD5 is right."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from metalmark.data.registry import REGISTRY, Remote
from metalmark.data.trouble import md5_of
from metalmark.downloads import Meter
from metalmark.errors import FormatError
from metalmark.scrub import place

VARIABLE = "METALMARK_CACHE"
WITHOUT = "--data synthetic needs no file."
TIMEOUT_S = 30


def cache_folder() -> Path:
    """METALMARK_CACHE/data, or data under the user's cache folder."""
    given = os.environ.get(VARIABLE)
    try:
        if not given:
            import platformdirs

            given = platformdirs.user_cache_dir("metalmark", appauthor=False)
        return Path(given).expanduser() / "data"
    except RuntimeError as error:
        raise FormatError(
            "Downloaded data has no place: this user's home folder is not known.",
            hint=f"Name a folder by its whole path with {VARIABLE}. {WITHOUT}",
        ) from error


def fetch(dataset: str) -> dict[str, Path]:
    """The data set's files by name: from the cache, or downloaded into it."""
    remote = REGISTRY[dataset]
    # A folder for each: MNIST and Fashion-MNIST have the same file names.
    folder = cache_folder() / dataset
    needed = list(remote.files)
    if not any((folder / file).exists() for file in needed):
        needed = [file for file in remote.instead if (folder / file).exists()] or needed
    present = [file for file in needed if (folder / file).exists()]
    for file in present:
        _check(folder / file, remote.md5(file))
    missing = [file for file in needed if file not in present]
    for number in range(len(missing)):
        _download(dataset, remote, missing[number:], folder)
    return {file: folder / file for file in needed}


def _check(path: Path, expected: str) -> None:
    found = md5_of(path)
    if found != expected:
        raise FormatError(
            f"{path} is not the official file: its MD5 is {found}, not {expected}.",
            hint=f"Delete it; --data real then downloads it again. {WITHOUT}",
        )


def _download(dataset: str, remote: Remote, missing: list[str], folder: Path) -> None:
    """The first of the missing ones, to a temporary name: what stands under a file's own name is whole and checked."""
    # Imported here: they cost a fifth of a second, and most commands download nothing.
    import pooch  # type: ignore[import-untyped]
    import requests

    file = missing[0]
    address = remote.address + file
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{file}.", dir=folder)
        os.close(handle)
        pooch.HTTPDownloader(timeout=TIMEOUT_S, progressbar=Meter())(address, temporary, None)
        found, expected = md5_of(Path(temporary)), remote.md5(file)
        if found != expected:
            raise FormatError(
                f"What {address} sent is not the official file: its MD5 is {found}, not {expected}. It was not kept.",
                hint=f"A proxy or a login page may have answered instead. {_by_hand(remote, missing, folder)}",
            )
        os.replace(temporary, folder / file)
    except requests.RequestException as error:
        raise FormatError(
            f"{file} of {dataset} can't be downloaded from {address}: {_reason(error)}.",
            hint=f"Check the network. {_by_hand(remote, missing, folder)}",
        ) from error
    except OSError as error:
        raise FormatError(
            f"{file} of {dataset} can't be kept in {folder}: {error.strerror or error}.",
            hint=f"Choose another folder with {VARIABLE}. {WITHOUT}",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _by_hand(remote: Remote, missing: list[str], folder: Path) -> str:
    files = ", ".join(f"{remote.address}{file} (MD5 {remote.md5(file)})" for file in missing)
    # In words that a record may hold: the message becomes part of a cell.
    where = f"${VARIABLE}/data/{folder.name}" if os.environ.get(VARIABLE) else place(folder)
    return f"Or bring into {where} yourself: {files}. {WITHOUT}"


def _reason(error: Exception) -> str:
    """The innermost cause: requests wraps the one useful line in three others."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    inner: BaseException = error
    while (cause := _inside(inner)) is not None:
        inner = cause
    return str(inner).rpartition(": ")[2].rstrip(".") or type(inner).__name__


def _inside(error: BaseException) -> BaseException | None:
    held = (getattr(error, "reason", None), *error.args)
    return next((cause for cause in held if isinstance(cause, Exception)), None)
