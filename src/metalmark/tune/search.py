"""The search: which settings to try next, from what those tried so far have gained. Pure functions on numbers.

First each option is added to the best so far, the one that should gain most first: that is the ladder. What takes long
to try comes after everything else, such as compiling: then it is compiled once, on top of what has helped, and where
there is too little time for it the rest has been tried. A strong option that gained little when it came is tried once
more when others have helped, before that: where a GPU waits for its host, what makes the GPU faster shows only after
something has relieved the host. Then a model of how options act alone and in pairs says which other combination has the
best chance of being better still, until none has. The model is a Gaussian process over combinations, which for so few
numbers is a page of linear algebra; `benchmarks/tuner_regret.py` weighs it against Optuna.

A larger batch that helps is an option as any other (`batches.py` finds it), so the model weighs it with the settings:
what gained nothing on a small batch may be what a large one waits for.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from metalmark.model.plan import PlanChange

ALONE, PAIR, NOISE = 0.35, 0.15, 0.02
"""Standard deviations, of logarithms of gains: of what an option does by itself beyond what is expected of it, of what
two of them do together beyond that, and of one short measurement."""
WORTH = 0.01
"""The least gain for which an option is kept: a hundredth."""
STRONG = 0.2
"""What is expected of an option, as a logarithm, from which on it gets a second chance."""
HOPE = 0.006
"""The search ends where no combination is expected to improve on the best by more; one that takes twice as long to try
must be expected to improve on it by twice as much."""
MOST_CHANGED_AXES = 2
"""A combination differs from the best so far in no more axes, so that there are few to weigh."""

Candidate = frozenset[str]
"""Names of options, at most one for each axis; empty: the baseline."""
BASELINE: Candidate = frozenset()


class TuningOption(Struct, frozen=True, kw_only=True):
    """One value of one setting that is not the baseline's."""

    name: str
    """As the ladder calls it: "bfloat16", "compile"."""
    axis: str
    """The setting. Of two options of one axis only one can be chosen."""
    change: PlanChange
    expected: float = 0.0
    """The logarithm of the gain that it usually has where it helps: what is tried first, and no more."""
    needs: tuple[str, ...] = ()
    """The options without which this one has no meaning, such as a mode of the compiler, or seldom helps."""
    cost: float = 1.0
    """How many times as long a trial takes with it as without it."""
    recompiles: bool = False
    """Whether what a compiler has made without it is of no use with it."""
    influence: float = 1.0
    """How many times as much as other options do it changes what they gain."""


