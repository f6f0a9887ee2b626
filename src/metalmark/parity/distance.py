"""How far one array is from another, and what rounding alone makes of it. Pure data."""

from msgspec import Struct

from metalmark.model.parity import Quantity
from metalmark.model.plan import Dtype

ROUNDING = {Dtype.FLOAT32: 2.0**-24, Dtype.TF32: 2.0**-11, Dtype.BFLOAT16: 2.0**-9, Dtype.FLOAT16: 2.0**-11}
"""The largest relative error of rounding to each dtype."""
LOW = (Dtype.BFLOAT16, Dtype.FLOAT16)
"""Dtypes that the reference's own device may compute in too, so that their noise can be measured there."""


class Key(Struct, frozen=True, kw_only=True):
    """Which array: a quantity of a layer or parameter, after so many steps."""

    quantity: Quantity
    name: str
    steps: int = 0


class Distance(Struct, frozen=True, kw_only=True):
    """How far one array is from the truth. Absolute figures: what they are relative to is `rms`."""

    key: Key
    elements: int
    rms: float
    """The root mean square of the truth."""
    typical: float | None
    """The root mean square of the differences; None: not finite."""
    largest: float | None
    scale: float | None
    """The multiple of the truth that is nearest to the array, less 1; None where the truth is all zero."""
    where: tuple[int, ...] = ()
