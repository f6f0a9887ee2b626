"""What scripts have in common whose arrays are NumPy's: those of Keras and MLX."""

from metalmark.parity.networks import TensorPart

TOTAL = "np.abs(each[name]).sum()"
DIFFERENCE = "np.sqrt(np.square(found - wanted).mean() / max(np.square(wanted).mean(), 1e-60))"
ENDING = "raise SystemExit(int(differs))"


def direction(shape: str) -> str:
    """Return the expression of a random direction in the space of the outputs, whose shape is given as one too. A sum
    of them along it is what is differentiated: a plain one has the same gradient for all, which hides faults."""
    return f'np.random.standard_normal({shape}).astype("float32")'


def normal(shape: tuple[int, ...], size: float) -> str:
    """Return the expression of normal numbers whose root mean square is about `size`."""
    return f'{size:.6g} * np.random.standard_normal({shape}).astype("float32")'


def random(part: TensorPart) -> str:
    """Return the expression of random numbers like those of an array."""
    if part.is_floating:
        return f'np.random.standard_normal({part.shape}).astype("float32")'
    return f'np.random.randint(0, {max(1, part.high)}, {part.shape}).astype("int32")'
