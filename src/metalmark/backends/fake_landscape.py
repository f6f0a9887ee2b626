"""What settings do to a step of the software device, where a landscape is asked for: known gains, alone and in pairs,
and combinations that fail. A tuner is judged on it, since the best of it can be computed."""

import math
import random
from itertools import combinations

from metalmark.model.plan import Settings

ALONE_MEAN, ALONE_SPREAD = 0.2, 0.3
"""Of the logarithm of what a setting gains by itself: some help much, some hurt."""
PAIR_SPREAD, PAIR_SHARE = 0.15, 0.5
"""Of what two settings gain together beyond that, and how many pairs act on each other at all."""
ALONE_FAILS, PAIR_FAILS = 0.04, 0.06


def landscape_gain(seed: int, settings: Settings) -> float | None:
    """Return how many times as fast as with the default settings a step is; None: this combination fails. Landscape 0
    is flat."""
    if not seed:
        return 1.0
    chosen = sorted(f"{name}={value}" for name, value in settings.changed().items())
    total = 0.0
    for name in chosen:
        draw = random.Random(f"{seed}/{name}")
        if draw.random() < ALONE_FAILS:
            return None
        total += draw.gauss(ALONE_MEAN, ALONE_SPREAD)
    for pair in combinations(chosen, 2):
        draw = random.Random(f"{seed}/{'+'.join(pair)}")
        if draw.random() < PAIR_FAILS:
            return None
        if draw.random() < PAIR_SHARE:
            total += draw.gauss(0, PAIR_SPREAD)
    return math.exp(total)
