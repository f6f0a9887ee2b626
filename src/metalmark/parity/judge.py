"""From distances to a verdict: how far the candidate is from the truth, in units of the reference's own noise.

Pure functions over the lines that the two sides wrote.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from metalmark.model.parity import Compared, Quantity, ShortTraining, Statistic
from metalmark.model.plan import Dtype
from metalmark.parity.distance import ROUNDING, Distance, Key
from metalmark.parity.job import Curved, Dropping, Line, MeasuredArray, Repeating

TINY = 1e-30
"""Stands for no noise at all, where the truth is zero: any difference is outside."""
LIMITS = {Statistic.TYPICAL: 12.0, Statistic.LARGEST: 20.0, Statistic.SCALE: 12.0}
"""How many sigmas are allowed. Sigma is measured for each quantity by itself; benchmarks/parity_faults.py shows how far
faultless runs come and how far faults are outside."""
OF_FEW = {1: 636620.0, 2: 1000.0, 3: 130.0, 4: 49.5, 5: 28.5, 6: 20.0, 7: 15.8, 8: 13.3}
"""How many sigmas are allowed where so few numbers tell what sigma is: what Student's t passes once in a million times.
A loss is one number, and each draw of it another; the two gradients of a bias of two classes are opposite."""
CURVE_LIMIT, DROPOUT_LIMIT = 12.0, 6.0
"""Three seeds tell the spread of a curve only roughly: by chance alone, one check in a hundred passes 6 sigmas."""
REPEAT_LIMIT = 1000.0
"""A repeated step may differ by the order in which threads add up, which is a few roundings of the whole array; what a
race leaves behind is of the size of the values themselves."""
CANCELLED, CANCELLED_FACTOR = 0.5, 10.0
"""Where the noise is larger than this share of the truth, the truth is what is left of terms that cancel: the gradient
of a bias before a BatchNorm is zero but for rounding. It has no scale, and its noise is known only roughly."""
OPTIMIZER_ROUNDINGS = 100.0
"""Bias corrections such as 1 - 0.999 ** step lose digits in float32: fused optimisers were seen 2e-6 off in scale."""
STATISTIC_ROUNDINGS = 16.0
"""A running statistic is a sum over all samples and places of a batch, and a kernel may add them up one after another
in float32: PyTorch's for the CPU in channels-last was 1.5e-6 off with 16,384 values, and 6.3e-6 with 100,352."""
TURNED = 2.0
"""So many elements of a parameter may go the other way by chance, beside those whose gradient is within its noise."""
NEAR_ZERO = 2.0
"""How dense gradients lie around zero: the share of them that is smaller than a share of their root mean square, by
that share. It is 0.8 for normal ones and more for most networks'."""
LEAST_ELEMENTS = 200
"""A dropout layer of fewer elements is not judged by its share."""
FUNCTIONS = ROUNDING[Dtype.FLOAT32]
"""What a scale is always allowed as its noise: a GPU's functions, such as its exponential, err by a unit or two of
float32's last place, and always to the same side. Attention on an H200 was 5e-7 off in scale so, in each layer."""
MOST_ROUNDINGS = 8.0
"""The largest element of an array may be so many times its root mean square."""


def judge(reference: Iterable[Line], candidate: Iterable[Line], dtype: Dtype) -> tuple[Compared, ...]:
    """Compare all that both sides have, in the order in which it was computed."""
    reference, candidate = tuple(reference), tuple(candidate)
    draws: dict[Key, list[MeasuredArray]] = defaultdict(list)
    for line in reference:
        if isinstance(line, MeasuredArray):
            draws[line.distance.key].append(line)
    found = []
    gradient_noise: dict[str, float] = {}
    alignment = _alignment(draws, dtype)
    for line in candidate:
        if isinstance(line, MeasuredArray):
            key = line.distance.key
            known = NetworkNoise(gradient=gradient_noise.get(key.name, 0.0), alignment=alignment.get(key.quantity, 0.0))
            rows = _judged(line.distance, draws.get(key, []), dtype, known)
            if key.quantity is Quantity.GRADIENT:
                gradient_noise[key.name] = rows[0].sigma
            found.append(max(rows, key=lambda row: row.sigmas / row.limit))
    found += [row for line in candidate if isinstance(line, Dropping) for row in _dropout(line)]
    found += [row for line in candidate if isinstance(line, Repeating) for row in _repeated(line, dtype)]
    found += _curves(reference, candidate, ROUNDING[dtype])
    return tuple(sorted(found, key=_moment))


def _moment(row: Compared) -> tuple[int, int]:
    """When it was computed. The loss of a later step stands behind the updates that led to it."""
    later = row.quantity is Quantity.LOSS and row.steps
    return list(Quantity).index(Quantity.UPDATE if later else row.quantity), row.steps


def variations(reference: Iterable[Line]) -> tuple[str, ...]:
    """Name the variations of the reference that gave the noise."""
    return tuple(dict.fromkeys(line.draw for line in reference if isinstance(line, MeasuredArray)))


