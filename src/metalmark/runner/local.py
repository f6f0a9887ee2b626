"""Files of the user's: a record names one by its last part and a digest; where it lies stays on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from metalmark.errors import UsageError
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.values import split_list

WHOLE_FILE_BYTES = 64 << 20
"""Larger files are known by their size and both ends: hashing a data set at each start would take minutes."""

ICON = "Icon\r"
"""Where the Finder keeps a folder's own picture; the line end is part of the name."""


def localise(text: str, *, fixed: Iterable[str], what: str) -> tuple[str, dict[str, str]]:
    """A list of words, some of them paths: the same list as records may hold it, and where each file lies."""
    known, words, paths = set(fixed), [], {}
    for given in split_list(text, what=what):
        if given in known:
            words.append(given)
            continue
        path = expanded(given)
        if not path.exists():
            raise UsageError(
                f"{what} is {', '.join(sorted(known))} or a path; there is no file or folder {given}.",
                hint="Check the path; a comma separates values, so it may not be in a name.",
            )
        label = f"{path.resolve().name}@{fingerprint(path)[:12]}"
        words.append(label)
        paths[label] = str(path.resolve())
    return ",".join(words), paths


def expanded(text: str) -> Path:
    """A path as typed, ~ replaced by the home folder that it stands for."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{text} can't be found: that home folder is not known.", hint="Write the whole path."
        ) from error


def localise_params(
    workloads: Sequence[WorkloadInfo], given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The same for every parameter that may name a file."""
    params, paths = dict(given), {}
    for workload in workloads:
        for param in workload.params:
            if param.path and param.name in given:
                flag = f"--{param.name.replace('_', '-')}"
                params[param.name], found = localise(given[param.name], fixed=param.choices, what=flag)
                paths.update(found)
    return params, paths


def fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if _counts(each, path))
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path) if path.is_dir() else ''} {size}\n".encode())
        if len(files) > 100:
            continue  # a folder of images: names and sizes
        with file.open("rb") as opened:
            if size <= WHOLE_FILE_BYTES:
                digest.update(opened.read())
            else:
                digest.update(opened.read(1 << 20))
                opened.seek(-(1 << 20), 2)
                digest.update(opened.read())
    return digest.hexdigest()


def _counts(file: Path, folder: Path) -> bool:
    """Hidden files are the system's: macOS leaves .DS_Store, ._ files and Icon behind in a folder that is looked at."""
    parts = file.relative_to(folder).parts
    return not any(part.startswith(".") for part in parts) and parts[-1] != ICON and file.is_file()
