"""What `compare` does once its words are parsed: find the sides, compare, print, judge."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from metalmark.errors import UsageError
from metalmark.report.compare_page import comparison_table
from metalmark.report.exports import markdown
from metalmark.report.terminal import print_table
from metalmark.results.comparison import Comparison
from metalmark.results.pairing import Side
from metalmark.results.sides import SPLIT, compare_sides, find_sides
from metalmark.stats.difference import Verdict

__all__ = ["SPLIT", "find_sides", "judge", "parse_share", "run", "show"]


def run(sides: Sequence[Side], *, by: Sequence[str], anyway: bool, band: float) -> list[Comparison]:
    """The first side against each of the others."""
    found, refused = compare_sides(sides, by=by, anyway=anyway, band=band)
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
