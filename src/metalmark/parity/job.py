"""What passes between a parity check and its two workers: a job, lines as they compare, and a report at the end."""

from msgspec import Struct

from metalmark.model.parity import ShortTraining
from metalmark.model.plan import Plan
from metalmark.model.run import Failed
from metalmark.parity.distance import Distance

REFERENCE, CANDIDATE = "reference.jsonl", "candidate.jsonl"
WEIGHTS = "weights.npz"


class Options(Struct, frozen=True, kw_only=True):
    """How much is compared."""

    steps: int = 5
    """Training steps after which parameters are compared, besides after the first."""
    draws: int = 3
    """How often the reference is perturbed, to see what rounding does to each quantity."""
    variations: bool = True
    """Whether the reference is also run with its batch permuted and with fewer threads. Both are noise of float32,
    which judges nothing but the optimiser where the candidate computes in less."""
    layers: bool = True
    quantities: bool = True
    """False: only the short trainings are compared."""
    repeats: int = 5000
    """The same step is repeated so often, within `repeat_s`. 0: not at all."""
    repeat_s: float = 5.0
    seeds: int = 3
    """Short trainings per side. 0: none."""
    curve_s: float = 5.0
    """About how long the reference's short trainings take together; it decides how many steps they have."""
    curve_steps: int | None = None
    """The number of steps itself, where it is not for the time to decide."""
    contiguous: bool = True
    """False: the inputs of this side are views of every second element of a larger array."""


class Case(Struct, frozen=True, kw_only=True):
    """One check: both plans, and the folder in which its arrays and lines are kept."""

    plan: Plan
    reference: Plan
    folder: str
    options: Options = Options()


class SideJob(Struct, frozen=True, kw_only=True):
    """What a worker is given: the checks that it has one side of, one after another."""

    cases: tuple[Case, ...]
    is_reference: bool
    paths: dict[str, str] = {}
    spawned_at_s: float


class Setup(Struct, frozen=True, kw_only=True, tag="setup"):
    """What a side found when it began."""

    placed_on: str
    device_name: str
    truth: str = ""
    """Of the reference: what its arrays were computed in."""
    data_digest: str = ""
    curve_steps: int = 0
    notes: tuple[str, ...] = ()


class MeasuredArray(Struct, frozen=True, kw_only=True, tag="measured"):
    """One array, compared with the truth."""

    draw: str = ""
    """Which variation of the reference it is of; empty for the candidate."""
    lowered: bool = False
    """Whether the variation has the precision of the candidate's dtype, which is below float32."""
    distance: Distance


class Dropping(Struct, frozen=True, kw_only=True, tag="dropping"):
    """What a dropout layer did."""

    name: str
    rate: float
    share: float
    scale: float | None
    elements: int


class Repeating(Struct, frozen=True, kw_only=True, tag="repeating"):
    """How far the same step, repeated, was from its first time, at most."""

    repeats: int
    worst: tuple[Distance, ...]
    """Relative to the first time."""
    usual: tuple[float, ...]
    """What the median repeat of each is away."""


class Curved(Struct, frozen=True, kw_only=True, tag="curved"):
    curve: ShortTraining
    draw: str = ""
    """Of the reference: "" for the training itself, else which variation of it."""


class Finished(Struct, frozen=True, kw_only=True, tag="finished"):
    """The last line of a check that came to its end."""


Line = Setup | MeasuredArray | Dropping | Repeating | Curved | Finished


class SideReport(Struct, frozen=True, kw_only=True):
    """What a worker leaves when it ends."""

    failure: Failed | None = None
    failed_case: int = 0
    versions: dict[str, str] = {}
