"""TrainingRun: a workload trained to its accuracy, over one or more sessions. Pure data.

Raw figures are kept; rates, best epochs and joules are derived when shown (`training/derived.py`).
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from metalmark.model.plan import Plan, PositiveInt
from metalmark.model.run import Absent, Count, DeviceMemory, Failed, Machine, Run, Seconds, Software, Telemetry

Share = Annotated[float, Meta(ge=0, le=1)]
SweepId = Annotated[str, Meta(pattern=r"^([0-9a-z]{8,40})?$")]


class Goal(Struct, frozen=True, kw_only=True):
    """How long to train, and when to stop before."""

    epochs: PositiveInt
    target_accuracy: Share | None = None
    """Stop after the epoch whose validation reaches it."""
    patience: PositiveInt | None = None
    """Stop after so many epochs without a better validation accuracy."""
    workers: Count | None = None
    """Threads that make batches ahead; 0 makes each when it is asked for, None leaves it to the size of a batch."""


class Epoch(Struct, frozen=True, kw_only=True):
    """One pass over the training samples and the validation after it. Numbered from 1."""

    number: PositiveInt
    session: Count
    """Which of the record's sessions it ran in."""
    begin_s: Seconds
    """On the clock of that session, from the start of its process, as telemetry's is."""
    end_s: Seconds
    samples: Count
    steps: Count
    losses: tuple[float, ...]
    """Of each step: the mean over its batch, before its update."""
    train_loss: float
    """Weighted by samples."""
    validation_loss: float
    accuracy: Share
    """Of the validation samples, each counted once."""
    top5: Share | Absent
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
    """Writing the checkpoint of the epoch before; outside the three parts."""


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
    TARGET = "target accuracy reached"
    PATIENCE = "no better epoch within the patience"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


NOT_BEGUN = "not begun"


class TrainingSetup(Struct, frozen=True, kw_only=True):
    """What the worker found: where it runs, on what."""

    placed_on: str
    device_name: str
    parameters: Count
    trainable_parameters: Count
    data: str
    data_digest: str
    train_samples: Count
    validation_samples: Count
    classes: Count
    workers: Count
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()


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

    def _heading(self) -> tuple[str, str, object]:
        last = self.sessions[-1] if self.sessions else None
        ending = self.failure.kind.value if self.failure else self.ending.value if last else NOT_BEGUN
        return self.plan.label, ending, last
