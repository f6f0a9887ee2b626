"""BenchRun: one cell of a sweep, measured once in a process of its own. Pure data."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from metalmark.model.parity import ParityMark
from metalmark.model.plan import Plan
from metalmark.model.run import (
    Count,
    DeviceMemory,
    Failed,
    Flag,
    Identifier,
    Machine,
    Run,
    Seconds,
    Software,
    Telemetry,
)


class Block(Struct, frozen=True, kw_only=True):
    """Steps run between two synchronisations of the device."""

    steps: Annotated[int, Meta(ge=1)]
    elapsed_s: Seconds
    at_s: Seconds
    """When it began, on the worker's own clock, from the start of its process."""
    proof: float | None = None
    """Read after the clock stopped: the loss of its last step, or the mean of its last output."""
    drain_s: Seconds | None = None
    """How long that reading took: long means that the device was still busy."""
    waited_s: Seconds | None = None
    """How long its steps waited for the loader; None where batches are resident."""
    live_bytes: Count | None = None
    """What the device's own counter said after the clock had stopped; None where nothing counts."""


class Proof(Struct, frozen=True, kw_only=True):
    """The evidence that the work was done."""

    first: float
    """Training: loss of the fixed batch at the first step. Inference: mean output for it."""
    last: float
    extra_steps: Count
    """Untimed steps added after the clock stopped until the loss had fallen."""
    moved: str
    """How many trainable arrays changed, as "4 of 4"; in inference, that none did."""
    statement: str
    doubts: tuple[str, ...] = ()
    """What was seen that leaves the work unproved; empty where it is proved."""


class Measurement(Struct, frozen=True, kw_only=True):
    """What the clock saw."""

    first_step_s: Seconds
    warmup: tuple[Block, ...]
    steady: bool
    """False: warm-up ran out of patience before three blocks agreed within 5%."""
    blocks: tuple[Block, ...]
    sync_s: Seconds
    """The median cost of synchronising an idle device."""


class Phases(Struct, frozen=True, kw_only=True):
    """When each part of the worker's life began, in seconds from its start."""

    import_s: Seconds
    build_s: Seconds
    first_step_s: Seconds
    warmup_s: Seconds
    measure_s: Seconds
    end_s: Seconds


class RankTimes(Struct, frozen=True, kw_only=True):
    """What the clock of one of several processes saw. All times are seconds per step, one of each block."""

    number: Count
    step_s: tuple[Seconds, ...]
    """Of the measured blocks."""
    together_s: tuple[Seconds, ...] = ()
    """Of blocks after them, as the measured ones, that took turns with those of `alone_s`."""
    alone_s: tuple[Seconds, ...] = ()
    """Of blocks in which the processes exchanged no gradients; empty where the framework can't leave that out."""


class WorldTimes(Struct, frozen=True, kw_only=True):
    """What the clocks of all processes saw that trained one network together."""

    ranks: tuple[RankTimes, ...]
    not_alone: str = ""
    """Why there are no steps without an exchange, and so no share of communication."""


class Completed(Struct, frozen=True, kw_only=True, tag="completed"):
    placed_on: str
    """The device as the framework names it: where the parameters really were."""
    device_name: str
    measurement: Measurement
    proof: Proof
    phases: Phases
    memory: DeviceMemory
    samples_per_step: Annotated[int, Meta(ge=1)]
    tokens_per_sample: Annotated[int, Meta(ge=1)] | None = None
    """Of a language model: how many tokens of each sample a step computes."""
    parameters: Count
    trainable_parameters: Count
    data: str = "synthetic"
    """What the batches were made of, as the data set itself says."""
    flops_per_sample: float | None = None
    """Analytic, for one step of this mode; an estimate of the work, not a reading."""
    notes: tuple[str, ...] = ()
    idle_settings: dict[str, str] = {}
    """Settings that would change nothing of this network, each with the reason, as far as the framework can tell."""
    fallbacks: tuple[str, ...] = ()
    """Operations that the framework said it ran on the CPU for want of a kernel, by its own names."""
    world: WorldTimes | UnsetType = UNSET
    """The times of each process; unset, and not written, where there was one."""


Outcome = Completed | Failed


class BenchRun(Run, frozen=True, kw_only=True, tag="bench"):
    sweep: Identifier
    cell: Count
    repeat: Count
    plan: Plan
    machine: Machine
    software: Software
    outcome: Outcome
    telemetry: Telemetry
    flags: tuple[Flag, ...] = ()
    parity: ParityMark | None = None
    """What a parity check of the same plan found; None: none was asked for."""

    def _heading(self) -> tuple[str, str, object]:
        ending = self.outcome.kind.value if isinstance(self.outcome, Failed) else "completed"
        return self.plan.label, ending, self
