"""Tables: CSV, NPZ and Parquet files as arrays of numbers, one column or array of them the target.

Columns of numbers are float32. A target of words becomes classes, numbered in the order of the words; so does a target
of numbers where the workload's task is classification. A fifth of the rows is for validation, unless the file says
which.
"""

import csv
import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metalmark.data.arrays import ArraySplit, named_arrays
from metalmark.data.dataset import Dataset, Split, Subset, held_out
from metalmark.data.files import damaged, unreadable
from metalmark.errors import FormatError, NotInstalledError, UsageError, did_you_mean
from metalmark.model.workload import Task
from metalmark.scrub import printable

DELIMITERS = ",;\t"
TABLE = "a table"
NUMBERS = "Write numbers, remove the row or the column, or turn words into numbers (one column per word) first."
# What NumPy and zipfile raise on damaged archives.
NPZ_ERRORS = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError)


@dataclass(frozen=True)
class TableColumn:
    """A column as it was read: words of a CSV, or an array of Parquet."""

    name: str
    values: Sequence[Any] | np.ndarray


def load_csv(path: Path, *, target: str = "", task: Task | None = None) -> Dataset:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise damaged(path, TABLE, f"byte {error.start:,} is not UTF-8", hint="Save it as UTF-8.") from error
    names, rows = _rows(path, text)
    columns = [TableColumn(name, [row[number] for row in rows]) for number, name in enumerate(names)]
    return _dataset(path, columns, target, task, hashlib.sha256(data), first_row=2)


