"""A beginning of a network, run as it is and compiled: which is the shortest that differs. No framework is imported."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays
from metalmark.model.parity import Quantity, Statistic
from metalmark.parity.base import Named
from metalmark.parity.distance import ROUNDING
from metalmark.parity.judge import CANCELLED, CANCELLED_FACTOR, LIMITS, OF_FEW
from metalmark.parity.networks import PartJob
from metalmark.parity.networks.question import Network
from metalmark.parity.prefixes import CompiledPart
from metalmark.parity.variations import permute, perturb

LOSS, OUTPUTS = "the loss", "the outputs"
"""Where a whole network ends, in training and in evaluation."""
NONE_DIFFERS = "Forward and backward pass, compiled by themselves, do not differ from those that are not compiled."
OWN_STEP = "the recipe has a step of its own, and only that knows how its networks are called."
DRAWS = 2
"""How often weights and inputs are moved by a rounding error."""


class Given(NamedTuple):
    """What a beginning is run with."""

    values: Named
    """The arrays of the network's slots."""
    arrays: Arrays
    """The leaves of a batch."""
    directions: Arrays
    """One array for each output: gradients are those of the sum of all outputs along these."""


class Computed(NamedTuple):
    outputs: list[np.ndarray]
    gradients: list[np.ndarray]


class Beginning(Protocol):
    """A network up to one call of a layer. What it gives are the outputs of that call, and of earlier ones that nothing
    within it uses: the ends of other branches."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of its outputs."""

    def run(self, given: Given, *, compiled: bool) -> Computed: ...


class Reached(BaseException):
    """Raised by the last layer of a beginning, so that nothing after it runs. Not an Exception: Keras and TensorFlow
    catch those and raise them as others."""


def find_part(
    network: Network[Any],
    job: PartJob,
    called: Callable[[bool], Sequence[str]],
    begin: Callable[[int | None, bool], Beginning],
) -> CompiledPart:
    """Name the shortest beginning that differs. `called(evaluates)` names the layers in the order in which a forward
    pass calls them; `begin(number, evaluates)` makes the beginning up to the call of that number, None: all of it."""
    subject, evaluates = network.subject, job.quantity is Quantity.PREDICTION
    if subject.recipe.step is not None:
        raise UnsupportedError(OWN_STEP)
    values, calls = subject.values(), called(evaluates)
    ends = [*numbered(calls), OUTPUTS if evaluates else LOSS]
    rounding, names = ROUNDING[network.settings.dtype], subject.layout.names

    def is_other(end: int) -> bool:
        beginning = begin(end if end < len(calls) else None, evaluates)
        return differs(beginning, values, network.arrays, names, rounding)

    found = shortest(range(len(ends)), is_other)
    return CompiledPart(until="", note=NONE_DIFFERS) if found is None else CompiledPart(until=ends[found])


def shortest(cuts: Sequence[int], differs: Callable[[int], bool]) -> int | None:
    """Return which cut is the first whose beginning differs, by bisection; None where that of the last does not. What
    is longer than one that differs is taken to differ too."""
    low, high = -1, len(cuts) - 1
    if high < 0 or not differs(cuts[high]):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if differs(cuts[middle]):
            high = middle
        else:
            low = middle
    return high


def differs(beginning: Beginning, values: Named, arrays: Arrays, names: Sequence[str], rounding: float) -> bool:
    """Whether a beginning gives other outputs or gradients when it is compiled than its noise explains: samples in
    another order, weights and inputs moved by a rounding error. `names`: of the arrays of a batch."""
    directions = tuple(
        np.random.default_rng(number).standard_normal(shape, np.float32)
        for number, shape in enumerate(beginning.shapes)
    )
    given = Given(values, arrays, directions)
    plain = beginning.run(given, compiled=False)
    draws = [beginning.run(_moved(given, names, rounding, seed), compiled=False) for seed in range(DRAWS)]
    outputs = [draw.outputs for draw in draws]
    gradients = [draw.gradients for draw in draws]
    if plain.gradients:
        mixed = permute((*arrays, *directions), 0)
        changed = Given(values, mixed[: len(arrays)], mixed[len(arrays) :])
        gradients.append(beginning.run(changed, compiled=False).gradients)
    found = beginning.run(given, compiled=True)
    return any(
        outside(truth, [draw[number] for draw in noise], computed[number], rounding)
        for all_truths, noise, computed in (
            (plain.outputs, outputs, found.outputs),
            (plain.gradients, gradients, found.gradients),
        )
        for number, truth in enumerate(all_truths)
    )


def outside(truth: np.ndarray, noise: Sequence[np.ndarray], found: np.ndarray, rounding: float) -> bool:
    """Whether an array is further from the truth than the noise, typically or in one element. As in a check, more is
    allowed where few numbers tell the noise, and of a gradient that is zero but for rounding."""
    truth = truth.astype(np.float64)
    size = _root_mean_square(truth)
    away = found - truth
    typical = max([rounding * size / 2, *(_root_mean_square(each - truth) for each in noise)])
    largest = max([rounding * size, *(_largest(each - truth) for each in noise)])
    few = OF_FEW.get(len(noise) * max(1, truth.size - 1), 0.0)
    factor = CANCELLED_FACTOR if typical > CANCELLED * size else 1.0
    inside = _root_mean_square(away) <= factor * max(few, LIMITS[Statistic.TYPICAL]) * typical
    return not (inside and _largest(away) <= factor * max(few, LIMITS[Statistic.LARGEST]) * largest)


def numbered(names: Sequence[str]) -> list[str]:
    """Number the calls of a layer that is called again, as a check does: "dense", "dense#2"."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        counts[name] += 1
        found.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return found


def open_ends(last: int, uses: Callable[[int, Sequence[int]], Sequence[bool]]) -> list[int]:
    """Return the calls up to one whose outputs no later call up to it uses. `uses(call, earlier)`: whether a call
    depends on each earlier one."""
    ends, left = [last], list(range(last))
    while left:
        left = [call for call, used in zip(left, uses(ends[-1], left), strict=True) if not used]
        if left:
            ends.append(left.pop())
    return ends


def _moved(given: Given, names: Sequence[str], rounding: float, seed: int) -> Given:
    rng = np.random.default_rng(seed)
    return Given(
        {name: perturb(array, rounding, rng) for name, array in given.values.items()},
        tuple(
            perturb(array, rounding, rng) if name.startswith("inputs") else array
            for name, array in zip(names, given.arrays, strict=True)
        ),
        tuple(perturb(array, rounding, rng) for array in given.directions),
    )


def _root_mean_square(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max()) if array.size else 0.0
