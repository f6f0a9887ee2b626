"""Sync a store with another one, as a rule a team's."""

from collections.abc import Callable

from msgspec import Struct

from metalmark.app.runs import OnDamaged, existing_store, say_left_out
from metalmark.errors import UsageError, counted
from metalmark.store.address import Address, StoreChoice, store_address
from metalmark.store.store import Store
from metalmark.store.sync import Copied, copy

Tell = Callable[[str, int, int], None]


class Synced(Struct, frozen=True, kw_only=True):
    """What a sync did: what was copied to the other store, and what came from it."""

    local: Address
    shared: Address
    sent: Copied
    received: Copied
    complete: bool
    """False: Ctrl-C ended it; what was copied is kept."""

    @property
    def sentences(self) -> list[str]:
        """What was done, and what was left, in sentences."""
        done = [f"{_counts(self.sent)} sent to {self.shared}"] if _any(self.sent) else []
        done += [f"{_counts(self.received)} taken from {self.shared}"] if _any(self.received) else []
        nothing = f"Nothing was to be copied between {self.local} and {self.shared}"
        return [f"{'; '.join(done) or nothing}.", *self.conflicts]

    @property
    def conflicts(self) -> list[str]:
        return list(dict.fromkeys([*self.sent.conflicts, *self.received.conflicts]))


def sync_runs(
    shared: StoreChoice,
    *,
    push: bool = True,
    pull: bool = True,
    store: StoreChoice = None,
    tell: Tell | None = None,
    on_damaged: OnDamaged = say_left_out,
    raise_interrupt: bool = True,
) -> Synced:
    """Copy what either of two stores lacks to it: runs, sweeps and names. `push=False` or `pull=False` leaves one
    direction out. Doing it again changes nothing. Nothing is overwritten, and deletions do not travel: what was deleted
    in one store comes back from the other.

    `tell` is called with where runs go, how many are done, and of how many.
    """
    # What is only read is not made: a name that was mistyped must not look like an empty store.
    local = store_address(store) if pull else existing_store(store)
    other = store_address(shared) if push else existing_store(shared)
    if local == other:
        raise UsageError(f"Both stores are {local}.", hint="Name another one: metalmark runs sync OTHER")
    if not (push or pull):
        raise UsageError("Nothing is left to do without both directions.", hint="Leave push or pull on.")
    sent, received, complete = Copied(), Copied(), True
    say = tell or (lambda *_: None)
    with Store(local, readonly=not pull) as ours, Store(other, readonly=not push) as theirs:
        try:
            if push:
                copy(ours, theirs, sent, tell=say, on_damaged=on_damaged)
            if pull:
                copy(theirs, ours, received, tell=say, on_damaged=on_damaged)
        except KeyboardInterrupt:
            if raise_interrupt:
                raise
            complete = False
    return Synced(local=local, shared=other, sent=sent, received=received, complete=complete)


def _any(copied: Copied) -> bool:
    return bool(copied.runs or copied.advanced or copied.sweeps or copied.names)


def _counts(copied: Copied) -> str:
    """Return the numbers that are not 0; of runs in any case."""
    words = [counted(copied.runs, "run")]
    words += [f"{copied.advanced:,} that had gone on"] if copied.advanced else []
    words += [counted(copied.sweeps, "sweep")] if copied.sweeps else []
    words += [counted(copied.names, "name")] if copied.names else []
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
