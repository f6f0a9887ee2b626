"""Official files: where they are published, downloaded only when asked for (--data real), kept in a cache, and used
only if their MD5 is right."""

import os
import tomllib
from pathlib import Path

from msgspec import Struct, convert

from metalmark import downloads
from metalmark.data.files import md5_of
from metalmark.downloads import CACHE_VARIABLE, download_error, downloaded
from metalmark.errors import FormatError
from metalmark.scrub import place

WITHOUT = "--data synthetic needs no file."


class PublishedFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `published.toml`, whose first lines describe the fields."""

    address: str
    files: dict[str, str]
    instead: dict[str, str] = {}
    contents: tuple[str, ...] = ()

    def md5(self, file: str) -> str:
        return {**self.files, **self.instead}[file]


_TABLE = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
PUBLISHED = convert(tomllib.loads(_TABLE), dict[str, PublishedFiles])


def cache_folder() -> Path:
    """Return METALMARK_CACHE/data, or data under the user's cache folder."""
    try:
        return downloads.cache_folder("data")
    except RuntimeError as error:
        raise FormatError(
            "There is no folder for downloaded data: this user's home folder is not known.",
            hint=f"Name a folder by its whole path with {CACHE_VARIABLE}. {WITHOUT}",
        ) from error


def fetch(dataset: str) -> dict[str, Path]:
    """Return the data set's files by name: from the cache, or downloaded into it."""
    published = PUBLISHED[dataset]
    # A folder for each: MNIST and Fashion-MNIST have the same file names.
    folder = cache_folder() / dataset
    needed = list(published.files)
    if not any((folder / file).exists() for file in needed):
        needed = [file for file in published.instead if (folder / file).exists()] or needed
    missing = [file for file in needed if not (folder / file).exists()]
    for file in needed:
        if file not in missing and (mismatch := _mismatch(folder / file, published.md5(file))):
            raise FormatError(
                f"{folder / file} is not the official file: {mismatch}.",
                hint=f"Delete it; --data real then downloads it again. {WITHOUT}",
            )
    for number in range(len(missing)):
        _download(dataset, published, missing[number:], folder)
    return {file: folder / file for file in needed}


def _mismatch(path: Path, expected: str) -> str:
    md5 = md5_of(path)
    return "" if md5 == expected else f"its MD5 is {md5}, not {expected}"


def _download(dataset: str, published: PublishedFiles, missing: list[str], folder: Path) -> None:
    """Download the first of the missing files."""
    # Imported here, as in `downloaded`: it is slow to import.
    import requests

    file = missing[0]
    url = published.address + file
    try:
        with downloaded(url, folder / file) as part:
            if mismatch := _mismatch(part, published.md5(file)):
                raise FormatError(
                    f"What {url} sent is not the official file: {mismatch}. It was not kept.",
                    hint=f"A proxy or a login page may have answered instead. {_by_hand(published, missing, folder)}",
                )
    except requests.RequestException as error:
        raise FormatError(
            f"{file} of {dataset} can't be downloaded from {url}: {download_error(error)}.",
            hint=f"Check the network. {_by_hand(published, missing, folder)}",
        ) from error
    except OSError as error:
        raise FormatError(
            f"{file} of {dataset} can't be kept in {folder}: {error.strerror or error}.",
            hint=f"Choose another folder with {CACHE_VARIABLE}. {WITHOUT}",
        ) from error


def _by_hand(published: PublishedFiles, missing: list[str], folder: Path) -> str:
    files = ", ".join(f"{published.address}{file} (MD5 {published.md5(file)})" for file in missing)
    # In words that a record may contain: the message becomes part of a cell.
    where = f"${CACHE_VARIABLE}/data/{folder.name}" if os.environ.get(CACHE_VARIABLE) else place(folder)
    return f"Or put these files into {where} yourself: {files}. {WITHOUT}"
