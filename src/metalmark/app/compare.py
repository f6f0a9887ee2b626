"""Say whether B is better than A, or whether it is noise: of bench runs, of trainings, or of watched runs; of parity
checks, which quantities changed their verdict; of tunings, their best settings."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from metalmark.app.choices import names_in, parse_accuracy
from metalmark.app.results import Comparisons, Runs
from metalmark.app.runs import OnDamaged, say_left_out
from metalmark.errors import UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.run import RunKind
from metalmark.results.comparison import CellComparison, compare_runs
from metalmark.results.sides import PUBLISHED, SPLIT, runs_of, sides_of
from metalmark.stats.difference import BAND, Difference, Verdict
from metalmark.store.address import StoreChoice, store_address
from metalmark.store.store import Store


def compare(
    *runs: str | Runs,
    by: str | Iterable[str] = (),
    anyway: bool = False,
    noise_band: str | float = BAND,
    target_accuracy: float | None = None,
    store: StoreChoice = None,
    files: bool = True,
    on_damaged: OnDamaged = say_left_out,
) -> Comparisons:
    """Compare the first runs with each of the others, or one with itself, split by a key.

    `mm.compare("main", "last")`, `mm.compare(before, after)`, `mm.compare(runs, by="framework")`. A side is a query as
    `mm.runs` takes it, Runs, or "published". The repeats of a cell, the seeds of a training or the runs of one name
    are the sample: the verdict and its 95% interval come from how they differ. `noise_band` is the smallest
    difference in speed that is called one ("2%" or 0.02). `target_accuracy` compares the time that trainings take to
    reach it. `files` says whether a query may name a file or folder, which a page on the web may not. `on_damaged` is
    told of each run that can't be read.
    """
    if not runs:
        raise UsageError("Compare what?", hint=f"For example: {SPLIT}. See metalmark compare --help.")
    band = parse_percentage(noise_band, option="--noise-band") if isinstance(noise_band, str) else noise_band
    if not 0 < band < 10:  # which nan is not either
        raise UsageError(f"noise_band is a share above 0, not {band!r}.", hint='For example "2%" or 0.02.')
    target = parse_accuracy(target_accuracy)
    sides, keys = sides_of(_named(runs, store, on_damaged, files=files), names_in(by))
    comparisons, refused = compare_runs(sides, by=keys, anyway=anyway, band=band, target_accuracy=target)
    return Comparisons(comparisons, refused, sides)


class Gate(Struct, frozen=True, kw_only=True):
    """What a limit on the time says of comparisons."""

    lines: tuple[str, ...]
    """One for each cell that is slower, that no longer runs or that can't be judged."""
    failed: bool
    unknown: UsageError | None
    """Why the others can't be said to pass, where something could not be judged."""


def _named(
    runs: Sequence[str | Runs], store: StoreChoice, on_damaged: OnDamaged, *, files: bool
) -> dict[str, Sequence[AnyRun]]:
    """The runs of each side, by what it is called: the query, or the number of the argument."""
    named: dict[str, Sequence[AnyRun]] = {}
    with Store(store_address(store), readonly=True) as opened:
        for number, given in enumerate(runs, start=1):
            name = given if isinstance(given, str) else f"runs {number}"
            if name in named:
                raise UsageError(
                    f"{name} is named twice: a run does not differ from itself.",
                    hint=f"Name two runs, or compare inside of one: {SPLIT}",
                )
            if isinstance(given, Runs):
                named[name] = tuple(given)
            else:
                named[name] = () if given == PUBLISHED else runs_of(given, opened, files=files, on_error=on_damaged)
    return named


def find_slower(found: Comparisons, limit: float) -> Gate:
    """Judge comparisons by a limit on the time: which cells are shown to be slower by that much or no longer run, and
    of which nothing is known. A cell that failed on both sides, or on the old one alone, is no news."""
    if any(comparison.kind is RunKind.PARITY for comparison in found):
        raise UsageError(
            "--fail-if-slower is of speeds, and a parity check measures none.",
            hint="Leave it out; metalmark parity itself exits with 1 when a check differs.",
        )
    every = [row for comparison in found for row in comparison.rows]
    lines, failed, unjudged = [], False, 0
    for row in every:
        why = _why_unjudged(row, limit)
        if row.b.failure and not row.a.failure and not row.no_speed_up:
            lines.append(f"broken: {row.name}: {row.b.failure}")
            failed = True
        elif row.a.failure or row.b.failure:
            continue
        elif why:
            lines.append(f"not judged: {row.name}: {why}.{f' Measure: {row.command}' if row.command else ''}")
            unjudged += 1
        elif row.verdict is Verdict.SLOWER and row.more_time >= limit:
            more = f"{row.more_time * 100:.1f}%"
            lines.append(f"slower: {row.name} takes {more} more time; the limit is {limit * 100:g}%.")
            failed = True
    unknown = None
    if unjudged or found.refused:
        judged = (
            f"{len(every) - unjudged} of {len(every)} cells only" if unjudged < len(every) else "none of these cells"
        )
        what = f"can judge {judged}" if unjudged else "can't judge what is not like for like"
        unknown = UsageError(
            f"--fail-if-slower {what}.", hint="Measure the same on both sides, with --repeat 5 or more."
        )
    return Gate(lines=tuple(lines), failed=failed, unknown=unknown)


def _why_unjudged(row: CellComparison, limit: float) -> str:
    """Why a cell is neither shown to keep within the limit nor to exceed it; empty where it is."""
    if row.no_speed_up:
        return f"not like for like: {row.no_speed_up}"
    if row.a.published or row.b.published:
        return "a published figure has no repeats"
    if row.verdict is not Verdict.CANT_TELL:
        return ""
    # What can't be told apart from no difference may still be told apart from the limit.
    low = row.speed.low if isinstance(row.speed, Difference) else None
    if low is not None and 1 / low - 1 < limit:
        return ""
    most = f"; it may take up to {(1 / low - 1) * 100:.1f}% more time" if low is not None and low < 1 else ""
    return f"can't tell: {row.reason}{most}"


def parse_percentage(text: str, *, option: str) -> float:
    """Read `5%` or `5`; a bare fraction could mean either, so it is asked about."""
    number, sign = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1000:
        raise UsageError(f"{option} takes a percentage above 0, not {text!r}.", hint=f"For example {option} 5%")
    if value < 1 and not sign:
        raise UsageError(
            f"{option} {text}: {text}% or {value * 100:g}%?", hint=f"Write the sign: {option} {value * 100:g}%"
        )
    return value / 100
