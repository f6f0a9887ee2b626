"""ExplanationRun: what a step's time is made of, what it waits for, and what would make it shorter. Pure data.

Times are kept as measured; sentences are made when a run is shown.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from metalmark.model.plan import Plan, PlanChange
from metalmark.model.run import Absent, Count, Failed, Flag, Identifier, Machine, Run, Seconds, Software, Telemetry


class Cause(StrEnum):
    """What a part of a step's time is spent on. The shares of all causes add up to the step."""

    INPUT = "input wait"
    """Waiting until the loader gives a batch."""
    HOST = "host"
    """Python and launching operations, while the device has nothing to do."""
    COMPUTE = "device compute"
    """Operations that the device's arithmetic limits."""
    MEMORY = "memory traffic"
    """Operations that the device's memory limits."""
    SYNC = "synchronisation"
    """The host waits for the device in the middle of a step, and the device then waits for the host."""
    TRANSFER = "transfers"
    """Copies between the host's memory and the device's."""
    OPTIMIZER = "optimiser"
    FALLBACK = "CPU fallback"
    """Operations that run on the CPU because the device has no kernel for them."""
    CONTENTION = "contention"
    """Threads that wait for each other, other processes, swapping, heat."""
    UNEXPLAINED = "unexplained"


class Bottleneck(StrEnum):
    """The verdict: what the step mostly waits for."""

    INPUT = "input-bound"
    HOST = "host-bound"
    COMPUTE = "compute-bound"
    MEMORY = "bandwidth-bound"
    SYNC = "synchronisation-bound"
    TRANSFER = "transfer-bound"
    OPTIMIZER = "optimiser-bound"
    FALLBACK = "bound by the CPU fallback"
    THREADS = "oversubscribed"
    SWAP = "swapping"
    HEAT = "throttled"
    BALANCED = "balanced"
    """Nothing stands out."""
    UNKNOWN = "not told"
    """Too little was seen."""


class StepShare(Struct, frozen=True, kw_only=True):
    cause: Cause
    seconds: Seconds
    """Of one step."""
    error_s: Seconds
    evidence: str
    """What was measured that says so, as a sentence without its full stop."""


class ExperimentKind(StrEnum):
    """What is timed. All but AS_ASKED have resident batches."""

    AS_ASKED = "as asked"
    """The whole step with the feed of the plan."""
    RESIDENT = "resident batch"
    """The whole step with batches that lie on the device."""
    FORWARD = "forward"
    """Forward pass and loss alone, keeping what a backward pass would need."""
    BACKWARD = "forward and backward"
    """Everything but the optimiser."""
    ENQUEUE = "enqueueing"
    """How long the host takes to enqueue a step of a device that is not kept waiting."""
    PLACE = "placing a batch"
    """Copying one batch from the host to the device, and waiting for it."""
    PRODUCE = "making a batch"
    """Making one batch on the host, by the loader's code in one process, without a step."""
    BATCH = "another batch size"
    COMPILED = "compiled"
    CAPTURED = "captured"
    FUSED = "fused optimiser"
    THREADS = "other threads"
    DTYPE = "another dtype"
    LAYOUT = "channels-last"
    LOADER = "another loader"
    SYNCS = "synchronisations inside a step"
    """`seconds` is how long the host waited in calls inside a step that wait for the device."""


class Experiment(Struct, frozen=True, kw_only=True):
    """One thing changed, and the time of a step (or of a part of it) with it."""

    kind: ExperimentKind
    change: PlanChange = PlanChange()
    seconds: Seconds | None
    """The median; None: it could not be done."""
    error_s: Seconds = 0.0
    """Half the width of its 95% interval."""
    samples: tuple[float, ...] = ()
    """Raw: seconds per step of each block, in order."""
    baseline_s: Seconds | None = None
    """The resident step (or, for a loader, the step as asked) measured beside it, before and after."""
    waited_s: Seconds | None = None
    """Of a step with a loader: how long it waited for its batch."""
    absent: str = ""
    """Why it could not be done."""
    note: str = ""


class OperationWork(Struct, frozen=True, kw_only=True):
    """What one kind of operation has to do in a step, as counted from its shapes."""

    name: str
    calls: Count
    flops: float
    bytes: float
    """Read and written, if nothing stays in a cache."""
    part: str = ""
    """"optimizer": of the update; empty: of the passes before it, or of any."""


