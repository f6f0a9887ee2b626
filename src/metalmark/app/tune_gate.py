"""The gate of a tuner: settings count only where they train the same network and losses stay with the baseline's.

Two checks, each a run of its own: the settings against the CPU in float32, at a batch that the CPU can do in the time
there is; and a short training at the full batch against the baseline's settings, on the same device.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from metalmark.app.gate import ON_CPU, is_own_reference, mark_of, what_is_checked
from metalmark.app.parity import reference_plan
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.explain.instructions import device_type
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityMark, ParityRun, Quantity
from metalmark.model.plan import Budget, DeviceKind, Mode, Plan
from metalmark.model.run import Failed, FailureKind, Run, now_utc
from metalmark.parity.confirm import examine_twice
from metalmark.parity.distance import LOW
from metalmark.parity.examine import parity_run
from metalmark.parity.job import Options
from metalmark.runner.events import Ended, Listener, Started, tell_all

CHECK = Options(steps=1, draws=2, layers=False, repeats=20, repeat_s=2.0, seeds=0)
"""Outputs, loss, gradients and the first update. Layers are not looked into: a gate only says whether, not where."""
CURVE = Options(quantities=False, seeds=1)
STEPS_OF_A_CHECK, PARAMETER_S = 25, 6e-7
"""About how many steps the reference takes in all, those in float64 counted twice; and how long comparing all arrays
takes for each trainable parameter."""
LEAST_BATCH = 2
"""Networks that normalise over a batch can't train with one sample."""
CPU_FLOPS_PER_CORE = 2e10
"""What a core does in a second, roughly: only for how large a batch the reference may have."""
KNOWN_NOTE = (
    "Parity was checked before, on {date} (run {run}): the same settings, network, machine and software, so it was not "
    "checked again."
)
LEAST_CURVE_STEPS, MOST_CURVE_STEPS = 5, 50
LEAST_LIMIT_S = 180.0


class TuningKeeper(Protocol):
    """Where a tuning keeps its runs: a store, or a node's way back to one."""

    def add(self, run: Run) -> None:
        """Keep a run that has ended."""

    def put(self, run: Run) -> None:
        """Keep a run in the place of the one with its id."""


class GateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    parity: ParityMark | None = None
    """None: the settings are those of the reference itself."""
    curve: ParityMark | None = None
    """None: not a training, or the settings are the baseline's."""
    notes: tuple[str, ...] = ()
    interrupted: bool = False


