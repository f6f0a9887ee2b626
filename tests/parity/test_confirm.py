"""What only gradients show counts if it is there again with other weights and another batch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from metalmark.model.parity import Checked, Compared, ParityVerdict, Quantity
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.parity.confirm import AGAIN, EDGE, examine_twice, is_edge_like
from metalmark.parity.job import Options
from metalmark.report.text.parity_page import parity_sentence, parity_tables
from metalmark.runner.events import Event, Progress
from metalmark.workloads.catalog import load
from tests.samples import parity_run

BRIEF = Options(steps=1, draws=1, layers=False, repeats=0, seeds=0)


def pair(fault: str, seed: int = 0) -> tuple[Plan, Plan]:
    params = {param.name: param.default for param in load("fake").params} | {"fault": fault, "batch_size": 16}
    plan = Plan(
        workload="fake", params=params, mode=Mode.TRAINING, framework="fake",
        device=Device(kind=DeviceKind.GPU), seed=seed,
    )  # fmt: skip
    return plan, msgspec.structs.replace(plan, device=Device(kind=DeviceKind.CPU))


def checked(fault: str, seed: int = 0) -> tuple[Checked, list[str]]:
    phases: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Progress):
            phases.append(event.phase)

    found = examine_twice(*pair(fault, seed), options=BRIEF, listeners=[hear])
    assert isinstance(found.outcome, Checked), found.outcome
    return found.outcome, phases


def test_an_edge_is_excused_and_said() -> None:
    outcome, phases = checked("parity-edge")
    assert outcome.verdict is ParityVerdict.AGREES
    excused = [row for row in outcome.compared if row.excused]
    assert excused
    assert {row.excused for row in excused} == {EDGE}
    assert {row.quantity for row in excused} <= {Quantity.GRADIENT, Quantity.UPDATE}
    assert all(row.sigmas > row.limit for row in excused), "the distance stays as it was measured"
    assert any(phase.startswith(AGAIN) for phase in phases)
    run = parity_run(outcome)
    assert f"{len(excused)} of them excused" in parity_sentence(run)
    assert any(EDGE in note for note in parity_tables([run])[0].notes)


def test_a_fault_of_gradients_is_there_again() -> None:
    outcome, phases = checked("parity-gradient-scale")
    assert outcome.verdict is ParityVerdict.DIFFERS
    assert (outcome.differences[0].quantity, outcome.differences[0].name) == (Quantity.GRADIENT, "head.weight")
    assert any(phase.startswith(AGAIN) for phase in phases)


@pytest.mark.parametrize("fault", ["none", "parity-shifted-labels"])
def test_what_agrees_or_differs_elsewhere_is_not_checked_again(fault: str) -> None:
    _, phases = checked(fault)
    assert not any(phase.startswith(AGAIN) for phase in phases)


def test_only_gradients_and_what_follows_from_them_are_like_an_edge() -> None:
    def rows(*quantities: tuple[Quantity, int]) -> Sequence[Compared]:
        return [
            Compared(quantity=quantity, name="x", steps=steps, distance=1.0, sigma=0.01, limit=12.0)
            for quantity, steps in quantities
        ]

    assert is_edge_like(rows((Quantity.GRADIENT, 0), (Quantity.UPDATE, 1), (Quantity.LOSS, 1)))
    assert not is_edge_like(rows((Quantity.GRADIENT, 0), (Quantity.LOSS, 0)))
    assert not is_edge_like(rows((Quantity.GRADIENT, 0), (Quantity.REPEAT, 0)))
    assert not is_edge_like(())