class OperationCost(Struct, frozen=True, kw_only=True):
    """What one kind of operation took in a step."""

    name: str
    calls: Count
    seconds: Seconds
    share: float
    """Of all operations."""


class Profile(Struct, frozen=True, kw_only=True, tag="profile"):
    """The most expensive operations of a step."""

    source: str
    """"torch.profiler", "each operation timed by itself"."""
    operations: tuple[OperationCost, ...]
    total_s: Seconds
    """Of all operations of a step, those not listed included."""


class Roofline(Struct, frozen=True, kw_only=True, tag="roofline"):
    """The work of a step against what the device reached in a matrix product and in a copy, on the spot."""

    flops: float
    """Of one step."""
    bytes: float
    step_s: Seconds
    peak_flops_per_s: float
    peak_bytes_per_s: float
    source: str
    """How flops and bytes were counted."""

    @property
    def intensity(self) -> float:
        """Arithmetic operations for each byte."""
        return self.flops / self.bytes

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit, not memory."""
        return self.peak_flops_per_s / self.peak_bytes_per_s

    @property
    def achieved_flops_per_s(self) -> float:
        return self.flops / self.step_s

    @property
    def reachable_flops_per_s(self) -> float:
        return min(self.peak_flops_per_s, self.intensity * self.peak_bytes_per_s)


class MeasuredGain(Struct, frozen=True, kw_only=True):
    """A change that was made, measured in turn with the baseline. Both times are of as many samples as a step of the
    baseline has."""

    baseline_s: Seconds
    changed_s: Seconds | None
    """None: it failed."""
    gain: float | None
    low: float | None = None
    high: float | None = None
    """The 95% interval of the gain."""
    failed: str = ""


class Proposal(Struct, frozen=True, kw_only=True):
    """A change that should make training faster."""

    title: str
    """"4 loader workers", "capture the step as a CUDA graph"."""
    typed: str = ""
    """What to add to a command of Metalmark: "--workers 4"."""
    written: str = ""
    """What to write in a script of one's own, in its framework."""
    change: PlanChange | None = None
    """None: Metalmark can't make it."""
    gain: float | None
    """How many times as many samples per second are expected; None where that can't be said."""
    low: float | None = None
    high: float | None = None
    reason: str
    """Why, and from what the gain is reckoned, as a sentence without its full stop."""
    measured: MeasuredGain | None = None


class Explained(Struct, frozen=True, kw_only=True, tag="explained"):
    bottleneck: Bottleneck
    step_s: Seconds
    """Median of the step as asked."""
    error_s: Seconds
    shares: tuple[StepShare, ...]
    """They add up to `step_s`."""
    proposals: tuple[Proposal, ...] = ()
    """The largest gain first."""
    experiments: tuple[Experiment, ...] = ()
    work: tuple[OperationWork, ...] = ()
    profile: Profile | Absent
    roofline: Roofline | Absent
    placed_on: str = ""
    device_name: str = ""
    samples_per_step: Count | None = None
    parts: dict[str, Seconds] = {}
    """Forward, backward and optimiser, where they were timed."""
    fallbacks: tuple[str, ...] = ()
    complete: bool = True
    """False: stopped before every experiment was done."""
    missing: tuple[str, ...] = ()
    """Of a stored run: the experiments that would settle the rest, each with what to type."""
    notes: tuple[str, ...] = ()
    elapsed_s: Annotated[float, Meta(ge=0)] = 0.0
    """How long the explanation took."""

    def share(self, cause: Cause) -> float:
        """The share of a step, from 0 to 1."""
        return sum(each.seconds for each in self.shares if each.cause is cause) / self.step_s if self.step_s else 0.0


class ExplanationRun(Run, frozen=True, kw_only=True, tag="explain"):
    sweep: str = ""
    """What one command made: explanations, and the bench runs of --verify. Empty for a run by itself."""
    cell: Count = 0
    subject: str
    """What was explained, in the words of a table."""
    plan: Plan | None = None
    """None: a script, or a watched run."""
    of: Identifier | None = None
    """The stored run that is explained, where there is one."""
    machine: Machine
    software: Software
    outcome: Explained | Failed
    telemetry: Telemetry
    flags: tuple[Flag, ...] = ()

    def _heading(self) -> tuple[str, str, object]:
        ending = self.outcome.kind.value if isinstance(self.outcome, Failed) else self.outcome.bottleneck.value
        return self.subject, ending, self