class Search:
    """Proposes one combination at a time, and is told what it came to."""

    def __init__(self, options: Sequence[TuningOption]) -> None:
        self._options = {option.name: option for option in sorted(options, key=lambda each: -each.expected)}
        self._waiting = self._in_order(self._options)
        self._left_out: set[str] = set()
        self._had_second_chance: set[str] = set()
        self._grown: list[str] = []
        """Larger batches, each larger than those before it."""
        self.values: dict[Candidate, float | None] = {}
        """What the goal makes smaller, by combination; None: it failed."""
        self.climbed: list[Candidate] = []
        """Each combination that was better than everything before it, from the baseline on."""

    def propose(self) -> Candidate | None:
        """Return what to measure next; None where nothing is likely to help."""
        if BASELINE not in self.values:
            return BASELINE
        while (name := self._first_waiting()) is not None:
            if self._options[name].expected < STRONG or self._options[name].cost > 1:
                self._give_second_chances()
                name = self._first_waiting() or name
            added = self._with(self.best, name)
            if added is not None and added not in self.values and not self.is_hopeless(added):
                return added
            self._waiting.remove(name)
        self._give_second_chances()
        return self._most_promising() if self._first_waiting() is None else self.propose()

    def tell(self, candidate: Candidate, value: float | None) -> None:
        """Say what a combination came to; None: it could not be measured."""
        before = self.values.get(self.best) if self.climbed else None
        self.values[candidate] = value
        if value is not None and (before is None or value < before * (1 - WORTH)):
            self.climbed.append(candidate)

    def grow(self, option: TuningOption, value: float) -> None:
        """Say what an option came to on top of the best, in the place of those of its axis, which are proposed no more:
        a larger batch."""
        kept = {name for name in self.best if self._options[name].axis != option.axis}
        for name in [name for name, other in self._options.items() if other.axis == option.axis]:
            self.leave_out(name)
        self._options[option.name] = option
        self._grown.append(option.name)
        self.tell(frozenset({*kept, option.name}), value)

    @property
    def best(self) -> Candidate:
        return self.climbed[-1] if self.climbed else BASELINE

    def ranking(self) -> list[Candidate]:
        """Return what was measured, the best first."""
        measured = {candidate: value for candidate, value in self.values.items() if value is not None}
        return sorted(measured, key=lambda each: (measured[each], len(each)))

    def change(self, candidate: Candidate) -> PlanChange:
        """Return all changes of a combination as one."""
        changes = [self._options[name].change for name in self._options if name in candidate]
        return PlanChange(
            settings={name: value for change in changes for name, value in change.settings.items()},
            loader={name: value for change in changes for name, value in change.loader.items()},
            params={name: value for change in changes for name, value in change.params.items()},
            feed=next((change.feed for change in changes if change.feed is not None), None),
        )

    def cost(self, candidate: Candidate) -> float:
        """Return how many times as long a trial of it takes as others do."""
        return self._options[self.costliest(candidate)].cost if candidate else 1.0

    def added(self, candidate: Candidate) -> Candidate:
        """Return what a trial of it has to compile or to try anew: what the best has already is in a compiler's cache,
        unless something that is added or left out makes that useless."""
        more, changed = candidate - self.best, candidate ^ self.best
        return candidate if any(self._options[name].recompiles for name in changed) else more

    def leave_out(self, name: str) -> None:
        """Propose nothing with this option any more."""
        self._left_out.add(name)
        self._waiting = [each for each in self._waiting if each != name]

    def costliest(self, candidate: Candidate) -> str:
        return max(candidate, key=lambda name: (self._options[name].cost, self._options[name].recompiles))

    def axis(self, name: str) -> str:
        """Return the setting that an option is a value of."""
        return self._options[name].axis

    def path(self, best: Candidate) -> list[Candidate]:
        """Return the combinations on the way to the best, the baseline first: each is a part of the one after it, which
        is better; a hundredth better, unless it is the best.

        Of those measured, the longest chain; what was never measured is not on it, nor a batch between two others.
        """
        ways: dict[Candidate, list[Candidate]] = {BASELINE: [BASELINE]}
        for each in reversed(self.ranking()):  # the slowest first: whatever may lie before it
            if each not in (BASELINE, best):
                ways[each] = self._way_to(each, ways, worth=WORTH)
        chain = self._way_to(best, ways, worth=0.0) or list(dict.fromkeys([BASELINE, best]))
        grown = set(self._grown)
        between = {
            middle for before, middle, after in zip(chain, chain[1:], chain[2:], strict=False)
            if before - grown == middle - grown == after - grown
        }  # fmt: skip
        return [each for each in chain if each not in between]

    def _way_to(self, end: Candidate, ways: Mapping[Candidate, list[Candidate]], *, worth: float) -> list[Candidate]:
        """Return the longest way that leads to a combination; none where it is no better than the baseline."""
        value = self.values.get(end) or 0.0
        found = [
            way for each, way in ways.items()
            if way and self._is_part(each, end) and value < (self.values[each] or 0.0) * (1 - worth)
        ]  # fmt: skip
        return [*max(found, key=lambda way: (len(way), -(self.values[way[-1]] or 0.0))), end] if found else []

    def _is_part(self, inner: Candidate, outer: Candidate) -> bool:
        """Whether a combination is a part of another. A batch is a part of a larger one."""
        larger = {name: self._grown[place + 1 :] for place, name in enumerate(self._grown)}
        return all(name in outer or not outer.isdisjoint(larger.get(name, ())) for name in inner)

    def _give_second_chances(self) -> None:
        """Let strong options wait again, once, that are not in the best and should be no worse than what is."""
        chosen = {self._options[name].axis: self._options[name].expected for name in self.best}
        again = [
            name for name, option in self._options.items()
            if option.expected >= max(STRONG, chosen.get(option.axis, 0.0))
            and name not in self._had_second_chance | self.best | self._left_out
        ]  # fmt: skip
        self._had_second_chance.update(name for name in self._options if self._options[name].expected >= STRONG)
        self._waiting = self._in_order(dict.fromkeys([*again, *self._waiting]))

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """Return what takes long to try after the rest; options come in the order of what they should gain."""
        return sorted(names, key=lambda name: self._options[name].cost > 1)

    def _with(self, candidate: Candidate, name: str) -> Candidate | None:
        option = self._options[name]
        if not candidate.issuperset(option.needs):
            return None
        kept = {each for each in candidate if self._options[each].axis != option.axis}
        return frozenset({*kept, name})

    def _first_waiting(self) -> str | None:
        """Return the strongest that waits. One of whose axis the best has a stronger one is left to the model:
        where the step is compiled it would be compiled anew, and it seldom helps."""
        return next((name for name in self._waiting if not self._is_surpassed(name)), None)

    def _is_surpassed(self, name: str) -> bool:
        option = self._options[name]
        chosen = [self._options[each] for each in self.best if self._options[each].axis == option.axis]
        return any(each.expected > option.expected for each in chosen)

    def is_hopeless(self, candidate: Candidate) -> bool:
        """Whether a part of it has failed. More settings on top do not mend what fails."""
        return any(value is None and failed <= candidate for failed, value in self.values.items())

    def _neighbours(self) -> Iterator[Candidate]:
        axes: dict[str, list[str]] = {}
        for option in self._options.values():
            axes.setdefault(option.axis, []).append(option.name)
        for count in range(1, MOST_CHANGED_AXES + 1):
            for changed in combinations(axes, count):
                kept = {name for name in self.best if self._options[name].axis not in changed}
                for chosen in product(*([None, *axes[axis]] for axis in changed)):
                    made = frozenset({*kept, *(name for name in chosen if name is not None)})
                    if all(made.issuperset(self._options[name].needs) for name in made):
                        yield made

    def _most_promising(self) -> Candidate | None:
        """Return the combination with the largest expected improvement on the best, for what it costs to try."""
        known = [candidate for candidate, value in self.values.items() if value is not None]
        open_to_us = [
            each
            for each in dict.fromkeys(self._neighbours())
            if each not in self.values and not each & self._left_out and not self.is_hopeless(each)
        ]
        if not open_to_us or not self.values[BASELINE]:
            return None
        baseline = self.values[BASELINE] or 1.0
        gains = np.array([math.log(baseline / max(self.values[each] or baseline, 1e-300)) for each in known])
        means, deviations = predicted(self._options, known, gains, open_to_us)
        hopes = [
            expected_improvement(mean, deviation, float(gains.max())) / self.cost(candidate)
            for candidate, mean, deviation in zip(open_to_us, means, deviations, strict=True)
        ]
        place = int(np.argmax(hopes))
        return open_to_us[place] if hopes[place] > HOPE else None


