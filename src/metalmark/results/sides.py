"""Which runs a comparison is of: words of a command line or of a page, to sides; and why two have nothing to say."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun
from metalmark.results.comparison import Comparison, compare
from metalmark.results.measured import Measured, measured_of
from metalmark.results.pairing import Side, shown
from metalmark.results.theirs import published_side
from metalmark.stats.difference import BAND
from metalmark.store.bundle import read_file
from metalmark.store.sqlite import Store

PUBLISHED = "published"
SPLIT = "metalmark compare last --by framework"
PLAIN = {"framework", "device", "dtype", "machine"}
TWO = f"Name two runs (`metalmark runs list`), or compare inside of one: {SPLIT}"

Reader = Callable[[str, Store], list[BenchRun]]


def stored(word: str, store: Store) -> list[BenchRun]:
    """A word's records, from the store alone: what a page may ask for."""
    found = store.find([word])
    if word == "last" or any(record.sweep == word.lower() for record in found):
        return found
    # A record is one process of its cell; whoever names one means the cell.
    cells = dict.fromkeys((record.sweep, record.cell) for record in found)
    return [record for sweep, cell in cells for record in store.of_sweep(sweep, cell)]


def stored_or_file(word: str, store: Store) -> list[BenchRun]:
    """... or from a file that the user names."""
    if Path(word).is_file() or "/" in word or word.endswith(".json"):
        return read_file(word).records
    return stored(word, store)


def find_sides(
    words: Sequence[str], by: Sequence[str], path: Path, *, read: Reader = stored_or_file
) -> tuple[list[Side], list[str]]:
    """One a word; of a single word, one a value of what it is compared by. And `by`, as the cells spell it."""
    twice = next((word for number, word in enumerate(words) if word in words[:number]), None)
    if twice:
        raise UsageError(f"{twice} is named twice: a run does not differ from itself.", hint=TWO)
    with Store(path, readonly=True) as store:
        records = {word: [] if word == PUBLISHED else read(word, store) for word in words}
    _refuse_shared(records)
    sides = [
        Side(_shown(word), published_side() if word == PUBLISHED else measured_of(records[word])) for word in words
    ]
    keys = [_key(word, sides) for word in by]
    if len(sides) > 1:
        return sides, keys
    if not by:
        raise UsageError(
            "Compare it with what?",
            hint=f"Name a second run, or say what to compare inside of this one: {SPLIT}",
        )
    return _split(sides[0], keys), keys


def compare_sides(
    sides: Sequence[Side], *, by: Sequence[str] = (), anyway: bool = False, band: float = BAND
) -> tuple[list[Comparison], list[UsageError]]:
    """The first side against each of the others, and why against some it can't be; raises where against none."""
    found, refused = [], []
    for other in sides[1:]:
        comparison, pairing = compare(sides[0], other, by=by, anyway=anyway, band=band)
        if comparison.rows:
            found.append(comparison)
        else:
            refused.append(_why(sides[0], other, pairing.unlike, [one.reason for one in pairing.unpaired]))
    if not found:
        raise refused[0]
    return found, refused


def _refuse_shared(records: dict[str, list[BenchRun]]) -> None:
    seen: dict[str, str] = {}
    for word, found in records.items():
        if word != PUBLISHED and not found:
            raise UsageError(f"{word} holds no records.", hint="Make one with `metalmark runs export -o FILE`.")
        for record in found:
            if record.id in seen:
                raise UsageError(
                    f"{seen[record.id]} and {word} share record {record.id}: a run does not differ from itself.",
                    hint=TWO,
                )
            seen[record.id] = word


def _key(word: str, sides: Sequence[Side]) -> str:
    cells = [cell for side in sides for cell in side.cells]
    known = list(dict.fromkeys(key for cell in cells for key in (*cell.how, *cell.around, *cell.what)))
    for spelt in (word, word.replace("-", "_"), word.replace("-", " ")):
        if spelt in known:
            return spelt
    near = difflib.get_close_matches(word, known, n=1)
    raise UsageError(
        f"These runs say nothing of {word!r}{f'; did you mean {near[0]}?' if near else '.'}",
        hint=f"They can be compared by: {_comparable(cells)}.",
    )


def _comparable(cells: Sequence[Measured]) -> str:
    return ", ".join(dict.fromkeys(key for cell in cells for key in (*cell.how, "dtype", *cell.around)))


def _split(side: Side, by: Sequence[str]) -> list[Side]:
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for cell in side.cells:
        groups.setdefault(tuple(cell.value(key) or "" for key in by), []).append(cell)
    if len(groups) < 2:
        only = ", ".join(value or "nothing" for value in next(iter(groups)))
        raise UsageError(
            f"{side.name} has one value of {', '.join(by)} only: {only}.",
            hint=f"It can be compared by: {_comparable(side.cells)}.",
        )
    return [Side(", ".join(map(_value, by, values)), cells) for values, cells in groups.items()]


def _value(key: str, value: str) -> str:
    """`jax` says itself what it is; `2` does not."""
    return value if value and key in PLAIN else f"{shown(key)} {value or 'not set'}"


def _why(a: Side, b: Side, unlike: dict[str, str], reasons: Sequence[str]) -> UsageError:
    if unlike:
        by = "If dtype is what you compare, say so: --by dtype. " if set(unlike) == {"dtype"} else ""
        return UsageError(
            f"{b.name} against {a.name} is no speed-up: {'; '.join(unlike.values())}.",
            hint=f"Measure the same thing twice. {by}`--anyway` shows it, marked.",
        )
    return UsageError(
        f"No cell of {b.name} has its like in {a.name}: {reasons[0]}.",
        hint="`metalmark runs show RUN` says what each holds.",
    )


def _shown(word: str) -> str:
    return Path(word).name if "/" in word else word
