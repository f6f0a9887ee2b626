"""What it gains to search settings and the batch size together, as `metalmark tune` does, instead of one after another.

python benchmarks/tuner_batches.py [--landscapes 300] [--spread 0.3]

In simulation, which takes seconds: landscapes in which settings gain by themselves and in pairs, samples per second
grow with the batch until the device is full, and half of the settings gain more or less on a large batch than on a
small one (`--spread`: by how much, as the standard deviation of a logarithm). Regret is the distance from the best
settings at the batch that a search ended with. Prints `name: value` lines; exit 1 where the search together is on
average more than half as far from the best as the other, or takes more than 1.4 times as many trials.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable
from itertools import combinations, product

from metalmark.model.plan import PlanChange
from metalmark.tune.batches import BatchClimb, batch_option
from metalmark.tune.search import BASELINE, Candidate, Search, TuningOption

NOISE = 0.02
FIRST_BATCH, LARGEST_BATCH = 32, 4096
EXPECTED = {"bfloat16": 0.5, "tf32": 0.3, "compile": 0.3, "fused": 0.1, "channels_last": 0.05, "threads": 0.02}
COSTLY, RECOMPILES = ("compile",), ("bfloat16", "tf32", "channels_last")
DTYPES = ("bfloat16", "tf32")
EVERY: list[Candidate] = [
    frozenset(name for name in names if name)
    for names in product(("", *DTYPES), *(("", name) for name in EXPECTED if name not in DTYPES))
]
MOST_REGRET, MOST_TRIALS = 0.5, 1.4
"""Of the search together, as shares of those of the search one after another."""

Gain = Callable[[Candidate, int], float]
"""The logarithm of what settings gain with a batch."""


def landscape(seed: int, spread: float) -> Gain:
    draw = random.Random(seed)
    alone = {name: draw.gauss(0.15, 0.3) for name in EXPECTED}
    pairs = {pair: draw.gauss(0, 0.15) if draw.random() < 0.5 else 0.0 for pair in combinations(EXPECTED, 2)}
    with_batch = {name: draw.gauss(0, spread) if draw.random() < 0.5 else 0.0 for name in EXPECTED}
    half_full = FIRST_BATCH * 2 ** draw.uniform(-1, 5)

    def gain(chosen: Candidate, batch: int) -> float:
        larger = 1 - (FIRST_BATCH / batch) ** 0.7
        settings = sum(alone[name] + with_batch[name] * larger for name in chosen)
        together = sum(value for pair, value in pairs.items() if chosen.issuperset(pair))
        full = math.log(batch / (batch + half_full)) - math.log(FIRST_BATCH / (FIRST_BATCH + half_full))
        return settings + together + full

    return gain


def batch_of(candidate: Candidate) -> int:
    return max((int(name.split()[1]) for name in candidate if name.startswith("batch ")), default=FIRST_BATCH)


def settings_of(candidate: Candidate) -> Candidate:
    return candidate & frozenset(EXPECTED)


class SimulatedTuner:
    """The search of a tuner, whose trials are figures with noise."""

    def __init__(self, gain: Gain, seed: int) -> None:
        self._gain, self._draw = gain, random.Random(f"noise/{seed}")
        self.search = Search([
            TuningOption(
                name=name, axis="dtype" if name in DTYPES else name, change=PlanChange(settings={name: True}),
                expected=expected, cost=2.0 if name in COSTLY else 1.0, recompiles=name in RECOMPILES,
            )
            for name, expected in EXPECTED.items()
        ])  # fmt: skip
        self.trials = 0

    def run(self, *, together: bool) -> Candidate:
        self._climb()
        while self._climb_batches() and together:
            if not self._climb():
                break
        return self.search.best

    def _measure(self, candidate: Candidate) -> float:
        self.trials += 1
        return math.exp(self._draw.gauss(0, NOISE) - self._gain(settings_of(candidate), batch_of(candidate)))

    def _climb(self) -> bool:
        before = self.search.best
        while (candidate := self.search.propose()) is not None:
            self.search.tell(candidate, self._measure(candidate))
        return self.search.best != before

    def _climb_batches(self) -> bool:
        before, size = self.search.best, batch_of(self.search.best)
        climb = BatchClimb(size)
        climb.tell(size, self.search.values[before], None)
        while (batch := climb.propose()) is not None and batch <= LARGEST_BATCH:
            larger = batch_option(batch)
            value = self._measure(settings_of(before) | {larger.name})
            climb.tell(batch, value, None)
            if climb.best == batch:
                self.search.grow(larger, value)
        return self.search.best != before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=int, default=300)
    parser.add_argument("--spread", type=float, default=0.3)
    given = parser.parse_args()
    mean: dict[str, tuple[float, float]] = {}
    for name, together in (("apart", False), ("together", True)):
        regrets, trials = [], []
        for seed in range(given.landscapes):
            gain = landscape(seed, given.spread)
            tuner = SimulatedTuner(gain, seed)
            best = tuner.run(together=together)
            top = max(gain(each, batch_of(best)) for each in (BASELINE, *EVERY))
            regrets.append(math.expm1(top - gain(settings_of(best), batch_of(best))))
            trials.append(tuner.trials)
        mean[name] = statistics.fmean(regrets), statistics.fmean(trials)
        print(f"{name}_regret: {mean[name][0]:.4f}")
        print(f"{name}_over_5_percent: {sum(regret > 0.05 for regret in regrets)} of {given.landscapes}")
        print(f"{name}_trials: {mean[name][1]:.1f}")
    regret, trials_ratio = (together / apart for apart, together in zip(*mean.values(), strict=True))
    print(f"trials_ratio: {trials_ratio:.2f}")
    print(f"regret_ratio: {regret:.2f}")
    return 0 if regret <= MOST_REGRET and trials_ratio <= MOST_TRIALS else 1


if __name__ == "__main__":
    sys.exit(main())
