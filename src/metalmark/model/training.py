"""TrainingRun: a workload trained and validated epoch by epoch, over one or more sessions. Pure data.

Raw figures are kept; rates, best epochs and joules are derived when shown (`training/derived.py`).
"""

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from metalmark.model.parity import ParityMark
from metalmark.model.plan import Plan, PositiveInt
from metalmark.model.run import Absent, Count, DeviceMemory, Failed, Machine, Run, Seconds, Software, Telemetry

Share = Annotated[float, Meta(ge=0, le=1)]
SweepId = Annotated[str, Meta(pattern=r"^([0-9a-z]{8,40})?$")]


ACCURACY, VALIDATION_LOSS, TRAIN_LOSS, TOP5 = "accuracy", "val_loss", "train_loss", "top5"
"""What the figures that every epoch may have are called, beside those in its `metrics`."""


class Metric(Struct, frozen=True, kw_only=True):
    """A figure of each epoch, and which way is better."""

    name: str
    falls: bool
    """Lower is better, as for a loss."""


class Target(Metric, frozen=True, kw_only=True):
    value: float


class Goal(Struct, frozen=True, kw_only=True):
    """How long to train, on how much, and when to stop before."""

    epochs: PositiveInt
    target_accuracy: Share | None = None
    """Stop after the epoch whose validation reaches it."""
    target: Target | None = None
    """The same for any other figure than the accuracy."""
    monitor: Metric | None = None
    """What makes an epoch better than another; None: the accuracy where there is one, else the validation loss."""
    patience: PositiveInt | None = None
    """Stop after so many epochs without a better one."""
    limit_samples: PositiveInt | None = None
    """Train on so many samples at most, always the same ones, and validate on so many."""
    limit_steps: PositiveInt | None = None
    """End each epoch after so many steps."""
    workers: Count | None = None
    """Threads that make batches ahead; 0 makes each when it is asked for, None leaves it to the size of a batch."""

    @property
    def wanted(self) -> Target | None:
        """The target, whichever figure it is of."""
        if self.target_accuracy is None:
            return self.target
        return Target(name=ACCURACY, falls=False, value=self.target_accuracy)

    def aimed_at(self, target: Target | None) -> "Goal":
        """Return the goal with another target. An accuracy has the field that older versions read."""
        accuracy = target.value if target is not None and target.name == ACCURACY else None
        return replace(self, target_accuracy=accuracy, target=None if accuracy is not None else target)


class EpochPart(Struct, frozen=True, kw_only=True):
    """The part of an epoch that an earlier session trained, before it was stopped, on that session's clock."""

    session: Count
    begin_s: Seconds
    end_s: Seconds


class RankEpoch(Struct, frozen=True, kw_only=True):
    """What one of several processes spent an epoch with."""

    number: Count
    input_s: Seconds
    compute_s: Seconds
    """Exchanging gradients, and waiting for slower processes, is part of it."""


class Epoch(Struct, frozen=True, kw_only=True):
    """One pass over the training samples and the validation after it. Numbered from 1."""

    number: PositiveInt
    session: Count
    """Which of the record's sessions it ran in."""
    begin_s: Seconds
    """On the clock of that session, from the start of its process, as telemetry's is."""
    end_s: Seconds
    earlier: tuple[EpochPart, ...] = ()
    """Where an epoch was resumed in its middle: when the sessions before trained their parts of it. The figures below
    are of the whole epoch."""
    samples: Count
    steps: Count
    losses: tuple[float, ...]
    """Of each step: the mean over its batch, before its update."""
    train_loss: float
    """Weighted by samples."""
    validation_loss: float | Absent
    accuracy: Share | Absent
    """Of the validation samples, each counted once; of their positions or pixels where each of these has a class."""
    top5: Share | Absent
    metrics: dict[str, float] = {}
    """Of validation: those of the task (perplexity, mae, ...) and those of the user's own."""
    validation_samples: Count
    learning_rate: float
    """After the last step."""
    input_s: Seconds
    """Waiting for batches."""
    compute_s: Seconds
    """The rest of training, until the device was idle."""
    first_steps_s: Seconds
    """The part of input and compute that went to the first step of each batch size: tracing, compiling, allocating."""
    first_steps_samples: Count
    validation_s: Seconds
    checkpoint_s: Seconds = 0.0
    """Writing the checkpoint of the epoch before, and those within this one; outside the three parts."""
    ranks: tuple[RankEpoch, ...] | UnsetType = UNSET
    """The times of each process; unset, and not written, where there was one. The times above are the first one's."""


class TrainingSession(Struct, frozen=True, kw_only=True):
    """One process's share of a training; a resumed one has several."""

    started_at: str
    first_epoch: PositiveInt
    machine: Machine
    software: Software
    telemetry: Telemetry


class Ending(StrEnum):
    RUNNING = "running"
    """Or killed: whoever writes the end did not come to it."""
    EPOCHS = "all epochs done"
    TARGET = "target reached"
    PATIENCE = "no better epoch within the patience"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @classmethod
    def _missing_(cls, value: object) -> "Ending | None":
        # Runs of 0.1.0 had targets of the accuracy alone.
        return cls.TARGET if value == "target accuracy reached" else None


NOT_BEGUN = "not begun"


class TrainingSetup(Struct, frozen=True, kw_only=True):
    """What the worker found: where it runs, on what."""

    placed_on: str
    device_name: str
    parameters: Count
    trainable_parameters: Count
    data: str
    data_digest: str
    train_samples: Count | None
    """None: a stream that does not say how many it has."""
    validation_samples: Count | None
    classes: Count
    workers: Count
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    task: str = ""
    """What it was taken to learn, where that could be told."""


class TrainingRun(Run, frozen=True, kw_only=True, tag="training"):
    sweep: SweepId = ""
    """The trainings that one command made; empty for one by itself."""
    cell: Count = 0
    repeat: Count = 0
    plan: Plan
    goal: Goal
    ending: Ending = Ending.RUNNING
    failure: Failed | None = None
    setting: TrainingSetup | None = None
    """None: it failed before that was known."""
    epochs: tuple[Epoch, ...] = ()
    sessions: tuple[TrainingSession, ...] = ()
    memory: DeviceMemory | None = None
    """Of the device at the end of training; None where it did not come to that."""
    parity: ParityMark | None = None
    """What a parity check of the same plan found; None: none was asked for."""

    def _heading(self) -> tuple[str, str, object]:
        last = self.sessions[-1] if self.sessions else None
        ending = self.failure.kind.value if self.failure else self.ending.value if last else NOT_BEGUN
        return self.plan.label, ending, last
