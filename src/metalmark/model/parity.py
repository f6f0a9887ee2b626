"""ParityRun: whether one side trains the same network as the reference does, quantity by quantity. Pure data.

Distances are kept as measured, with the noise that they are judged by; sentences are made when a run is shown.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from metalmark.model.plan import Plan
from metalmark.model.run import Count, Failed, Flag, Identifier, Machine, Run, Seconds, Software, Telemetry

Sigmas = Annotated[float, Meta(ge=0)]


class ParityVerdict(StrEnum):
    AGREES = "agrees"
    DIFFERS = "differs"
    UNTESTED = "could not be tested"


class Quantity(StrEnum):
    """What is compared, in the order in which it is."""

    EVAL_OUTPUT = "output in evaluation"
    """Of a layer."""
    TRAIN_OUTPUT = "output in training"
    """Of a layer, dropout switched off."""
    DROPOUT = "dropout"
    """Of a layer: which share it drops, and how it scales what it keeps."""
    PREDICTION = "prediction"
    """The network's outputs in evaluation, computed as the settings say: compiled, captured."""
    LOSS = "loss"
    GRADIENT = "gradient"
    OPTIMIZER = "update by the optimiser"
    """What the optimiser makes of gradients that are the same on both sides."""
    UPDATE = "change of the parameter"
    """What real training steps made of it."""
    STATISTIC = "running statistic"
    REPEAT = "repeated step"
    """The same step again and again: what differs between two of them."""
    CURVE = "loss curve"
    ACCURACY = "held-out accuracy"


class Statistic(StrEnum):
    """How two arrays are compared. Each is relative to the root mean square of the reference's."""

    TYPICAL = "typical difference"
    """The root mean square of the differences."""
    LARGEST = "largest difference"
    SCALE = "difference in scale"
    """By how much the one is, over all elements, a multiple of the other."""


class Compared(Struct, frozen=True, kw_only=True):
    """One quantity of one layer or parameter. Of the three statistics, the one that is furthest outside."""

    quantity: Quantity
    name: str
    """The layer or parameter, as its framework names it; empty for the whole network."""
    steps: Count = 0
    """After how many training steps, where that is part of it."""
    statistic: Statistic = Statistic.TYPICAL
    distance: float | None
    """None: a value that is not finite, where the reference's is."""
    sigma: float
    """The noise: how far the reference's own variations are apart, at the precision of this dtype."""
    limit: Sigmas
    """How many sigmas are allowed."""
    where: tuple[int, ...] = ()
    """The element that is furthest off."""
    excused: str = ""
    """Why a difference here is no fault: a convention of the two frameworks, or nothing that is there a second time."""

    @property
    def sigmas(self) -> float:
        return float("inf") if self.distance is None else self.distance / self.sigma

    @property
    def agrees(self) -> bool:
        return bool(self.excused) or self.sigmas <= self.limit


class ShortTraining(Struct, frozen=True, kw_only=True):
    """A short training of one side with one seed."""

    seed: int
    losses: tuple[float, ...]
    accuracy: float | None = None
    """Of held-out samples, where there are labels."""
    held_out: Count = 0


class Trial(Struct, frozen=True, kw_only=True):
    """The same check with one thing changed, to see whether the difference is still there."""

    change: str
    """As it would be typed: "--batch-size 8", "--channels-last", "inputs that are not contiguous"."""
    verdict: ParityVerdict
    sigmas: float | None = None
    """How far outside the quantity that differed is, of its tolerance."""
    reason: str = ""
    """Why it could not be tried."""


class FaultDiagnosis(Struct, frozen=True, kw_only=True):
    """What was tried after a difference was found."""

    batch_sizes: dict[int, ParityVerdict] = {}
    trials: tuple[Trial, ...] = ()
    compiled_until: str = ""
    """Of a compiled network: the shortest part, from the input on, that differs when it is compiled by itself."""
    known_issues: tuple[str, ...] = ()
    """Known faults of this framework and device that could be this one, each a sentence with its source."""
    repro: str = ""
    """The script that shows the difference with the framework alone; empty where none was asked for or none does."""
    notes: tuple[str, ...] = ()


class Checked(Struct, frozen=True, kw_only=True, tag="checked"):
    placed_on: str
    device_name: str
    reference_placed_on: str
    truth: str
    """What both sides are compared with: "float64 on cpu"."""
    noise: tuple[str, ...]
    """The variations of the reference that gave the noise: "float32", "permuted batch", "fewer threads"."""
    compared: tuple[Compared, ...]
    reference_curves: tuple[ShortTraining, ...] = ()
    curves: tuple[ShortTraining, ...] = ()
    repeats: Count = 0
    """How often the same step was repeated."""
    complete: bool = True
    """False: stopped before everything was compared."""
    diagnosis: FaultDiagnosis | None = None
    notes: tuple[str, ...] = ()
    seconds: Seconds = 0.0

    @property
    def differences(self) -> tuple[Compared, ...]:
        return tuple(each for each in self.compared if not each.agrees)

    @property
    def verdict(self) -> ParityVerdict:
        if self.differences:
            return ParityVerdict.DIFFERS
        return ParityVerdict.AGREES if self.complete else ParityVerdict.UNTESTED


class ParityRun(Run, frozen=True, kw_only=True, tag="parity"):
    sweep: Identifier
    cell: Count
    plan: Plan
    """The side that is checked."""
    reference: Plan
    machine: Machine
    software: Software
    outcome: Checked | Failed
    telemetry: Telemetry
    flags: tuple[Flag, ...] = ()

    @property
    def verdict(self) -> ParityVerdict:
        return ParityVerdict.UNTESTED if isinstance(self.outcome, Failed) else self.outcome.verdict

    def _heading(self) -> tuple[str, str, object]:
        ending = self.outcome.kind.value if isinstance(self.outcome, Failed) else self.outcome.verdict.value
        return self.plan.label, ending, self


class ParityMark(Struct, frozen=True, kw_only=True):
    """What a measured or trained run carries of a parity check of the same plan."""

    run: Identifier
    verdict: ParityVerdict
    sentence: str
