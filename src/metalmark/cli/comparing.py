"""What `compare` does once its words are parsed: find the sides, compare, print, judge."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from metalmark.cli.options import PUBLISHED
from metalmark.codec import read_export
from metalmark.compare.comparison import Comparison, compare
from metalmark.compare.measured import Measured, measured_of
from metalmark.compare.pairing import Side, shown
from metalmark.compare.theirs import published_side
from metalmark.difference import Verdict
from metalmark.errors import UsageError
from metalmark.record import Record
from metalmark.report.compare_page import comparison_table
from metalmark.report.exports import markdown
from metalmark.report.terminal import print_table
from metalmark.store.sqlite import Store

SPLIT = "metalmark compare last --by framework"
PLAIN = {"framework", "device", "dtype", "machine"}
TWO = f"Name two runs (`metalmark runs list`), or compare inside of one: {SPLIT}"


def find_sides(words: Sequence[str], by: Sequence[str], path: Path) -> tuple[list[Side], list[str]]:
    """One a word; of a single word, one a value of what it is compared by. And `by`, as the cells spell it."""
    twice = next((word for number, word in enumerate(words) if word in words[:number]), None)
    if twice:
        raise UsageError(f"{twice} is named twice: a run does not differ from itself.", hint=TWO)
    with Store(path, readonly=True) as store:
        records = {word: [] if word == PUBLISHED else _records(word, store) for word in words}
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


def run(sides: Sequence[Side], *, by: Sequence[str], anyway: bool, band: float) -> list[Comparison]:
    """The first side against each of the others."""
    found, refused = [], []
    for other in sides[1:]:
        comparison, pairing = compare(sides[0], other, by=by, anyway=anyway, band=band)
        if comparison.rows:
            found.append(comparison)
        else:
            refused.append(_why(sides[0], other, pairing.unlike, [one.reason for one in pairing.unpaired]))
    if not found:
        raise refused[0]
    for error in refused:
        click.echo(f"metalmark: {error.message}\n  {error.hint}", err=True)
    return found


def show(found: Sequence[Comparison], form: str | None) -> None:
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    for number, comparison in enumerate(found):
        if number:
            click.echo()
        if form == "markdown":
            click.echo(markdown(comparison_table(comparison)), nl=False)
        else:
            print_table(comparison_table(comparison))


def judge(found: Sequence[Comparison], share: float) -> int:
    """For --fail-if-slower: 1 when a cell is shown to be slower by so much, or no longer runs."""
    every = [row for comparison in found for row in comparison.rows]
    judged = [row for row in every if not row.no_speed_up and not (row.a.published or row.b.published)]
    broken = [row for row in judged if row.b.failure and not row.a.failure]
    timed = [row for row in judged if row.told]
    if not broken and not timed:
        raise UsageError(
            "--fail-if-slower can judge none of these cells: no pair is like for like with two processes a side.",
            hint="Measure the same on both sides, with --repeat 5.",
        )
    slower = [row for row in timed if row.verdict is Verdict.SLOWER and row.more_time >= share]
    for row in slower:
        click.echo(
            f"slower: {row.name} takes {row.more_time * 100:.1f}% more time; the limit is {share * 100:g}%.", err=True
        )
    for row in broken:
        click.echo(f"broken: {row.name}: {row.b.failure}", err=True)
    for row in timed:
        if row.verdict is Verdict.CANT_TELL:
            click.echo(f"not judged: {row.name}: can't tell: {row.reason}.", err=True)
    return 1 if slower or broken else 0


def parse_share(text: str, *, what: str) -> float:
    """`5%` or `5`; a bare fraction could mean either, so it is asked about."""
    number, sign = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1000:
        raise UsageError(f"{what} takes a percentage above 0, not {text!r}.", hint=f"For example {what} 5%")
    if value < 1 and not sign:
        raise UsageError(
            f"{what} {text}: {text}% or {value * 100:g}%?", hint=f"Write the sign: {what} {value * 100:g}%"
        )
    return value / 100


def _records(word: str, store: Store) -> list[Record]:
    if Path(word).is_file() or "/" in word or word.endswith(".json"):
        return read_export(word)
    found = store.find([word])
    if word == "last" or any(record.sweep == word.lower() for record in found):
        return found
    # A record is one process of its cell; whoever names one means the cell.
    cells = dict.fromkeys((record.sweep, record.cell) for record in found)
    return [record for sweep, cell in cells for record in store.of_sweep(sweep, cell)]


def _refuse_shared(records: dict[str, list[Record]]) -> None:
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
