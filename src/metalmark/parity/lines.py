"""The lines that a side writes while it compares."""

from collections.abc import Iterable
from pathlib import Path

from metalmark.parity.job import CANDIDATE, REFERENCE, Finished, Line
from metalmark.runner.lines import JsonLineWriter, read_json_lines


class LineWriter(JsonLineWriter):
    def __init__(self, folder: Path, *, reference: bool) -> None:
        super().__init__(_path(folder, reference=reference))


def read_lines(folder: Path, *, reference: bool) -> tuple[Line, ...]:
    """Return what a side has written so far."""
    return read_json_lines(_path(folder, reference=reference), Line)


def is_finished(lines: Iterable[Line]) -> bool:
    """Whether a side came to its end."""
    return any(isinstance(line, Finished) for line in lines)


def _path(folder: Path, *, reference: bool) -> Path:
    return folder / (REFERENCE if reference else CANDIDATE)
