"""What to run: a Plan is pure data, frozen, and says everything that decides a measurement. A Sweep has many."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, convert, to_builtins
from msgspec.structs import replace

Scalar = int | float | str | bool

PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]


class Mode(StrEnum):
    TRAINING = "training"
    INFERENCE = "inference"


class Dtype(StrEnum):
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class DeviceKind(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    """The accelerator this framework has on this machine, whatever its name."""
    ANY = "any"
    """Placement is left to the framework; the record says where it ran."""
    MPS = "mps"
    CUDA = "cuda"


class Device(Struct, frozen=True, kw_only=True):
    """A device word, parsed once: `cpu`, `gpu`, `any`, `mps`, `cuda`, `cuda:1`."""

    kind: DeviceKind
    index: Annotated[int, Meta(ge=0)] | None = None

    def __str__(self) -> str:
        return self.kind.value if self.index is None else f"{self.kind.value}:{self.index}"


def word(value: object) -> str:
    """Return a value of a setting or a parameter as it is shown and typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)


COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "combo-kernels")
ATTENTION_KERNELS = ("math", "flash", "efficient", "cudnn")


class Settings(Struct, frozen=True, kw_only=True):
    """How a workload is run: the knobs a tuner turns. Never part of what is trained."""

    dtype: Dtype = Dtype.FLOAT32
    compile: bool = False
    graph: bool = False
    channels_last: bool = False
    fused: bool = False
    threads: PositiveInt | None = None
    compile_mode: Annotated[str, Meta(pattern=f"^({'|'.join(('', *COMPILE_MODES))})$")] = ""
    """What PyTorch's compiler spends its time on; empty: its own default."""
    attention_kernel: Annotated[str, Meta(pattern=f"^({'|'.join(('', *ATTENTION_KERNELS))})$")] = ""
    """The one kernel that PyTorch may compute attention with; empty: its own choice. The name `attention` is that of a
    parameter of workloads."""
    accumulate: PositiveInt = 1
    """Number of equal parts that a batch is run in, one after another, before the one update of a step."""
    recompute: bool = False
    """Whether the activations of repeated blocks are computed again in the backward pass instead of kept."""
    conv_search: bool = False
    """Whether cuDNN times its algorithms for each convolution in the first step, and keeps the fastest."""
    environment: Annotated[str, Meta(pattern=r"^(\w+=\S+( \w+=\S+)*)?$")] = ""
    """Variables that are set before the framework is imported: "NAME=VALUE", several joined by a blank and sorted."""

    def changed(self) -> dict[str, str]:
        """The settings that differ from the default, for tables: {'dtype': 'bfloat16', 'compile': 'on'}."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: word(value) for name, value in values.items() if value != getattr(DEFAULT_SETTINGS, name)}


class Feed(StrEnum):
    RESIDENT = "resident"
    """Batches lie on the device: the step alone is measured."""
    PIPELINE = "pipeline"
    """Each step is fed by the framework's own loader; waiting for it is part of the step, and counted."""


class Loader(Struct, frozen=True, kw_only=True):
    """How batches are made ahead, in one set of words for every framework."""

    workers: Annotated[int, Meta(ge=0)] = 1
    """Processes (PyTorch), parallel calls (tf.data) or threads (JAX, MLX)."""
    prefetch: Annotated[int, Meta(ge=0)] = 2
    """Batches made ahead; 0 makes each one when it is asked for."""
    pin: bool = False
    persistent: bool = True
    start_method: str = ""
    """fork, spawn or forkserver; empty leaves it to the system."""


class Proving(StrEnum):
    """What becomes of a cell whose work could not be proved."""

    STRICT = "strict"
    """It is a wrong result, without a timing."""
    FLAG = "flag"
    """Its timing is shown with the flag `unproved`; what is wrong for certain is a wrong result all the same."""
    OFF = "off"
    """No untimed steps are spent on a proof, and the cell has the flag for that reason."""


class Scaling(StrEnum):
    STRONG = "strong"
    """The batch size is that of a step, and each process computes its part of it."""
    WEAK = "weak"
    """The batch size is that of each process, so a step grows with the number of processes."""


class World(Struct, frozen=True, kw_only=True):
    """The processes, called ranks, that train one network together. Where they meet is not stored: an address names
    its owner's machine."""

    nproc: PositiveInt
    """Number of ranks on each machine."""
    nnodes: PositiveInt = 1
    """Number of machines."""
    scaling: Scaling = Scaling.STRONG

    @property
    def size(self) -> int:
        """The number of ranks on all machines together."""
        return self.nproc * self.nnodes

    @property
    def label(self) -> str:
        """How many processes, in the words of a table."""
        nodes = f" on {self.nnodes} machines" if self.nnodes > 1 else ""
        each = ", batch per process" if self.scaling is Scaling.WEAK else ""
        return f"{self.size} {'process' if self.size == 1 else 'processes'}{nodes}{each}"


