"""What must not matter, changed: values moved by a rounding error, samples in another order, arrays spread out."""

import numpy as np

from metalmark.feeds.leaves import Arrays


def perturb(array: np.ndarray, rounding: float, rng: np.random.Generator) -> np.ndarray:
    """Move each value by a random share of itself, at most that of a rounding error. Integers stay."""
    if array.dtype.kind != "f":
        return array
    moved = array.astype(np.float64) * (1 + rounding * rng.uniform(-1, 1, array.shape))
    return moved.astype(array.dtype)


def permute(arrays: Arrays, seed: int) -> Arrays:
    """Put the samples of a batch into another order, the same for all of its arrays."""
    size = len(arrays[0]) if arrays and arrays[0].ndim else 0
    if any(not array.ndim or len(array) != size for array in arrays):
        return arrays
    order = np.random.default_rng([seed, size]).permutation(size)
    return tuple(array[order] for array in arrays)


def spread_out(array: np.ndarray) -> np.ndarray:
    """Return the same values as a view of every second element of a larger array."""
    if not array.ndim:
        return array
    larger = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    larger[..., ::2] = array
    return larger[..., ::2]


def is_spread_out(array: np.ndarray) -> bool:
    """Whether an array is such a view, and not one whose axes are in another order."""
    contiguous = np.empty(0, array.dtype).itemsize * np.cumprod((1, *array.shape[:0:-1]))[::-1]
    return array.size > 1 and array.strides == tuple(2 * contiguous)
