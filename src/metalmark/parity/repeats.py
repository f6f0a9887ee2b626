"""The same step again and again: what a race corrupts, it corrupts seldom."""

import math

import numpy as np

from metalmark.model.parity import Quantity
from metalmark.parity.distance import Distance, Key
from metalmark.parity.job import Repeating


class Repeats:
    """Compares each array of a step with that of the first time."""

    def __init__(self) -> None:
        self._first: dict[Key, np.ndarray] = {}
        self._worst: dict[Key, Distance] = {}
        self._sizes: dict[Key, list[float]] = {}

    def see(self, name: str, array: np.ndarray) -> None:
        key = Key(quantity=Quantity.REPEAT, name=name)
        if key not in self._first:
            self._first[key] = np.array(array, np.float64)
            return
        difference = np.abs(array - self._first[key])
        if not difference.size:
            return
        largest = float(difference.max())
        self._sizes.setdefault(key, []).append(largest)
        # Written so that NaN is the worst there is.
        if key not in self._worst or not largest <= (self._worst[key].largest or 0.0):
            self._worst[key] = self._distance(key, difference, largest)

    def line(self, repeats: int) -> Repeating:
        usual = tuple(float(np.median(self._sizes[key])) for key in self._worst)
        return Repeating(repeats=repeats, worst=tuple(self._worst.values()), usual=usual)

    def _distance(self, key: Key, difference: np.ndarray, largest: float) -> Distance:
        place = int(np.argmax(np.where(np.isfinite(difference), difference, np.inf)))
        return Distance(
            key=key, elements=difference.size, rms=float(np.sqrt(np.mean(np.square(self._first[key])))), typical=None,
            scale=None, largest=largest if math.isfinite(largest) else None,
            where=tuple(int(index) for index in np.unravel_index(place, difference.shape)),
        )  # fmt: skip