def load_parquet(path: Path, *, target: str = "", task: Task | None = None) -> Dataset:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise NotInstalledError(
            "Reading Parquet needs pyarrow, which is not installed.",
            hint='Install it: pip install "metalmark[parquet]"',
        ) from error
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
            table = parquet.read_table(path)
    except (pyarrow.ArrowException, ValueError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise damaged(path, "Parquet", why, hint="Write it again, with pandas or pyarrow.") from error
    except OSError as error:
        raise unreadable(path, error) from error
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            row = next(number for number, value in enumerate(column) if not value.is_valid)
            raise _bad_cell(path, row + 1, name, "is empty")
        words = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
        columns.append(TableColumn(name, column.to_pylist() if words else column.to_numpy()))
    return _dataset(path, columns, target, task, digest, first_row=1)


def load_npz(path: Path, *, target: str = "") -> Dataset:
    """Arrays by their usual names; with `target`, that array is the target and all others are inputs."""
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise unreadable(path, error) from error
    except NPZ_ERRORS as error:
        if "allow_pickle" in str(error):
            why = "it holds Python objects, not numbers"
            hint = "Save arrays of one shape and of numbers: np.savez(path, x=x, y=y)"
            raise damaged(path, "NumPy arrays", why, hint=hint) from error
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise damaged(path, "NumPy arrays", why, hint="Save it again: np.savez(path, x=x, y=y)") from error
    if target:
        if target not in arrays:
            raise _no_column(path, target, list(arrays), "array")
        others = {name: array for name, array in arrays.items() if name != target}
        inputs = others if len(others) > 1 else next(iter(others.values()), None)
        if inputs is None:
            raise UsageError(f"{path} has only the array {target}: nothing is left to tell it from.")
        train, validation = ArraySplit.of(inputs, arrays[target], name=str(path)), None
    else:
        train, validation = named_arrays(arrays, name=str(path))
    digest.update(target.encode())
    return _divided("table", f"NumPy arrays, {len(train):,} samples", train, validation, digest.hexdigest(), str(path))


def _rows(path: Path, text: str) -> tuple[list[str], list[list[str]]]:
    header = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=header.count)
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if line]
    except csv.Error as error:
        raise damaged(path, TABLE, str(error), hint="Quotes must be closed; save it again as CSV.") from error
    if not lines:
        raise damaged(path, TABLE, "it is empty", hint="Give a file with a line of names and rows of numbers.")
    names, rows = [name.strip() for name in lines[0]], lines[1:]
    if all(map(_is_number, names)):
        raise damaged(path, TABLE, "its first line is numbers", hint="Put a line with the columns' names at its top.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise damaged(path, TABLE, f"it has two columns named {twice[0]!r}", hint="Rename one of them.")
    if not rows:
        raise damaged(path, TABLE, "it has a line of names and no rows", hint="Add rows.")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            why = f"line {number} has {len(row)} cells, and the line of names has {len(names)}"
            raise damaged(path, TABLE, why, hint="Every row has one cell per column.")
    return names, rows


def _dataset(
    path: Path, columns: list[TableColumn], target: str, task: Task | None, digest: Any, *, first_row: int
) -> Dataset:
    chosen = _target_columns(path, [column.name for column in columns], target)
    wanted = [column for column in columns if column.name in chosen]
    features = [column for column in columns if column.name not in chosen]
    if not features:
        raise UsageError(f"{path} has only the target {', '.join(chosen)}: no column is left to tell it from.")
    if not len(columns[0].values):
        raise damaged(path, TABLE, "it has no rows", hint="Add rows.")

    def numbers(column: TableColumn) -> npt.NDArray[np.float32]:
        return _numbers(path, column, first_row)

    classes: tuple[str, ...] = ()
    targets: np.ndarray
    if len(wanted) == 1 and (task is Task.CLASSIFICATION or _has_words(wanted[0])):
        targets, classes = _classes(path, wanted[0], task, numbers)
    else:
        targets = np.stack([numbers(column) for column in wanted], axis=1)
    inputs = np.stack([numbers(column) for column in features], axis=1)
    split = ArraySplit.of(inputs, targets, name=str(path), classes=classes)
    digest.update("\0".join([*chosen, *classes]).encode())
    source = f"table of {len(inputs):,} rows, {_counted(len(features), 'column')} and the target {', '.join(chosen)}"
    return _divided("table", printable(source), split, None, digest.hexdigest(), str(path))


def _divided(name: str, source: str, train: Split, validation: Split | None, digest: str, path: str) -> Dataset:
    if validation is None:
        if len(train) < 2:
            raise FormatError(
                f"{path} has one sample: training and validation each need one.", hint="Give more than one."
            )
        whole = train
        train, validation = (Subset(whole=whole, positions=positions) for positions in held_out(len(whole)))
    return Dataset(name=name, source=source, train=train, validation=validation, digest=digest)


def _target_columns(path: Path, names: list[str], target: str) -> list[str]:
    """A name, several with commas between them, or the last column."""
    if not target:
        return [names[-1]]
    if target in names:
        return [target]
    asked = [word.strip() for word in target.split(",")]
    for word in asked:
        if word not in names:
            raise _no_column(path, word, names, "column")
    return asked


def _no_column(path: Path, word: str, names: list[str], what: str) -> UsageError:
    return UsageError(
        f"{path} has no {what} {word!r}{did_you_mean(word, names)}",
        hint=f"--target-column is one of: {printable(', '.join(names[:20]))}{', ...' if names[20:] else ''}.",
    )


def _has_words(column: TableColumn) -> bool:
    if isinstance(column.values, np.ndarray):
        return False
    return not all(_is_number(value) or not str(value).strip() for value in column.values)


def _classes(
    path: Path, column: TableColumn, task: Task | None, numbers: Callable[[TableColumn], np.ndarray]
) -> tuple[np.ndarray, tuple[str, ...]]:
    if task is Task.REGRESSION:
        numbers(column)  # says which cell is not a number
    if not _has_words(column):
        values, labels = np.unique(numbers(column), return_inverse=True)
        words = [f"{value:g}" for value in values.tolist()]
    else:
        texts = [str(value).strip() for value in column.values]
        if "" in texts:
            raise _bad_cell(path, texts.index("") + 2, column.name, "is empty")
        words = sorted(set(texts))
        places = {word: number for number, word in enumerate(words)}
        labels = np.array([places[text] for text in texts])
    return labels.astype(np.int32), tuple(words)


def _numbers(path: Path, column: TableColumn, first_row: int) -> npt.NDArray[np.float32]:
    values = column.values
    if isinstance(values, np.ndarray) and (values.dtype.kind not in "biuf" or values.ndim != 1):
        raise damaged(path, TABLE, f"its column {column.name!r} holds {values.dtype}, not numbers", hint=NUMBERS)
    try:
        # By way of float64, as NumPy reads text: a number is then rounded once.
        array = np.asarray(values, np.float64) if isinstance(values, np.ndarray) else np.array(list(map(float, values)))
    except ValueError:
        row = next(number for number, value in enumerate(values) if not _is_number(value))
        cell = str(values[row]).strip()
        what = f"is {cell[:40]!r}, not a number" if cell else "is empty"
        raise _bad_cell(path, row + first_row, column.name, what) from None
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise _bad_cell(path, row + first_row, column.name, f"is {array[row]}, which no loss can be computed from")
    return array.astype(np.float32)


def _bad_cell(path: Path, row: int, column: str, what: str) -> FormatError:
    return FormatError(f"{path}: row {row:,}, column {printable(column)!r} {printable(what)}.", hint=NUMBERS)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
