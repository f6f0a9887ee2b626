"""What a report is of: records, trainings and watched loops that were asked for, and what belongs to them."""

from __future__ import annotations

from msgspec import Struct

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.run import Machine
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.results.ceilings import NO_CEILINGS, Ceilings


class Content(Struct, frozen=True, kw_only=True):
    records: tuple[BenchRun, ...] = ()
    trainings: tuple[TrainingRun, ...] = ()
    watched: tuple[WatchedRun, ...] = ()
    plans: tuple[Plan, ...] = ()
    """Of the sweeps that were asked for as a whole: what has no record yet is said."""
    left_out: tuple[str, ...] = ()
    """Of those sweeps: frameworks and devices that are not on the machine, with the reasons."""
    ceilings: Ceilings = NO_CEILINGS
    published: bool = False
    """Set what others published beside it."""

    @property
    def machines(self) -> tuple[Machine, ...]:
        found = [record.machine for record in self.records]
        found += [session.machine for training in self.trainings for session in training.sessions]
        found += [run.machine for run in self.watched]
        # A machine with a GPU holds its peaks in a dictionary, and so has no hash.
        return tuple({repr(machine): machine for machine in found}.values())

    @property
    def times(self) -> tuple[str, ...]:
        """When each began, the earliest first."""
        found = [record.started_at for record in self.records]
        found += [training.started_at for training in self.trainings] + [run.started_at for run in self.watched]
        return tuple(sorted(found))

    @property
    def title(self) -> str:
        names = [record.plan.workload for record in self.records]
        names += [training.plan.workload for training in self.trainings] + [run.name for run in self.watched]
        every = list(dict.fromkeys(names))
        shown = ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
        chips = list(dict.fromkeys(_named(machine) for machine in self.machines))
        where = f" on {chips[0]}" if len(chips) == 1 else f" on {len(chips)} machines" if chips else ""
        return f"{shown}{where}"


def _named(machine: Machine) -> str:
    return ", ".join(dict.fromkeys((machine.chip, *(gpu.name for gpu in machine.gpus))))