class NetworkNoise(NamedTuple):
    """What other arrays of the same network tell about the noise of one."""

    gradient: float
    """The noise of the parameter's gradient, as a share of its root mean square."""
    alignment: float
    """How much of the noise of such arrays lies along the truth itself, as a share of it."""


def _alignment(draws: dict[Key, list[MeasuredArray]], dtype: Dtype) -> dict[Quantity, float]:
    """Return for each quantity how much of an array's noise lies along the array: the noise of its scale as a share of
    that of its elements. Of one array, a few draws tell it only roughly, and may by chance be near zero; what they have
    in common tells it for all arrays: how many samples and sums the noise comes from."""
    shares: dict[Quantity, list[float]] = defaultdict(list)
    for key, each in draws.items():
        for distance, _ in _chosen(each, dtype):
            if distance.elements > 1 and distance.scale is not None and distance.typical:
                shares[key.quantity].append(min(1.0, abs(distance.scale) * distance.rms / distance.typical) ** 2)
    return {quantity: math.sqrt(fmean(found)) for quantity, found in shares.items()}


def _judged(distance: Distance, draws: Sequence[MeasuredArray], dtype: Dtype, known: NetworkNoise) -> list[Compared]:
    """Judge an array by each statistic, the typical difference first."""
    quantity, rounding, chosen = distance.key.quantity, ROUNDING[dtype], _chosen(draws, dtype)
    if quantity is Quantity.OPTIMIZER:
        # Optimisers keep their parameters in float32 whatever the dtype of the products.
        rounding = ROUNDING[Dtype.FLOAT32] * OPTIMIZER_ROUNDINGS
        chosen = [(draw.distance, 1.0) for draw in draws if not draw.lowered] or [(d.distance, 1.0) for d in draws]
    least = {
        Statistic.TYPICAL: distance.rms * rounding / 2,
        Statistic.LARGEST: distance.rms * rounding * min(math.sqrt(max(1, distance.elements)), MOST_ROUNDINGS),
        Statistic.SCALE: max(rounding / 2, FUNCTIONS),
    }
    if quantity is Quantity.STATISTIC:
        summed = ROUNDING[Dtype.FLOAT32] / 2 * STATISTIC_ROUNDINGS
        least = {
            statistic: max(size, summed * (1.0 if statistic is Statistic.SCALE else distance.rms))
            for statistic, size in least.items()
        }
    if quantity is Quantity.UPDATE:
        turned = 2 * math.sqrt(_turned(distance.elements, known.gradient))
        for statistic, size in ((Statistic.TYPICAL, turned), (Statistic.LARGEST, 4.0)):
            least[statistic] = max(least[statistic], size * distance.rms / LIMITS[statistic])
    sizes = {
        Statistic.TYPICAL: (distance.typical, [(d.typical, f) for d, f in chosen]),
        Statistic.LARGEST: (distance.largest, [(d.largest, f) for d, f in chosen]),
    }
    rows = [_row(distance, kind, value, noise, least[kind]) for kind, (value, noise) in sizes.items()]
    few = OF_FEW.get(len(chosen) * max(1, distance.elements - 1), 0.0)
    if rows[0].sigma > CANCELLED:
        return [msgspec.structs.replace(row, limit=max(row.limit, few) * CANCELLED_FACTOR) for row in rows]
    # A few elements of an update that turn round shorten the whole. What scales a step is seen in the gradient and in
    # what the optimiser makes of it.
    if distance.scale is not None and distance.elements > 1 and quantity is not Quantity.UPDATE:
        noise = [(d.scale, f) for d, f in chosen]
        smallest = max(least[Statistic.SCALE], known.alignment * rows[0].sigma)
        rows.append(_row(distance, Statistic.SCALE, abs(distance.scale), noise, smallest))
    return [msgspec.structs.replace(row, limit=max(row.limit, few)) for row in rows]


def _turned(elements: int, gradient_noise: float) -> float:
    """Return the share of elements that may be updated in the other direction without a fault.

    The first steps of Adam have one size for all elements, so where a gradient is within its noise, rounding decides
    which way its element goes.
    """
    return min(1.0, TURNED / max(1, elements) + NEAR_ZERO * LIMITS[Statistic.TYPICAL] * gradient_noise)


def _chosen(draws: Sequence[MeasuredArray], dtype: Dtype) -> list[tuple[Distance, float]]:
    """Return the variations that have the candidate's precision, each with the factor that brings it there."""
    if dtype is Dtype.FLOAT32:
        return [(draw.distance, 1.0) for draw in draws]
    lowered = [(draw.distance, 1.0) for draw in draws if draw.lowered]
    computed = [(draw.distance, 1.0) for draw in draws if draw.lowered and not draw.draw.startswith("rounding")]
    if computed:
        return computed
    # The reference has no such arithmetic. What its float32 loses by rounding, this dtype loses that much more of.
    factor = ROUNDING[dtype] / ROUNDING[Dtype.FLOAT32]
    return lowered + [(draw.distance, factor) for draw in draws if not draw.lowered]


