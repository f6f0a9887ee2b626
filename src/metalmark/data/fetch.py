"""Official files: where they are published, downloaded only when asked for (--data real), kept in a cache, and used
only if their MD5 is right."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from metalmark import downloads
from metalmark.data.files import md5_of
from metalmark.downloads import CACHE_VARIABLE, download_error, downloaded
from metalmark.errors import FormatError
from metalmark.scrub import place

WITHOUT = "--data synthetic needs no file."


@dataclass(frozen=True, kw_only=True)
class PublishedFiles:
    """Files and their MD5s under one address. `instead` is as good, where it is there already."""

    address: str
    files: dict[str, str]
    instead: dict[str, str] = field(default_factory=dict)

    def md5(self, file: str) -> str:
        return {**self.files, **self.instead}[file]


PUBLISHED: dict[str, PublishedFiles] = {
    "mnist": PublishedFiles(
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": PublishedFiles(
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    # The binary one is fetched: it is not a pickle.
    "cifar-10": PublishedFiles(
        address="https://www.cs.toronto.edu/~kriz/",
        files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        instead={"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "flowers-102": PublishedFiles(
        address="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        files={
            "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
            "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
            "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
        },
    ),
}


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
