"""The random generators of Python and NumPy, which a user's own data may draw from, beside the framework's own."""

import random
from typing import Any

import numpy as np

from metalmark.training.base import State

PREFIX = "generator."


def seed_generators(seed: int, epoch: int) -> None:
    """Begin an epoch with the same numbers, whether it follows another or is the first of a resumed training."""
    random.seed(f"{seed} {epoch}")
    np.random.seed(np.random.SeedSequence([seed, epoch]).generate_state(4))


def generator_state() -> State:
    _, words, gauss = random.getstate()
    kept: dict[str, Any] = np.random.get_state(legacy=False)
    return {
        f"{PREFIX}python": np.array(words, np.uint32),
        # None is the usual: a second normal number waits only after the first of a pair.
        f"{PREFIX}python_gauss": np.array([] if gauss is None else [gauss], np.float64),
        f"{PREFIX}numpy": np.array(kept["state"]["key"], np.uint32),
        f"{PREFIX}numpy_position": np.array([kept["state"]["pos"], kept["has_gauss"]], np.int64),
        f"{PREFIX}numpy_gauss": np.array([kept["gauss"]], np.float64),
    }


def load_generators(state: State) -> None:
    words, gauss = state[f"{PREFIX}python"], state[f"{PREFIX}python_gauss"]
    random.setstate((3, tuple(words.tolist()), float(gauss[0]) if gauss.size else None))
    position, has_gauss = state[f"{PREFIX}numpy_position"].tolist()
    np.random.set_state(
        ("MT19937", state[f"{PREFIX}numpy"], position, has_gauss, float(state[f"{PREFIX}numpy_gauss"][0]))
    )