def _row(
    distance: Distance,
    statistic: Statistic,
    value: float | None,
    noise: Sequence[tuple[float | None, float]],
    least: float,
) -> Compared:
    """`least`: what one rounding of the result itself makes, which a variation may by chance not have."""
    relative = 1.0 if statistic is Statistic.SCALE else distance.rms or 1.0
    # A value can't be further off by rounding than it is large, however the factor multiplies it; but one that cancels
    # to nothing is as far off as its terms are large.
    most = 1.0 if statistic is Statistic.SCALE else max(distance.rms, TINY)
    sizes = [(abs(each), factor) for each, factor in noise if each is not None]
    squares = [
        (min(size * factor, most) if factor > 1 and size < most else size * factor) ** 2 for size, factor in sizes
    ]
    sigma = max(math.sqrt(fmean(squares)) if squares else 0.0, least, TINY)
    key = distance.key
    return Compared(
        quantity=key.quantity, name=key.name, steps=key.steps, statistic=statistic,
        distance=None if value is None else value / relative, sigma=sigma / relative, limit=LIMITS[statistic],
        where=distance.where,
    )  # fmt: skip


def _dropout(line: Dropping) -> Iterable[Compared]:
    """The share that was dropped, against a binomial's; the rest must be scaled up by what is missing."""
    if line.elements < LEAST_ELEMENTS or not 0 < line.rate < 1:
        return
    sigma = math.sqrt(line.rate * (1 - line.rate) / line.elements)
    yield Compared(
        quantity=Quantity.DROPOUT,
        name=line.name,
        distance=abs(line.share - line.rate),
        sigma=sigma,
        limit=DROPOUT_LIMIT,
    )
    wanted = 1 / (1 - line.rate)
    if line.scale is not None and line.share > 0:
        yield Compared(
            quantity=Quantity.DROPOUT, name=line.name, statistic=Statistic.SCALE,
            distance=abs(line.scale / wanted - 1), sigma=2.0**-8, limit=DROPOUT_LIMIT,
        )  # fmt: skip


def _repeated(line: Repeating, dtype: Dtype) -> Iterable[Compared]:
    for worst, usual in zip(line.worst, line.usual, strict=True):
        scale = worst.rms or 1.0
        sigma = max(usual, scale * ROUNDING[dtype], TINY) / scale
        yield Compared(
            quantity=Quantity.REPEAT, name=worst.key.name, statistic=Statistic.LARGEST,
            distance=None if worst.largest is None else worst.largest / scale, sigma=sigma,
            limit=REPEAT_LIMIT if dtype is Dtype.FLOAT32 else LIMITS[Statistic.LARGEST], where=worst.where,
        )  # fmt: skip


def curves_of(lines: Iterable[Line], draw: str = "") -> tuple[ShortTraining, ...]:
    return tuple(line.curve for line in lines if isinstance(line, Curved) and line.draw == draw)


def _curves(reference: Sequence[Line], candidate: Sequence[Line], rounding: float) -> list[Compared]:
    """Compare short trainings of the same seeds. The noise is how far two trainings of the reference are apart that
    differ in a rounding error and in the random numbers of dropout."""
    first, second, mine = curves_of(reference), curves_of(reference, "rounding"), curves_of(candidate)
    if not mine or len(mine) != len(first) or len(second) != len(first):
        return []
    losses = [[_late_loss(curve) for curve in each] for each in (first, second, mine)]
    # Of so few seeds the spread is known only roughly: a thousandth of a loss is never worth an alarm, nor is what one
    # rounding makes of it, since the candidate rounds in each step and the reference's second training began so.
    floor = max(1e-3 / CURVE_LIMIT, rounding) * math.sqrt(len(first)) * abs(fmean(losses[0]))
    rows = [_curve_row(Quantity.CURVE, *losses, least=floor)]
    if all(curve.accuracy is not None for curve in (*first, *second, *mine)):
        shares = [[curve.accuracy or 0.0 for curve in each] for each in (first, second, mine)]
        middle = min(0.95, max(0.05, fmean(shares[0])))
        counted = max(1, first[0].held_out)
        rows.append(_curve_row(Quantity.ACCURACY, *shares, least=math.sqrt(middle * (1 - middle) / counted)))
    return rows


def _curve_row(
    quantity: Quantity, first: Sequence[float], second: Sequence[float], mine: Sequence[float], *, least: float
) -> Compared:
    count = len(first)
    size = max(abs(fmean(first)), TINY)
    spread = math.sqrt(fmean((b - a) ** 2 for a, b in zip(first, second, strict=True)))
    sigma = max(spread, least, TINY) / math.sqrt(count)
    distance = abs(fmean(m - a for m, a in zip(mine, first, strict=True)))
    finite = math.isfinite(distance)
    relative = size if quantity is Quantity.CURVE else 1.0
    return Compared(
        quantity=quantity, name="", steps=0, distance=distance / relative if finite else None, sigma=sigma / relative,
        limit=CURVE_LIMIT,
    )  # fmt: skip


def _late_loss(curve: ShortTraining) -> float:
    """The mean loss of the second half."""
    late = curve.losses[len(curve.losses) // 2 :]
    return fmean(late) if late else math.nan
