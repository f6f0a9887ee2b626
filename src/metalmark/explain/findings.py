"""Findings: the lines of a worker, asked by what they are about."""

from collections.abc import Sequence
from functools import cached_property

from metalmark.explain.job import Ceiling, Counted, Done, Line, Opened, Profiled, SyncSeen, Tried
from metalmark.explain.scaling import BatchCost, batch_cost
from metalmark.model.explanation import Experiment, ExperimentKind, OperationWork, Profile
from metalmark.model.plan import Feed, Mode, Plan
from metalmark.model.run import Absent

NOT_DONE = "it was not tried"


class Findings:
    """What the experiments on one plan came to."""

    def __init__(self, lines: Sequence[Line], plan: Plan) -> None:
        self.plan = plan
        self.experiments = tuple(line.experiment for line in lines if isinstance(line, Tried))
        self.opened = next((line for line in lines if isinstance(line, Opened)), None)
        self.syncs = tuple(line for line in lines if isinstance(line, SyncSeen))
        self.complete = any(isinstance(line, Done) for line in lines)
        counted = [line.work for line in lines if isinstance(line, Counted)]
        profiled = [line.profile for line in lines if isinstance(line, Profiled)]
        ceilings = [line for line in lines if isinstance(line, Ceiling)]
        self.counted: tuple[OperationWork, ...] | Absent = (
            counted[-1] if counted else Absent("its work was not counted")
        )
        self.profile: Profile | Absent = profiled[-1] if profiled else Absent("it was not profiled")
        self.ceiling = ceilings[-1] if ceilings else None

    @property
    def training(self) -> bool:
        return self.plan.mode is Mode.TRAINING

    @property
    def pipeline(self) -> bool:
        return self.plan.feed is Feed.PIPELINE

    @property
    def asynchronous(self) -> bool:
        return self.opened is not None and self.opened.asynchronous

    def every(self, kind: ExperimentKind) -> tuple[Experiment, ...]:
        """All experiments of a kind that came to a time."""
        return tuple(each for each in self.experiments if each.kind is kind and each.seconds is not None)

    def of(self, kind: ExperimentKind) -> Experiment | None:
        return next(iter(self.every(kind)), None)

    def why_absent(self, kind: ExperimentKind) -> str:
        """Why there is none of this kind, as the part of a sentence."""
        told = [each.absent for each in self.experiments if each.kind is kind and each.absent]
        return told[0].rstrip(".") if told else NOT_DONE

    @cached_property
    def resident(self) -> Experiment | None:
        """The resident step; of a plan with resident batches the step as asked is the same."""
        found = self.of(ExperimentKind.RESIDENT)
        if found is None and not self.pipeline:
            found = self.of(ExperimentKind.AS_ASKED)
        return found

    @cached_property
    def as_asked(self) -> Experiment | None:
        return (self.of(ExperimentKind.AS_ASKED) if self.pipeline else None) or self.resident

    def beside(self, experiment: Experiment) -> tuple[float, float]:
        """Return an experiment's seconds and error, corrected by how far the resident step beside it was from the one
        that all are compared with: a machine that grew warmer is slower in both."""
        assert experiment.seconds is not None
        resident_s = self.resident.seconds if self.resident is not None else None
        scale = resident_s / experiment.baseline_s if resident_s and experiment.baseline_s else 1.0
        return experiment.seconds * scale, experiment.error_s * scale

    @cached_property
    def batch_size(self) -> float | None:
        """The batch size as the experiments with another one count it."""
        for each in self.every(ExperimentKind.BATCH):
            for name in each.change.params:
                value = self.plan.params.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    return float(value)
        return float(self.opened.samples_per_step) if self.opened is not None else None

    @cached_property
    def cost(self) -> BatchCost | None:
        """Fixed and marginal cost of the resident step."""
        if self.resident is None or not self.batch_size:
            return None
        others = self.every(ExperimentKind.BATCH)
        return batch_cost(self.batch_size, self.resident, others, asynchronous=self.asynchronous)
