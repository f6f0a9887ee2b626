"""Sync: what one store has and another lacks is copied. Nothing is overwritten, and nothing is deleted."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from metalmark.errors import FormatError, MetalmarkError, ServerError, StoreError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.store.store import Store
from metalmark.store.succession import continues

BATCH = 50
"""Runs per transaction: what is sent is kept when the rest is not."""

Tell = Callable[[str, int, int], None]
"""Told what is copied to where, how many runs of it are done, and of how many."""
OnDamaged = Callable[[MetalmarkError], None]


class Copied(Struct, kw_only=True):
    """What one direction came to, counted while it goes on."""

    runs: int = 0
    """Runs that the other store did not have."""
    advanced: int = 0
    """Runs that had gone on since the other store got them."""
    sweeps: int = 0
    names: int = 0
    conflicts: list[str] = []
    """A sentence for each thing of which both stores have their own; nothing was changed there."""


def copy(source: Store, target: Store, copied: Copied, *, tell: Tell, on_damaged: OnDamaged) -> None:
    """Copy what the target lacks. Whatever ends it early, `copied` says what had been committed by then."""
    here, there = _digests(source), _digests(target)
    missing = [identifier for identifier in here if identifier not in there]
    differing = [identifier for identifier, digest in here.items() if digest != there.get(identifier, digest)]
    total = len(missing) + len(differing)
    _copy_sweeps(source, target, copied, on_damaged)
    done = 0
    for ids in _batches(missing):
        rows = source.rows_of(ids)
        _add(target, source.load(rows, on_error=on_damaged), {row.id: row.name for row in rows}, copied)
        done += len(ids)
        tell(str(target.address), done, total)
    for ids in _batches(differing):
        theirs = {run.id: run for run in target.load(target.rows_of(ids), on_error=lambda _: None)}
        for run in source.load(source.rows_of(ids), on_error=on_damaged):
            _settle(target, run, theirs.get(run.id), copied)
        done += len(ids)
        tell(str(target.address), done, total)
    _copy_names(source, target, copied)


def _add(target: Store, runs: Sequence[AnyRun], names: dict[str, str], copied: Copied) -> None:
    try:
        copied.runs += target.add_all(runs, names=names)
    except ServerError:
        raise
    except StoreError:  # somebody has added another run under one of these ids meanwhile
        for run in runs:
            try:
                copied.runs += target.add_all([run], names=names)
            except ServerError:
                raise
            except StoreError:
                copied.conflicts.append(_conflict(run.id))


def _settle(target: Store, run: AnyRun, theirs: AnyRun | None, copied: Copied) -> None:
    """Both stores have the id, and not the same bytes under it."""
    if theirs is None:  # theirs is damaged, or was deleted meanwhile
        copied.runs += target.add_all([run])
    elif run == theirs or continues(theirs, run):
        return
    elif continues(run, theirs) and target.advance(run):
        copied.advanced += 1
    else:
        copied.conflicts.append(_conflict(run.id))


def _conflict(run: str) -> str:
    return f"Run {run} has other contents in one store than in the other; both were left as they are."


def _copy_sweeps(source: Store, target: Store, copied: Copied, on_damaged: OnDamaged) -> None:
    known = set(_sweeps(target))
    for identifier in _sweeps(source):
        if identifier in known:
            continue
        try:
            copied.sweeps += target.add_sweep(source.sweep(identifier))
        except FormatError as error:  # it is damaged; its runs are whole
            on_damaged(error)


def _copy_names(source: Store, target: Store, copied: Copied) -> None:
    """A name that only one side has is given on the other; one that stands for more on one side is added to. Where each
    side has something that the other has not, nobody can tell a moved name from a tag."""
    theirs, known = _names(target), {*_digests(target), *_sweeps(target), *_sweeps_of_runs(target)}
    for name, ids in _names(source).items():
        new, held = (ids & known) - theirs.get(name, set()), theirs.get(name, set())
        if not new:
            continue
        if held - ids:
            # The same sentence whichever way the copy goes.
            one, other = sorted((_few(ids), _few(held)))
            what = f"The name {name} stands for {one} in one store and for {other} in the other"
            copied.conflicts.append(f"{what}; it was left as it is.")
            continue
        try:
            target.name(name, sorted(new), add=True)
            copied.names += 1
        except UsageError as error:
            copied.conflicts.append(f"The name {name} was left where it is: {error.message}")


def _few(ids: Iterable[str]) -> str:
    shown = sorted(ids)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _digests(store: Store) -> dict[str, bytes | None]:
    """Return the digest of each run's body by its id, the oldest run first. The database computes it, so that a server
    sends no body for it."""
    found = store.database.read("SELECT id, sha256(body) FROM runs ORDER BY started_at, id")
    return {identifier: digest if digest is None else bytes(digest) for identifier, digest in found}


def _sweeps(store: Store) -> list[str]:
    return [identifier for (identifier,) in store.database.read("SELECT id FROM sweeps ORDER BY created_at, id")]


def _sweeps_of_runs(store: Store) -> list[str]:
    return [sweep for (sweep,) in store.database.read("SELECT DISTINCT sweep FROM runs")]


def _names(store: Store) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for identifier, given in store.names().items():
        for name in given:
            names.setdefault(name, set()).add(identifier)
    return names


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