class Budget(Struct, frozen=True, kw_only=True):
    """How much to measure, and when to give up."""

    steps: PositiveInt | None = None
    """Exactly this many measured steps; otherwise at least `min_blocks` blocks and `seconds`."""
    seconds: PositiveFloat = 3.0
    min_blocks: PositiveInt = 10
    timeout_s: PositiveFloat = 3600.0
    """The whole cell, from the start of its process."""
    stall_s: PositiveFloat = 300.0
    """Silence: no progress line for so long is a hang."""


class Plan(Struct, frozen=True, kw_only=True):
    """One cell of a sweep."""

    workload: str
    params: dict[str, Scalar]
    mode: Mode
    framework: str
    device: Device
    settings: Settings = Settings()
    budget: Budget = Budget()
    seed: int = 0
    data: str = "synthetic"
    """synthetic, own (what the workload brings), real, a data set's name, or a user's file as `name@digest`."""
    target_column: str = ""
    """Of a table: the column or columns that are to be told from the others; empty for the last."""
    feed: Feed = Feed.RESIDENT
    loader: Loader | None = None
    """Of a pipeline; None where batches are resident."""
    proof: Proving = Proving.FLAG
    workload_digest: str = ""
    """SHA-256 of the user's own file; empty for a built-in, whose version is Metalmark's."""
    world: World | UnsetType = UNSET
    """The processes that train it together; unset, and not written, where there is one."""

    @property
    def processes(self) -> int:
        return self.world.size if isinstance(self.world, World) else 1

    @property
    def samples_per_step(self) -> int:
        """Number of samples of a step of all processes together. A workload without a batch size counts batches."""
        weak = isinstance(self.world, World) and self.world.scaling is Scaling.WEAK
        return int(self.params.get("batch_size", 1)) * (self.processes if weak else 1)

    @property
    def label(self) -> str:
        """The cell in the words of a table: "mnist-mlp training batch 32 torch cpu compile on"."""
        batch = f" batch {self.params['batch_size']}" if "batch_size" in self.params else ""
        changed = "".join(f" {name} {value}" for name, value in self.settings.changed().items())
        world = f", {self.world.label}" if isinstance(self.world, World) else ""
        return f"{self.workload} {self.mode.value}{batch} {self.framework} {self.device}{changed}{world}"


class PlanChange(Struct, frozen=True, kw_only=True):
    """What is changed of a plan: of its settings, its loader, its workload's parameters, its feed."""

    settings: dict[str, Scalar] = {}
    loader: dict[str, Scalar] = {}
    params: dict[str, Scalar] = {}
    feed: Feed | None = None

    def applied(self, plan: Plan) -> Plan:
        loader = replace(plan.loader or Loader(), **self.loader) if self.loader else plan.loader
        if self.feed is Feed.RESIDENT:
            loader = None
        return replace(
            plan,
            # Through the codec: what was read from a file has words where settings have enumerations.
            settings=convert({**to_builtins(plan.settings), **self.settings}, Settings),
            loader=loader,
            params={**plan.params, **self.params},
            feed=self.feed or plan.feed,
        )


DEFAULT_SETTINGS = Settings()


class Cooldown(Struct, frozen=True, kw_only=True):
    """A pause between cells: at most `limit_s`, less where sensors say that the machine is cool again."""

    limit_s: float
    auto: bool = False


class CellTarget(Struct, frozen=True, kw_only=True):
    """Which machine of a cluster a cell is for. Without a machine and a node it is for whichever is free."""

    machine: str = ""
    """The title of a kind of machine: any node of that kind will do."""
    node: str = ""
    """The cluster's id of one node."""
    title: str = ""
    """What a table calls it."""


class Sweep(Struct, frozen=True, kw_only=True):
    """The cells that one command measures, kept so that it can be resumed."""

    id: str
    created_at: str
    plans: tuple[Plan, ...]
    repeats: int = 1
    hz: float | None = 5.0
    cooldown: Cooldown | None = None
    paths: dict[str, str] = {}
    """Where the user's own files lie, by the words the plans have for them: never exported with a record."""
    left_out: tuple[str, ...] = ()
    """What `all` could have meant and did not, each with its reason: frameworks and devices that are not here."""
    parity: str = ""
    """What the parity checks of these plans are found by in the store; empty: none were asked for."""

    targets: tuple[CellTarget, ...] = ()
    """One for each plan where the sweep runs on a cluster; empty: it runs on this machine."""

    def order(self) -> Iterator[tuple[int, int]]:
        """(cell, repeat): every cell once, then every cell again, so that slow drift hits all alike."""
        return ((cell, repeat) for repeat in range(self.repeats) for cell in range(len(self.plans)))
