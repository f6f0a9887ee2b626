"""Leaderboard: cells of many machines that answer the same question, the fastest first, each with its interval."""

import hashlib
import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from metalmark.model.measurement import BenchRun
from metalmark.model.run import PARITY_FAILED, Absent, Machine
from metalmark.results.measured import Measured, measured_of
from metalmark.results.pairing import MAY_LACK, shown
from metalmark.stats.difference import typical
from metalmark.stats.summary import median, step_interval

FEW = 3
"""Fewer processes than this do not show how processes differ."""
UNNAMED = {"workload", "workload file", *MAY_LACK}


class BoardEntry(Struct, frozen=True, kw_only=True):
    """The cell of one machine, framework and device."""

    cell: Measured
    machine: str
    samples_s: float
    low: float | None
    """Lower end of the 95% interval, in samples per second; None: too few blocks."""
    high: float | None
    rank: int | None
    """One more than the number of entries whose interval lies above this one's, so that ties share a rank; None without
    an interval, and for what does not train the same network, which stands below the others."""

    @property
    def few(self) -> bool:
        return len(self.cell.processes) < FEW

    @property
    def settings(self) -> str:
        """The settings that differ from the default."""
        how = {name: value for name, value in self.cell.how.items() if name not in ("framework", "device")}
        return ", ".join(f"{shown(name)} {value}" for name, value in how.items() if value not in ("", "off"))

    @property
    def joules(self) -> float | None:
        energy = self.cell.energy
        if isinstance(energy, Absent) or len(energy) != 1:
            return None
        (values,) = energy.values()
        return median(values)


class Question(Struct, frozen=True, kw_only=True):
    """What was asked: the same workload, parameters, mode, dtype and data."""

    workload: str
    words: str
    entries: tuple[BoardEntry, ...]
    """The fastest first."""
    failed: tuple[tuple[str, Measured], ...]
    """Machine, and the cell that did not complete on it."""


class Board(Struct, frozen=True, kw_only=True):
    questions: dict[str, tuple[Question, ...]]
    """By workload."""
    machines: dict[str, tuple[Machine, ...]]
    """By their description: machines of one kind are one, whoever owns them."""


def board_of(bundles: Iterable[Sequence[BenchRun]]) -> Board:
    machines: dict[str, dict[str, Machine]] = {}
    groups: dict[tuple[tuple[str, str], ...], list[tuple[str, Measured]]] = {}
    questions: dict[str, list[Question]] = {}
    # A bundle may claim the sweep of another: its runs of that cell are added, and replace nobody's.
    known = [
        msgspec.structs.replace(record, sweep=f"{number}-{record.sweep}")
        for number, records in enumerate(bundles)
        for record in records
    ]
    for cell in measured_of(known):
        name, machine = cell.around["machine"], cell.runs[0].header.machine
        assert machine is not None  # a bench run has one
        machines.setdefault(name, {}).setdefault(repr(machine), machine)
        asked = tuple(sorted((key, value) for key, value in cell.what.items() if key not in MAY_LACK))
        groups.setdefault(asked, []).append((name, cell))
    for group in groups.values():
        for question in _questions(group):
            questions.setdefault(question.workload, []).append(question)
    return Board(
        questions={
            name: tuple(sorted(found, key=lambda question: (-len(question.entries), question.words)))
            for name, found in sorted(questions.items())
        },
        machines={name: tuple(found.values()) for name, found in sorted(machines.items())},
    )


def slug(text: str) -> str:
    """A file's name that tells what it holds and can't lead to another folder."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return f"{plain or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _questions(group: Sequence[tuple[str, Measured]]) -> list[Question]:
    """The completed cells, separated by the data they really read; each question with the cells that failed."""
    failed = tuple((name, cell) for name, cell in group if cell.failure)
    by_data: dict[tuple[str | None, ...], list[tuple[str, Measured]]] = {}
    for name, cell in group:
        if not cell.failure:
            by_data.setdefault(tuple(cell.value(key) for key in sorted(MAY_LACK)), []).append((name, cell))
    if not by_data:
        return [_question(group[0][1], (), failed)]
    return [_question(found[0][1], _ranked(found), failed) for found in by_data.values()]


def _question(cell: Measured, entries: tuple[BoardEntry, ...], failed: tuple[tuple[str, Measured], ...]) -> Question:
    parts = [value if key in ("mode", "dtype") else f"{shown(key)} {value}" for key, value in cell.what.items()
             if key not in UNNAMED and value]  # fmt: skip
    digest = cell.what.get("workload file", "")
    parts += [f"file {digest[:12]}…"] if digest else []
    return Question(workload=cell.what["workload"], words=", ".join(parts), entries=entries, failed=failed)


def _ranked(found: Sequence[tuple[str, Measured]]) -> tuple[BoardEntry, ...]:
    entries = []
    for name, cell in found:
        samples_s, interval = 1 / typical(cell.processes), step_interval(cell.processes)
        # Seconds per sample become samples per second.
        low, high = (None, None) if interval is None else (1 / interval.high, 1 / interval.low)
        entries.append(BoardEntry(cell=cell, machine=name, samples_s=samples_s, low=low, high=high, rank=None))
    wrong = [PARITY_FAILED in entry.cell.flags for entry in entries]
    lows = [0.0 if other else entry.low or 0.0 for entry, other in zip(entries, wrong, strict=True)]
    ranks = [
        None if one.high is None or other else sum(low > one.high for low in lows) + 1
        for one, other in zip(entries, wrong, strict=True)
    ]
    ranked = [msgspec.structs.replace(entry, rank=rank) for entry, rank in zip(entries, ranks, strict=True)]
    return tuple(sorted(ranked, key=lambda entry: (PARITY_FAILED in entry.cell.flags, -entry.samples_s)))
