"""Values as a user types them: lists and ranges (`16,64`, `1-4`, `8-64x2`, `10-50+10`), `on,off`, devices and files.

They are parsed once, here. A run names a file of the user's by its last part and a digest; its path is not stored.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from metalmark.errors import UsageError, did_you_mean
from metalmark.model.plan import Device, DeviceKind, Scalar
from metalmark.model.workload import Param, WorkloadInfo

_NUMBER = r"(\d+(?:\.\d+)?)"
# `8-64*2` is a pattern of file names to zsh, which ends the command where no file fits: `x` needs no quotes anywhere.
_RANGE = re.compile(rf"^{_NUMBER}(?:-|\.\.){_NUMBER}(?:([x*+]){_NUMBER})?$")
RANGES = "16,64 or 1-4 or 8-64x2 or 10-50+10"
MOST_VALUES = 1000
MOST_WHOLE = 2**53
"""Up to here each whole number is one that a float holds exactly, and that any program reads as it was written."""
MOST_SIZE = 2**31 - 1
"""The largest size that a parameter may ask for: frameworks count the elements of a dimension no further."""
MOST_DIGITS = 4
TRUE, FALSE = {"on", "true", "yes", "1"}, {"off", "false", "no", "0"}
WHOLE_FILE_BYTES = 64 << 20
"""Larger files are identified by their size and both ends: hashing a data set at each start would take minutes."""

ICON = "Icon\r"
"""The file in which the Finder keeps a folder's own icon; the line end is part of the name."""


