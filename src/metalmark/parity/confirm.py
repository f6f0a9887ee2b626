"""Whether a difference is there again with other weights and another batch, or was an edge that rounding decides.

The gradient of a ReLU or of a maximum jumps where its input crosses an edge. An input that lies there to the last digit
falls to one side or the other by rounding, and one element of a gradient is then far off for no fault. Large networks
have millions of inputs, so that some lie on an edge; with other weights and another batch those are others. A fault is
where it was.
"""

from collections.abc import Sequence

import msgspec

from metalmark.model.parity import Checked, Compared, Quantity
from metalmark.model.plan import Plan
from metalmark.parity.examine import EVERYTHING, Examined, examine
from metalmark.parity.job import Options
from metalmark.runner.events import Event, Listener, Progress, tell_all

OF_EDGES = (Quantity.GRADIENT, Quantity.UPDATE)
AGAIN = "once more with another batch"
EDGE = (
    "With other weights and another batch it agrees: here an input lay on an edge, such as the zero of a ReLU, and "
    "rounding decided to which side it fell."
)


def examine_twice(
    plan: Plan,
    reference: Plan,
    *,
    options: Options = EVERYTHING,
    paths: dict[str, str] | None = None,
    listeners: Sequence[Listener] = (),
) -> Examined:
    """Check one plan against a reference; what only gradients show is checked once more, with another seed."""
    found = examine(plan, reference, options=options, paths=paths, listeners=listeners)
    outcome = found.outcome
    if found.interrupted or not isinstance(outcome, Checked) or not is_edge_like(outcome.differences):
        return found
    tell = tell_all(listeners)

    def hear(event: Event) -> None:
        if isinstance(event, Progress):
            event = msgspec.structs.replace(event, phase=f"{AGAIN}: {event.phase}")
        tell(event)

    steps = max(1, *(row.steps for row in outcome.differences))
    less = msgspec.structs.replace(options, steps=steps, layers=False, repeats=0, seeds=0)
    pair = [msgspec.structs.replace(each, seed=each.seed + 1) for each in (plan, reference)]
    again = examine(*pair, options=less, paths=paths, listeners=[hear])
    if not isinstance(again.outcome, Checked):
        return msgspec.structs.replace(found, interrupted=again.interrupted)
    checked = msgspec.structs.replace(
        outcome, compared=confirmed(outcome.compared, again.outcome), seconds=outcome.seconds + again.outcome.seconds
    )
    return msgspec.structs.replace(found, outcome=checked, interrupted=again.interrupted)


def is_edge_like(differences: Sequence[Compared]) -> bool:
    """Whether there are differences, and only such as an edge makes."""
    return bool(differences) and all(
        row.quantity in OF_EDGES or (row.quantity is Quantity.LOSS and row.steps > 0) for row in differences
    )


def confirmed(rows: Sequence[Compared], again: Checked) -> tuple[Compared, ...]:
    """Excuse what differs and did not differ again; what the second check does not have stays as it is."""
    agreed = {(row.quantity, row.name, row.steps) for row in again.compared if row.agrees}
    return tuple(
        msgspec.structs.replace(row, excused=EDGE)
        if not row.agrees and (row.quantity, row.name, row.steps) in agreed
        else row
        for row in rows
    )
