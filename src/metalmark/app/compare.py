"""Say whether B is better than A, or whether it is noise: of bench runs, of trainings, or of watched runs."""

from collections.abc import Iterable, Sequence

from metalmark.app.choices import names_in, parse_accuracy
from metalmark.app.results import Comparisons, Runs
from metalmark.app.runs import OnDamaged, StorePath, say_left_out
from metalmark.errors import UsageError
from metalmark.model.codec import AnyRun
from metalmark.results.comparison import PUBLISHED, SPLIT, compare_runs, runs_of, sides_of
from metalmark.stats.difference import BAND, Verdict
from metalmark.store.sqlite import Store, store_path


def compare(
    *runs: str | Runs,
    by: str | Iterable[str] = (),
    anyway: bool = False,
    noise_band: str | float = BAND,
    target_accuracy: float | None = None,
    store: StorePath = None,
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


def _named(
    runs: Sequence[str | Runs], store: StorePath, on_damaged: OnDamaged, *, files: bool
) -> dict[str, Sequence[AnyRun]]:
    """The runs of each side, by what it is called: the query, or the number of the argument."""
    named: dict[str, Sequence[AnyRun]] = {}
    with Store(store_path(store), readonly=True) as opened:
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


def find_slower(found: Comparisons, limit: float) -> tuple[list[str], bool]:
    """Judge comparisons by a limit on the time: a line for each cell that is shown to be slower by that much, that no
    longer runs or that can't be judged, and whether all that could be judged passed."""
    every = [row for comparison in found for row in comparison.rows]
    judged = [row for row in every if not row.no_speed_up and not (row.a.published or row.b.published)]
    broken = [row for row in judged if row.b.failure and not row.a.failure]
    timed = [row for row in judged if row.told]
    if not broken and not timed:
        raise UsageError(
            "--fail-if-slower can judge none of these cells: no pair is like for like with two runs per side.",
            hint="Measure the same on both sides, with --repeat 5.",
        )
    slower = [row for row in timed if row.verdict is Verdict.SLOWER and row.more_time >= limit]
    unclear = [row for row in timed if row.verdict is Verdict.CANT_TELL]
    lines = [
        *(
            f"slower: {row.name} takes {row.more_time * 100:.1f}% more time; the limit is {limit * 100:g}%."
            for row in slower
        ),
        *(f"broken: {row.name}: {row.b.failure}" for row in broken),
        *(f"not judged: {row.name}: can't tell: {row.reason}." for row in unclear),
    ]
    return lines, not slower and not broken


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
