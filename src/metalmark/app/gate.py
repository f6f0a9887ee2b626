"""The gate of `bench --parity` and `train --parity`: each way of training is checked before its speed is measured."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from metalmark.app.parity import check_all, reference_plan
from metalmark.app.runs import say_left_out
from metalmark.errors import counted
from metalmark.model.parity import Checked, ParityMark, ParityRun
from metalmark.model.plan import Budget, Device, DeviceKind, Feed, Plan, Proving, Sweep
from metalmark.model.run import FailureKind, now_utc
from metalmark.parity.job import Options
from metalmark.report.text.parity_page import parity_sentence
from metalmark.runner.probing import absences
from metalmark.store.address import Address
from metalmark.store.store import Store
from metalmark.track.launch import Say

REDUCED = Options(seeds=0, repeats=200, draws=3)
"""A gate leaves out the short trainings, and repeats the same step less often."""
ON_CPU = ("", Device(kind=DeviceKind.CPU))
"""The reference: the plan's own framework on the CPU, in float32, eager."""


class PlanMarks(NamedTuple):
    """What the checks of some plans came to."""

    marks: tuple[ParityMark | None, ...]
    """One for each plan; None for one that is its own reference, or has no device here."""
    complete: bool
    """False: Ctrl-C ended it."""


def pass_gate(
    plans: Sequence[Plan], *, checks: str, paths: dict[str, str], store: Address, progress: bool, say: Say
) -> PlanMarks:
    """Check each distinct plan once and store the checks as runs, which the identifier `checks` finds again. Those that
    are stored already are not made again."""
    asked: dict[bytes, Plan] = {}
    for plan in plans:
        asked.setdefault(_key(plan), what_is_checked(plan))
    distinct = tuple(plan for plan in asked.values() if not is_own_reference(plan))
    absent = absences(distinct)
    here = tuple(plan for plan, why in zip(distinct, absent, strict=True) if why is None)
    found = _stored(store, checks, here)
    complete = True
    if len(found) < len(here):
        say(f"Checking parity first: {counted(len(here) - len(found), 'check')}.")
        sweep = Sweep(id=checks, created_at=now_utc(), plans=here, hz=None, paths=paths)
        try:
            runs, complete = check_all(
                sweep, reference=ON_CPU, options=REDUCED, path=store, diagnosed=False, repro=None, progress=progress,
                done=found,
            )  # fmt: skip
        except KeyboardInterrupt:  # between two checks: nothing was lost
            runs, complete = [], False
        found |= {run.cell: run for run in runs if is_settled(run)}
    marks = {_key(plan): mark_of(found[cell]) for cell, plan in enumerate(here) if cell in found}
    return PlanMarks(tuple(marks.get(_key(plan)) for plan in plans), complete)


def what_is_checked(plan: Plan) -> Plan:
    """Return the plan without what decides only how it is measured: its loader, its proof and its number of steps."""
    budget = Budget(timeout_s=plan.budget.timeout_s, stall_s=plan.budget.stall_s)
    return msgspec.structs.replace(plan, feed=Feed.RESIDENT, loader=None, proof=Proving.FLAG, budget=budget)


def is_own_reference(plan: Plan) -> bool:
    """Return whether there is nothing to compare the plan with: it is on the CPU, in float32, and nothing is set."""
    return plan.settings == reference_plan(plan, *ON_CPU).settings and plan.device.kind is DeviceKind.CPU


def mark_of(run: ParityRun) -> ParityMark:
    return ParityMark(run=run.id, verdict=run.verdict, sentence=parity_sentence(run))


def _key(plan: Plan) -> bytes:
    """Tell distinct plans apart. Repeats of a training differ in their seed, and are one plan."""
    return msgspec.json.encode(msgspec.structs.replace(what_is_checked(plan), seed=0), order="deterministic")


def _stored(path: Address, checks: str, plans: Sequence[Plan]) -> dict[int, ParityRun]:
    """Return the checks that an earlier command made, by their cell. One that was stopped is made again."""
    with Store(path) as store:
        runs = store.load(store.rows_of_sweep(checks), on_error=say_left_out)
    keys = [_key(plan) for plan in plans]
    settled: Collection[ParityRun] = [run for run in runs if isinstance(run, ParityRun) and is_settled(run)]
    return {keys.index(_key(run.plan)): run for run in settled if _key(run.plan) in keys}


def is_settled(run: ParityRun) -> bool:
    """Return whether a check came to its end; one that Ctrl-C stopped did not."""
    if isinstance(run.outcome, Checked):
        return run.outcome.complete
    return run.outcome.kind is not FailureKind.INTERRUPTED