def simplest(values: Mapping[Candidate, float]) -> Candidate:
    """Return the fastest, or the smallest part of it that is nearly as fast: what gains less than `WORTH` is no part of
    an answer."""
    fastest = min(values, key=lambda each: (values[each], len(each)))
    parts = [each for each in values if each <= fastest and values[each] * (1 - WORTH) <= values[fastest]]
    return min(parts, key=len)


def predicted(
    options: Mapping[str, TuningOption], known: Sequence[Candidate], gains: np.ndarray, asked: Sequence[Candidate]
) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of the logarithm of each gain that is asked for, by what is known."""
    names = list(options)
    expected = np.array([options[name].expected for name in names])
    influence = np.array([options[name].influence for name in names])

    def rows(candidates: Sequence[Candidate]) -> np.ndarray:
        return np.array([[float(name in each) for name in names] for each in candidates])

    def covariance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Of what options do alone, and of what each pair that both sides have does beyond that."""
        pairs = ((one * influence**2 @ other.T) ** 2 - one * influence**4 @ other.T) / 2
        made: np.ndarray = ALONE**2 * (one @ other.T) + PAIR**2 * pairs
        return made

    seen, new = rows(known), rows(asked)
    inverse = np.linalg.inv(covariance(seen, seen) + NOISE**2 * np.eye(len(known)))
    weights = covariance(new, seen) @ inverse
    # What is expected of options is a hint for the order; half of it is believed until something is measured.
    means = new @ expected / 2 + weights @ (gains - seen @ expected / 2)
    variances = np.diag(covariance(new, new)) - np.einsum("ij,ij->i", weights, covariance(new, seen))
    return [float(mean) for mean in means], [math.sqrt(max(float(each), 1e-12)) for each in variances]


def expected_improvement(mean: float, deviation: float, best: float) -> float:
    """Return by how much a normal variable lies above `best` on average, counting nothing where it lies below."""
    normal = NormalDist()
    distance = (mean - best) / deviation
    return (mean - best) * normal.cdf(distance) + deviation * normal.pdf(distance)
