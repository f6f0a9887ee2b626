"""What a report is of: runs of every kind, and what belongs to them."""

from msgspec import Struct

from metalmark.model.codec import AnyRun
from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun
from metalmark.model.plan import Plan
from metalmark.model.run import Machine
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.results.ceilings import NO_CEILINGS, Ceilings


class Content(Struct, frozen=True, kw_only=True):
    runs: tuple[AnyRun, ...]
    plans: tuple[Plan, ...] = ()
    """Everything that the sweeps asked for as a whole planned: what has no run yet is listed."""
    left_out: tuple[str, ...] = ()
    """Frameworks and devices that those sweeps did not try, with the reasons."""
    ceilings: Ceilings = NO_CEILINGS
    published: bool = False
    """Whether to show published figures beside the measured ones."""

    @property
    def bench_runs(self) -> tuple[BenchRun, ...]:
        """Bench runs in the order of their sweeps, cells and repeats."""
        found = [run for run in self.runs if isinstance(run, BenchRun)]
        return tuple(sorted(found, key=lambda run: (run.sweep, run.cell, run.repeat)))

    @property
    def asked_bench_runs(self) -> tuple[BenchRun, ...]:
        """Bench runs without the trials of tunings, whose ladder says what they came to."""
        tuned = {run.sweep for run in self.tunings}
        return tuple(run for run in self.bench_runs if run.sweep not in tuned)

    @property
    def asked_parities(self) -> tuple[ParityRun, ...]:
        """Parity checks without those that a tuning made, whose rungs carry the verdict."""
        tuned = {run.sweep for run in self.tunings}
        return tuple(run for run in self.parities if run.sweep not in tuned)

    @property
    def trainings(self) -> tuple[TrainingRun, ...]:
        return tuple(run for run in self.runs if isinstance(run, TrainingRun))

    @property
    def watched(self) -> tuple[WatchedRun, ...]:
        return tuple(run for run in self.runs if isinstance(run, WatchedRun))

    @property
    def parities(self) -> tuple[ParityRun, ...]:
        """Parity checks in the order of their sweeps and cells."""
        found = [run for run in self.runs if isinstance(run, ParityRun)]
        return tuple(sorted(found, key=lambda run: (run.sweep, run.cell)))

    @property
    def explanations(self) -> tuple[ExplanationRun, ...]:
        """Explanations in the order of their sweeps and cells."""
        found = [run for run in self.runs if isinstance(run, ExplanationRun)]
        return tuple(sorted(found, key=lambda run: (run.sweep, run.cell)))

    @property
    def tunings(self) -> tuple[TuningRun, ...]:
        """Tunings in the order of their sweeps and cells."""
        found = [run for run in self.runs if isinstance(run, TuningRun)]
        return tuple(sorted(found, key=lambda run: (run.sweep, run.cell)))

    @property
    def measured_plans(self) -> tuple[Plan, ...]:
        """The plans that are to be measured; those of parity checks, explanations and tunings are not."""
        others = self.parities or self.explanations or self.tunings
        return self.plans if self.asked_bench_runs or not others else ()

    @property
    def machines(self) -> tuple[Machine, ...]:
        # A training may have moved from one machine to another between its sessions.
        holders = [holder for run in self.runs for holder in (run.sessions if isinstance(run, TrainingRun) else [run])]
        # A machine with a GPU holds its peaks in a dictionary, and so has no hash.
        return tuple({repr(holder.machine): holder.machine for holder in holders}.values())

    @property
    def times(self) -> tuple[str, ...]:
        """When each run began, the earliest first."""
        return tuple(sorted(run.started_at for run in self.runs))

    @property
    def title(self) -> str:
        planned: tuple[BenchRun | TrainingRun | ParityRun | TuningRun, ...] = (
            *self.bench_runs, *self.trainings, *self.parities, *self.tunings,
        )  # fmt: skip
        names = [run.plan.workload for run in planned]
        names += [run.plan.workload if run.plan is not None else run.subject for run in self.explanations]
        names = list(dict.fromkeys([*names, *(run.name for run in self.watched)]))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        parts = [dict.fromkeys((machine.chip, *(gpu.name for gpu in machine.gpus))) for machine in self.machines]
        chips = list(dict.fromkeys(map(", ".join, parts)))
        where = f" on {chips[0]}" if len(chips) == 1 else f" on {len(chips)} machines" if chips else ""
        return f"{shown}{where}"
