"""The sides of a comparison: what a user named, or the values of one key within it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from metalmark.errors import MetalmarkError, UsageError, did_you_mean
from metalmark.model.codec import AnyRun
from metalmark.results.measured import Measured, published_side
from metalmark.results.pairing import Side, shown
from metalmark.store.selection import load, select
from metalmark.store.store import Store

PUBLISHED = "published"
SPLIT = "metalmark compare last --by framework"
SELF_EVIDENT = {"framework", "device", "dtype", "machine"}
"""Keys whose values say themselves what they are: `jax` does, `2` does not."""
TWO = f"Name two runs (`metalmark runs list`), or compare inside of one: {SPLIT}"


def sides_of(runs: Mapping[str, Sequence[AnyRun]], by: Sequence[str]) -> tuple[list[Side], list[str]]:
    """Make a side of each name's runs, or split the only one by a key. `published` stands for the published figures."""
    owners: dict[str, str] = {}
    sides = []
    for name, found in runs.items():
        for run in found:
            if run.id in owners:
                shared = f"{owners[run.id]} and {name} share run {run.id}"
                raise UsageError(f"{shared}: a run does not differ from itself.", hint=TWO)
            owners[run.id] = name
        short = Path(name).name if "/" in name else name
        sides.append(Side(PUBLISHED, published_side()) if name == PUBLISHED else Side.of_runs(short, found))
    keys = [_key(word, sides) for word in by]
    if len(sides) > 1:
        return sides, keys
    if not by:
        raise UsageError(
            "Compare it with what?", hint=f"Name a second run, or say what to compare inside of this one: {SPLIT}"
        )
    return _split(sides[0], keys), keys


def runs_of(
    query: str, store: Store, *, files: bool = True, on_error: Callable[[MetalmarkError], None] | None = None
) -> list[AnyRun]:
    """The runs that a query means; a run is one process of its cell, and whoever names one means the cell. `files`:
    whether a query may name a file, which a page on the web may not. `on_error` is told of each that is damaged."""
    return load([select(query, store, files=files)], store, whole_cells=True, on_error=on_error)


def comparable_keys(cells: Iterable[Measured]) -> list[str]:
    """What these cells can be compared by."""
    return list(dict.fromkeys(key for cell in cells for key in (*cell.how, *sorted(cell.speakable), *cell.around)))


def _key(text: str, sides: Sequence[Side]) -> str:
    cells = [cell for side in sides for cell in side.cells]
    known = list(dict.fromkeys(key for cell in cells for key in (*cell.how, *cell.around, *cell.what)))
    for spelt in (text, text.replace("-", "_"), text.replace("-", " ")):
        if spelt in known:
            return spelt
    raise UsageError(
        f"These runs say nothing of {text!r}{did_you_mean(text, known)}",
        hint=f"They can be compared by: {', '.join(comparable_keys(cells))}.",
    )


def _split(side: Side, by: Sequence[str]) -> list[Side]:
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for cell in side.cells:
        groups.setdefault(tuple(cell.value(key) or "" for key in by), []).append(cell)
    if len(groups) < 2:
        only = ", ".join(value or "nothing" for group in groups for value in group)
        raise UsageError(
            f"{side.name} has one value of {', '.join(by)} only: {only}.",
            hint=f"It can be compared by: {', '.join(comparable_keys(side.cells))}.",
        )
    return [Side(", ".join(map(_value_words, by, values)), cells) for values, cells in groups.items()]


def _value_words(key: str, value: str) -> str:
    return value if value and key in SELF_EVIDENT else f"{shown(key)} {value or 'not set'}"