class TuneGate:
    """Checks the settings of one tuning, and stores each check."""

    def __init__(
        self, baseline: BenchRun, *, sweep: str, store: TuningKeeper, paths: dict[str, str], reference_s: float
    ) -> None:
        """`reference_s`: about how long the CPU may take for a check, which decides at what batch it is made. It is not
        what is left of a search's time: then no two searches would make the same check."""
        self._baseline, self._sweep, self._store, self._paths = baseline, sweep, store, paths
        self._reference_s = reference_s
        self._checks: dict[bytes, ParityRun] = {}

    def remember(self, checks: Sequence[ParityRun]) -> None:
        """Know checks that were made before, so that they are not made again: those with the machine and the software
        of the baseline."""
        for run in checks:
            if isinstance(run.outcome, Checked) and _is_of_same_software(run, self._baseline):
                rows = run.outcome.compared
                of_quantities = any(row.quantity not in (Quantity.CURVE, Quantity.ACCURACY) for row in rows)
                self._checks[_key(run.plan, run.reference, of_quantities)] = run

    def check(self, plan: Plan, *, seconds: float, listeners: Sequence[Listener]) -> GateVerdict:
        """Check a plan in about so many seconds."""
        notes: list[str] = []
        parity: ParityMark | None = None
        small = self._with_small_batch(what_is_checked(plan))
        if not is_own_reference(small):
            options = msgspec.structs.replace(CHECK, variations=plan.settings.dtype not in LOW)
            run, interrupted = self._examined(small, reference_plan(small, *ON_CPU), options, seconds, listeners)
            parity = mark_of(run)
            if run.sweep != self._sweep:
                notes.append(KNOWN_NOTE.format(run=run.id, date=run.started_at[:10]))
            if small.params != plan.params:
                notes.append(
                    f"Parity was checked at a batch of {small.params['batch_size']}, since the CPU, which it is "
                    f"compared with, would take too long at {plan.params['batch_size']}."
                )
            if interrupted:
                return GateVerdict(parity=parity, notes=tuple(notes), interrupted=True)
        whole = what_is_checked(plan)
        base = msgspec.structs.replace(what_is_checked(self._baseline.plan), params=plan.params)
        if plan.mode is not Mode.TRAINING or whole == base:
            return GateVerdict(parity=parity, notes=tuple(notes))
        options = msgspec.structs.replace(CURVE, curve_steps=self._curve_steps(seconds / 3, plan))
        run, interrupted = self._examined(whole, base, options, seconds, listeners)
        return GateVerdict(parity=parity, curve=mark_of(run), notes=tuple(notes), interrupted=interrupted)

    def _examined(
        self, plan: Plan, reference: Plan, options: Options, seconds: float, listeners: Sequence[Listener]
    ) -> tuple[ParityRun, bool]:
        key = _key(plan, reference, options.quantities)
        if key in self._checks:
            return self._checks[key], False
        tell, started_at = tell_all(listeners), now_utc()
        tell(Started(id=self._sweep, plan=plan))
        # It may take longer than hoped; a check that is nearly done is worth waiting for.
        limit = Budget(timeout_s=max(LEAST_LIMIT_S, 2 * seconds), stall_s=plan.budget.stall_s)
        timed = [msgspec.structs.replace(each, budget=limit) for each in (plan, reference)]
        found = examine_twice(*timed, options=options, paths=self._paths, listeners=listeners)
        outcome = found.outcome
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.TIMED_OUT:
            outcome = msgspec.structs.replace(outcome, hint="Give the search longer: --time.")
            found = msgspec.structs.replace(found, outcome=outcome)
        run = parity_run(plan, reference, found, sweep=self._sweep, cell=len(self._checks), started_at=started_at)
        self._store.add(run)
        if not found.interrupted:
            self._checks[key] = run
        tell(Ended(run=run))
        return run, found.interrupted

    def _with_small_batch(self, plan: Plan) -> Plan:
        """Return the plan with the largest batch that the CPU can be expected to check in its time."""
        batch = plan.params.get("batch_size")
        step_s = self._cpu_step_s()
        if not isinstance(batch, int) or step_s is None:
            return plan
        asked = self._baseline.plan.params.get("batch_size")
        per_sample_s = step_s / (asked if isinstance(asked, int) else batch)
        small = batch
        outcome = self._baseline.outcome
        assert isinstance(outcome, Completed)
        room_s = self._reference_s - PARAMETER_S * outcome.trainable_parameters
        while small > LEAST_BATCH and STEPS_OF_A_CHECK * per_sample_s * small > room_s:
            small = max(LEAST_BATCH, small // 2)
        return msgspec.structs.replace(plan, params={**plan.params, "batch_size": small})

    def _cpu_step_s(self) -> float | None:
        """Return about how long a step of the baseline takes on the CPU: as measured, or by its arithmetic."""
        outcome = self._baseline.outcome
        if not isinstance(outcome, Completed):
            return None
        block = outcome.measurement.blocks[-1]
        if device_type(outcome.placed_on) == DeviceKind.CPU:
            return block.elapsed_s / block.steps
        if outcome.flops_per_sample is None:
            return None
        cores = self._baseline.machine.usable_cores or 1
        return outcome.flops_per_sample * outcome.samples_per_step / (CPU_FLOPS_PER_CORE * cores)

    def _curve_steps(self, seconds: float, plan: Plan) -> int:
        """Return how many steps of a plan the short trainings have: the reference's two, and the candidate's."""
        outcome = self._baseline.outcome
        assert isinstance(outcome, Completed)
        block = outcome.measurement.blocks[-1]
        larger = plan.samples_per_step / self._baseline.plan.samples_per_step
        steps = int(seconds / (3 * larger * block.elapsed_s / block.steps))
        return max(LEAST_CURVE_STEPS, min(MOST_CURVE_STEPS, steps))


def _key(plan: Plan, reference: Plan, of_quantities: bool) -> bytes:
    """Tell checks apart, whatever the time that they were given. `of_quantities`: else of a loss curve alone."""
    pair = [msgspec.structs.replace(each, budget=Budget()) for each in (plan, reference)]
    return msgspec.json.encode([pair, of_quantities], order="deterministic")


def _is_of_same_software(check: ParityRun, run: BenchRun) -> bool:
    """Whether a check was made with the machine, the software and the user's variables that a run was measured with."""
    ours, theirs = ((each.machine, each.software.metalmark, each.software.versions) for each in (check, run))
    return ours == theirs and _users_variables(check) == _users_variables(run)


def _users_variables(run: ParityRun | BenchRun) -> dict[str, str]:
    """Return the variables that steered a run and were not set by its own plan."""
    own = FRAMEWORKS[run.plan.framework].environment(run.plan.settings)
    return {name: value for name, value in run.software.environment.items() if name not in own}
