"""What was measured: Record = Plan + Machine + Outcome (Completed | Failed) + telemetry + flags. Pure data.

Every block is kept; medians and intervals are derived when shown. SCHEMA goes up whenever an old reader
would misread a new record; `codec.py` turns older ones into this shape on read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from metalmark.model.plan import Plan

SCHEMA = 1

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Identifier = Annotated[str, Meta(pattern=r"^[0-9a-z]{8,40}$")]


class Absent(Struct, frozen=True, tag="absent"):
    """A figure that was not measured, and why."""

    reason: str


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """Bytes on the device; where it shares the host's memory, the process's own are in telemetry."""

    live_bytes: int | Absent
    driver_bytes: int | Absent
    peak_bytes: int | Absent


class Peak(Struct, frozen=True, kw_only=True, tag="peak"):
    """What a chip could do at best, as published or as clock times cores: a ceiling, never a reading."""

    variant: str
    flops_per_s: dict[str, float]
    """By dtype, dense; a dtype that is not there is not known."""
    bandwidth_bytes_per_s: float | None
    """Of the GPU's memory."""
    confidence: str
    source: str
    note: str = ""


class Gpu(Struct, frozen=True, kw_only=True):
    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    cores: int | None = None
    peak: Peak | Absent | None = None
    """None: recorded before peaks were looked up."""


class Machine(Struct, frozen=True, kw_only=True):
    """What the computer is: enough to compare, nothing that names its owner."""

    chip: str
    architecture: str
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None
    """What this process may use: affinity and container quota counted in."""
    memory_bytes: int
    os: str
    gpus: tuple[Gpu, ...] = ()
    clusters: tuple[str, ...] = ()
    """Kinds of cores, fastest first, as the chip names them: ("8 Performance", "2 Efficiency")."""
    variant: str | None = None
    """Which of the chip's variants, where its GPU's cores tell them apart: "16-core GPU"."""
    features: tuple[str, ...] = ()
    """What its instruction set has of what training uses: ("avx2", "avx512", "amx", "bf16")."""
    virtual_machine: bool | None = None
    """None: nothing here tells."""
    container: bool | None = None
    """False: no sign of one. None: nothing here tells."""
    python_build: str | None = None
    """Which Python, and what it was built for: "CPython 3.12.4 for macosx-11.0-arm64"."""


class Software(Struct, frozen=True, kw_only=True):
    metalmark: str
    python: str
    versions: dict[str, str] = {}
    """Framework packages as the worker imported them."""
    environment: dict[str, str] = {}
    """Variables that steer a framework, as set for this worker, paths cut out."""


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


class Completed(Struct, frozen=True, kw_only=True, tag="completed"):
    placed_on: str
    """The device as the framework names it: where the parameters really were."""
    device_name: str
    measurement: Measurement
    proof: Proof
    phases: Phases
    memory: DeviceMemory
    samples_per_step: Annotated[int, Meta(ge=1)]
    parameters: Count
    trainable_parameters: Count
    data: str = "synthetic"
    """What the batches were made of, as the data set itself says."""
    flops_per_sample: float | None = None
    """Analytic, for one step of this mode; an estimate of the work, not a reading."""
    notes: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    """Operations that the framework said it ran on the CPU for want of a kernel, by its own names."""


class FailureKind(StrEnum):
    OUT_OF_MEMORY = "out of memory"
    UNSUPPORTED = "unsupported"
    WRONG_RESULT = "wrong result"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    kind: FailureKind
    message: str
    hint: str = ""
    phase: str = ""
    signal: str | None = None
    detail: str = ""
    """The end of what the worker printed, or its traceback, paths cut out."""


Outcome = Completed | Failed


class Series(Struct, frozen=True, kw_only=True):
    """One quantity over time. `at_s` is seconds from the worker's start, one entry a value."""

    name: str
    unit: str
    source: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


class Telemetry(Struct, frozen=True, kw_only=True):
    hz: float | None
    """None: switched off."""
    series: tuple[Series, ...] = ()
    absent: dict[str, str] = {}
    """Sensor → why it gave nothing, or when it stopped."""
    idle_w: dict[str, float] = {}
    """What each part drew before the sweep began."""
    slept_s: Seconds | None = None
    """How long the machine slept meanwhile, which no other time in a record shows; None: not looked for."""
    wall_gap_s: float | None = None
    """How much more time passed on the wall clock. Beyond `slept_s`: it was set, or a virtual machine was paused."""


class Flag(Struct, frozen=True, kw_only=True):
    """Something that could spoil the number, with what was seen."""

    name: str
    evidence: str


class Record(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    id: Identifier
    sweep: Identifier
    cell: Count
    repeat: Count
    started_at: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
    plan: Plan
    machine: Machine
    software: Software
    outcome: Outcome
    telemetry: Telemetry
    flags: tuple[Flag, ...] = ()
