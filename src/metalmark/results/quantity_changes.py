"""Quantity changes: what two parity checks found of the same quantities."""

from msgspec import Struct

from metalmark.model.parity import Checked, Compared, ParityRun, Quantity


class QuantityChange(Struct, frozen=True, kw_only=True):
    """One quantity of two parity checks. None: that side did not compare it."""

    a: Compared | None
    b: Compared | None

    @property
    def turned(self) -> bool:
        """Whether one of them agrees and the other differs."""
        return self.a is not None and self.b is not None and self.a.agrees is not self.b.agrees


def quantity_changes(a: ParityRun | None, b: ParityRun | None) -> tuple[QuantityChange, ...]:
    """Pair everything that either of two parity checks compared; nothing where one of them is not a check."""
    if a is None or b is None:
        return ()
    ours, theirs = _compared_by_key(a), _compared_by_key(b)
    return tuple(QuantityChange(a=ours.get(key), b=theirs.get(key)) for key in dict.fromkeys((*ours, *theirs)))


def _compared_by_key(run: ParityRun) -> dict[tuple[Quantity, str, int], Compared]:
    rows = run.outcome.compared if isinstance(run.outcome, Checked) else ()
    found: dict[tuple[Quantity, str, int], Compared] = {}
    for row in rows:
        key = row.quantity, row.name, row.steps
        # Dropout is compared twice, by its share and by its scale: the one that is further outside counts.
        if key not in found or row.sigmas / row.limit > found[key].sigmas / found[key].limit:
            found[key] = row
    return found
