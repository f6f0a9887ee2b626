"""What passes between an explanation and its worker: a job, lines as experiments end, and a report at the end."""

from msgspec import Struct

from metalmark.model.explanation import Experiment, OperationWork, Profile
from metalmark.model.plan import Plan
from metalmark.model.run import Absent, Failed

LINES = "experiments.jsonl"


class ExplainOptions(Struct, frozen=True, kw_only=True):
    seconds: float = 0.6
    """How long each experiment is timed, in several blocks."""
    blocks: int = 5
    profile: bool = True
    trace: str = ""
    """The file for a trace; empty: none is written."""


class ExplainJob(Struct, frozen=True, kw_only=True):
    plan: Plan
    options: ExplainOptions
    folder: str
    paths: dict[str, str] = {}
    spawned_at_s: float


class Opened(Struct, frozen=True, kw_only=True, tag="opened"):
    """What the worker found when the baseline's session was ready."""

    placed_on: str
    device_name: str
    asynchronous: bool
    """Whether a step returns before the device has done it: False on the CPU."""
    samples_per_step: int
    flops_per_step: float | None
    """Analytic, as the workload says; None: it does not."""
    parameters: int
    trainable_parameters: int
    threads: int | None = None
    """How many threads of the CPU the framework uses; None: it does not tell."""
    usable_cores: int | None = None
    open_files: int | None = None
    """How many files a process may have open here."""
    first_step_s: float
    sync_s: float
    """What synchronising an idle device costs."""
    notes: tuple[str, ...] = ()


class Tried(Struct, frozen=True, kw_only=True, tag="tried"):
    experiment: Experiment


class Counted(Struct, frozen=True, kw_only=True, tag="counted"):
    work: tuple[OperationWork, ...] | Absent


class Profiled(Struct, frozen=True, kw_only=True, tag="profiled"):
    profile: Profile | Absent


class SyncSeen(Struct, frozen=True, kw_only=True, tag="sync"):
    """A call inside the step that waited for the device."""

    where: str
    call: str
    count: int
    """Per step, rounded."""
    seconds: float
    """Per step."""


class Ceiling(Struct, frozen=True, kw_only=True, tag="ceiling"):
    """What the device reached on the spot, in the plan's dtype and with its threads; None: it could not be measured."""

    flops_per_s: float | None
    """In a chain of large matrix products."""
    bytes_per_s: float | None
    """In a copy: read and written."""
    absent: str = ""
    """Why one of them, or both, could not be measured."""


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """The last line of a worker that did everything."""


Line = Opened | Tried | Counted | Profiled | SyncSeen | Ceiling | Done


class ExplainReport(Struct, frozen=True, kw_only=True):
    failure: Failed | None = None
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()
