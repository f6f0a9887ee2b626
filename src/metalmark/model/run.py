"""Run: what every kind of run has in common. Pure data.

A run is one flat structure. `Run` holds the fields that each kind has; `BenchRun` (measurement.py), `TrainingRun`
(training.py), `WatchedRun` (watch.py), `ParityRun` (parity.py), `ExplanationRun` (explanation.py) and `TuningRun`
(tuning.py) add their own, and each answers `header` in the same words, so that a list, a store or a tracker needs to
know no kind. In JSON, `kind` says which it is.

Raw values are kept; medians and intervals are derived when shown. SCHEMA goes up whenever an older reader would
misread a newer run; `codec.py` turns older ones into this shape when it reads them.
"""

import secrets
from abc import abstractmethod
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

SCHEMA = 2
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Identifier = Annotated[str, Meta(pattern=r"^[0-9a-z]{8,40}$")]
Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]


class RunKind(StrEnum):
    BENCH = "bench"
    """One cell of a sweep, measured in one process."""
    TRAINING = "training"
    """A workload trained to its accuracy."""
    WATCH = "watch"
    """A loop of the user's own, observed from outside."""
    PARITY = "parity"
    """A check whether one side trains the same network as a reference does."""
    EXPLAIN = "explain"
    """What a step's time is made of, and what would make it shorter."""
    TUNE = "tune"
    """The settings that train fastest, and what each of them gained."""


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


POWER_CAPPED = "power_capped"
UNPROVED = "unproved"
PARITY_FAILED = "parity_failed"
NOTES = frozenset({POWER_CAPPED})
"""Flags that are worth knowing and spoil nothing."""


class Flag(Struct, frozen=True, kw_only=True):
    """Something that could spoil the number, or that a reader of it should know (NOTES), with what was seen."""

    name: str
    evidence: str


class Header(Struct, frozen=True, kw_only=True):
    """What a list, a page or a tracker says of any run."""

    id: str
    kind: RunKind
    label: str
    """What ran, in the words of a table: "mnist-mlp training batch 32 torch cpu", or the name of a watched run."""
    started_at: str
    sweep: str = ""
    """The runs that one command made; empty for a run by itself."""
    ending: str
    """"completed", a failure ("out of memory"), how a training ended, what a parity check found, what a step waits
    for, or what tuning gained."""
    machine: Machine | None
    """None: the run ended before that was known."""
    software: Software | None
    telemetry: Telemetry | None
    """Of the last process, where a run had several."""


class Run(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that every run has."""

    schema: int = SCHEMA
    id: Identifier
    started_at: Moment

    @abstractmethod
    def _heading(self) -> tuple[str, str, object]:
        """Return its label, its ending, and what has its machine, software and telemetry: the run, its last session or
        nothing."""

    @property
    def header(self) -> Header:
        label, ending, process = self._heading()
        kind, sweep = RunKind(str(self.__struct_config__.tag)), getattr(self, "sweep", "")
        around: dict[str, Any] = {name: getattr(process, name, None) for name in ("machine", "software", "telemetry")}
        return Header(
            id=self.id, kind=kind, label=label, started_at=self.started_at, sweep=sweep, ending=ending, **around
        )


def new_id() -> str:
    """Return a random id, of which three or four characters are enough to name a run among thousands."""
    return "".join(secrets.choice(DIGITS) for _ in range(10))


def now_utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