def split_list(text: str, *, what: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{what} has an empty value in {text!r}.", hint="Write a list as 16,64 without gaps.")
    return list(dict.fromkeys(words))


def choose(text: str, choices: Iterable[str], *, what: str, plural: str) -> list[str]:
    """Parse a list of words out of `choices`; the answer to an unknown one names the nearest."""
    known = list(choices)
    words = split_list(text, what=what)
    for word in words:
        if word not in known:
            raise UsageError(
                f"There is no {what} {word!r}{did_you_mean(word, known)}", hint=f"{plural}: {', '.join(known)}."
            )
    return words


def parse_switch(text: str, *, what: str) -> list[bool]:
    values = []
    for word in split_list(text, what=what):
        if word.lower() not in TRUE | FALSE:
            raise UsageError(f"{what} is on or off, not {word!r}.", hint=f"Write {what}, or {what}=off,on to try both.")
        values.append(word.lower() in TRUE)
    return list(dict.fromkeys(values))


def parse_param(param: Param, text: str) -> list[Scalar]:
    """Parse the values of a workload's parameter, of the type of its default."""
    flag = f"--{param.name.replace('_', '-')}"
    if param.whole:
        return [text.strip()]
    if param.choices and not param.path:
        return list(choose(text, param.choices, what=flag, plural="It takes"))
    if isinstance(param.default, bool):
        return list(parse_switch(text, what=flag))
    if param.path or isinstance(param.default, str):
        return list(split_list(text, what=flag))
    whole = isinstance(param.default, int)
    values = parse_numbers(text, what=flag, whole=whole)
    for value in values:
        if param.minimum is not None and value < param.minimum:
            raise UsageError(f"{flag} must be at least {param.minimum:g}, not {value:g}.")
        most = param.maximum if param.maximum is not None else MOST_SIZE if whole else None
        if most is not None and value > most:
            raise UsageError(f"{flag} must be at most {f'{most:g}' if not whole else most}, not {value:g}.")
    return list(values)


def parse_numbers(text: str, *, what: str, whole: bool) -> list[int] | list[float]:
    values: list[float] = []
    for word in split_list(text, what=what):
        values.extend(_numbers(word, what=what))
        if len(values) > MOST_VALUES:
            raise UsageError(f"{what} {text!r} is more than {MOST_VALUES} values.", hint="Use a larger step.")
    if not all(math.isfinite(value) for value in values):
        raise UsageError(f"{what} must be a finite number, not {text!r}.")
    if not whole:
        return list(dict.fromkeys(values))
    if any(value != int(value) for value in values):
        raise UsageError(f"{what} takes whole numbers, not {text!r}.")
    if any(abs(value) > MOST_WHOLE for value in values):
        raise UsageError(f"{what} takes whole numbers up to {MOST_WHOLE}, not {text[:40]!r}.")
    return list(dict.fromkeys(int(value) for value in values))


def parse_device(word: str) -> Device:
    kind, colon, index = word.partition(":")
    kinds = [known.value for known in DeviceKind]
    if kind not in kinds:
        raise UsageError(
            f"There is no device {word!r}{did_you_mean(kind, [*kinds, 'all'])}",
            hint="Devices: cpu, gpu (the framework's accelerator here), any, mps, cuda, cuda:1, or all.",
        )
    if not colon:
        return Device(kind=DeviceKind(kind))
    if not (index.isascii() and index.isdigit() and len(index) <= MOST_DIGITS) or kind in ("cpu", "any"):
        raise UsageError(f"{word!r} is not a device.", hint="A device with a number looks like cuda:1.")
    return Device(kind=DeviceKind(kind), index=int(index))


def _numbers(word: str, *, what: str) -> list[float]:
    match = _RANGE.match(word)
    if match is None:
        try:
            return [float(word)]
        except ValueError:
            raise UsageError(f"{what} takes numbers, not {word!r}.", hint=f"Lists and ranges: {RANGES}.") from None
    low, high, multiplied, by = float(match[1]), float(match[2]), (match[3] or "+") in "x*", float(match[4] or 1)
    if low > high or (multiplied and by <= 1) or by <= 0 or low <= 0 < multiplied:
        raise UsageError(f"{what}: the range {word!r} never ends or is empty.", hint="Write it as 8-64x2 or 10-50+10.")
    values = [low]
    while len(values) <= MOST_VALUES:
        following = values[-1] * by if multiplied else values[-1] + by
        if following > high * (1 + 1e-9):
            break
        values.append(following)
    return values


def localise(text: str, *, fixed: Iterable[str], what: str) -> tuple[str, dict[str, str]]:
    """Parse a list of words, some of them paths. Return the list as runs may hold it, and the path of each file."""
    known, words, paths = set(fixed), [], {}
    for given in split_list(text, what=what):
        if given in known:
            words.append(given)
            continue
        path = expanded(given)
        # A device or a pipe is neither: it has no end, or nobody at the other one. os.path knows names too long, too.
        if not (os.path.isfile(path) or os.path.isdir(path)):
            raise UsageError(
                f"{what} is {', '.join(sorted(known))} or a path; there is no file or folder {given}.",
                hint="Check the path; a comma separates values, so it may not be in a name.",
            )
        try:
            label = f"{path.resolve().name}@{fingerprint(path)[:12]}"
        except OSError as error:
            raise UsageError(f"{what} {given} can't be read: {error.strerror}.", hint="Check its rights.") from error
        words.append(label)
        paths[label] = str(path.resolve())
    return ",".join(words), paths


def expanded(text: str) -> Path:
    """Return a path as typed, with ~ replaced by the home folder that it stands for."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{text} can't be found: that home folder is not known.", hint="Write the whole path."
        ) from error


def localise_params(
    workloads: Sequence[WorkloadInfo], given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Do the same for every parameter that may name a file."""
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
        # Not by `encode`: a name need not be text.
        digest.update(os.fsencode(f"{file.relative_to(path) if path.is_dir() else ''} {size}\n"))
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
    """Leave out hidden files: macOS writes .DS_Store, ._ files and Icon into any folder that is looked at."""
    parts = file.relative_to(folder).parts
    return not any(part.startswith(".") for part in parts) and parts[-1] != ICON and file.is_file()
