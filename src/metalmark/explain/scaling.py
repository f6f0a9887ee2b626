"""What a step costs at any batch size: T(b) = max(floor, fixed + marginal * b).

The floor is what the host needs for a step, whatever the device has to do; a device that computes at once, as the CPU
does, has none, since its times add up.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from metalmark.model.explanation import Experiment

LEAST_ERROR = 0.01
"""No time is trusted beyond this share: two sessions of one process differ by as much."""
FLAT = 1.12
"""Times that differ by less, over batch sizes that differ by a factor of two, are the same floor."""
COSTS_A_PARAMETER = 4.0
"""By how much a floor must improve the fit (in squared errors) before it is believed."""


class BatchTime(Struct, frozen=True):
    """A resident step at one batch size."""

    batch: float
    seconds: float
    error_s: float


class BatchCost(Struct, frozen=True, kw_only=True):
    """The fit, and how well it is known at the batch size that was asked for."""

    batch: float
    """As asked."""
    floor_s: float
    """What a step never falls below; 0: there is none, or it was never reached."""
    intercept_s: float
    """Where the line would be for no samples."""
    marginal_s: float
    """For each further sample."""
    error_s: float
    """Of the line at the batch size that was asked for."""
    intercept_error_s: float
    reached: bool
    """Whether the batch size as asked is on the line; else on the floor."""
    sloped: bool
    """Whether any batch was large enough for the line to be seen."""
    points: tuple[BatchTime, ...]

    @property
    def fixed_s(self) -> float:
        """What a step costs however small its batch is."""
        return max(self.floor_s, self.intercept_s)

    def line_s(self, batch: float) -> float:
        """What the samples and what is fixed with them take, without the floor."""
        return self.intercept_s + self.marginal_s * batch

    def seconds(self, batch: float) -> float:
        return max(self.floor_s, self.line_s(batch))


def batch_cost(
    batch: float, resident: Experiment, others: Sequence[Experiment], *, asynchronous: bool = True
) -> BatchCost | None:
    """Fit the resident step and those of other batch sizes; None where there is only one."""
    return fit(batch, batch_times(batch, resident, others), asynchronous=asynchronous)


def batch_times(batch: float, resident: Experiment, others: Sequence[Experiment]) -> tuple[BatchTime, ...]:
    """Return the times by batch size, each corrected by how the baseline beside it was off."""
    if not resident.seconds:
        return ()
    points = {float(batch): BatchTime(float(batch), resident.seconds, resident.error_s)}
    for each in others:
        sizes = [value for value in each.change.params.values() if isinstance(value, int | float)]
        if each.seconds and len(sizes) == 1 and sizes[0] > 0 and float(sizes[0]) not in points:
            scale = resident.seconds / each.baseline_s if each.baseline_s else 1.0
            points[float(sizes[0])] = BatchTime(float(sizes[0]), each.seconds * scale, each.error_s * scale)
    return tuple(sorted(points.values(), key=lambda point: point.batch))


def fit(batch: float, points: Sequence[BatchTime], *, asynchronous: bool = True) -> BatchCost | None:
    """Return the best of all fits in which the smallest batches are on the floor and the others on the line."""
    if len(points) < 2:
        return None
    fits = [_split(batch, points, flat) for flat in range(len(points) + 1 if asynchronous else 1)]
    return min((each for each in fits if each is not None), key=_badness)


def _badness(cost: BatchCost) -> float:
    squares = sum(((point.seconds - cost.seconds(point.batch)) / _error(point)) ** 2 for point in cost.points)
    return squares + COSTS_A_PARAMETER * ((cost.floor_s > 0) + (cost.marginal_s > 0) + (cost.intercept_s > 0))


def _error(point: BatchTime) -> float:
    return max(point.error_s / 2, LEAST_ERROR * point.seconds, 1e-12)


def _split(batch: float, points: Sequence[BatchTime], flat: int) -> BatchCost | None:
    low, high = points[:flat], points[flat:]
    floor_s = _mean(low) if low else 0.0
    if not high:
        error_s = max(_error(point) for point in points)
        return BatchCost(
            batch=batch, floor_s=floor_s, intercept_s=0.0, marginal_s=0.0, error_s=floor_s + error_s,
            intercept_error_s=floor_s, reached=False, sloped=False, points=tuple(points),
        )  # fmt: skip
    if len(high) == 1:
        return _one_on_the_line(batch, points, floor_s)
    intercept_s, marginal_s = _line(high)
    if low and (marginal_s <= 0 or intercept_s + marginal_s * low[-1].batch > FLAT * floor_s):
        return None  # what is called a floor lies below the line
    if low and len(high) == 2 and high[0].seconds <= FLAT * floor_s:
        return None  # it may be on the floor as well, and tells nothing of the line
    # A bend that no line follows is an error too: as far as the line misses what it goes through.
    missed = max(abs(point.seconds - intercept_s - marginal_s * point.batch) / point.seconds for point in high)
    bent_s = missed * (intercept_s + marginal_s * batch)
    return BatchCost(
        batch=batch, floor_s=floor_s, intercept_s=intercept_s, marginal_s=marginal_s,
        error_s=_unsure_s(batch, high) + bent_s, intercept_error_s=_unsure_s(0.0, high) + bent_s,
        reached=not low or intercept_s + marginal_s * batch >= floor_s / FLAT, sloped=marginal_s > 0,
        points=tuple(points),
    )  # fmt: skip


def _unsure_s(batch: float, points: Sequence[BatchTime]) -> float:
    """How far the line moves at a batch size if each of its points were off by its error."""
    here_s = _at(batch, points)
    moved_s = []
    for index, point in enumerate(points):
        other = BatchTime(point.batch, point.seconds + _error(point), point.error_s)
        moved_s.append(_at(batch, [*points[:index], other, *points[index + 1 :]]) - here_s)
    return math.hypot(*moved_s)


def _one_on_the_line(batch: float, points: Sequence[BatchTime], floor_s: float) -> BatchCost | None:
    """Only the largest batch is beyond the floor. The line goes through it, and below the floor before it: that leaves
    room for lines from one through the origin to the one that meets the floor there, of which the middle is taken."""
    last, before = points[-1], points[-2]
    if last.seconds <= FLAT * floor_s:
        return None
    steepest = last.seconds / last.batch
    flattest = min(steepest, (last.seconds - floor_s) / (last.batch - before.batch))
    marginal_s = (steepest + flattest) / 2
    spread = (steepest - flattest) / 2
    return BatchCost(
        batch=batch, floor_s=floor_s, intercept_s=last.seconds - marginal_s * last.batch, marginal_s=marginal_s,
        error_s=spread * (last.batch - batch) + _error(last) * batch / last.batch,
        intercept_error_s=spread * last.batch, reached=batch == last.batch, sloped=True, points=tuple(points),
    )  # fmt: skip


def _at(batch: float, points: Sequence[BatchTime]) -> float:
    intercept_s, marginal_s = _line(points)
    return intercept_s + marginal_s * batch


def _line(points: Sequence[BatchTime]) -> tuple[float, float]:
    """Weighted least squares, in which neither what is fixed nor what a sample adds is negative."""
    weights = [1 / _error(point) ** 2 for point in points]
    total = sum(weights)
    mean_b = sum(w * p.batch for w, p in zip(weights, points, strict=True)) / total
    mean_s = sum(w * p.seconds for w, p in zip(weights, points, strict=True)) / total
    above = sum(w * (p.batch - mean_b) * (p.seconds - mean_s) for w, p in zip(weights, points, strict=True))
    below = sum(w * (p.batch - mean_b) ** 2 for w, p in zip(weights, points, strict=True))
    slope = above / below if below else 0.0
    if slope <= 0:
        return mean_s, 0.0
    if mean_s - slope * mean_b >= 0:
        return mean_s - slope * mean_b, slope
    squares = sum(w * p.batch**2 for w, p in zip(weights, points, strict=True))
    return 0.0, sum(w * p.batch * p.seconds for w, p in zip(weights, points, strict=True)) / squares


def _mean(points: Sequence[BatchTime]) -> float:
    weights = [1 / _error(point) ** 2 for point in points]
    return sum(w * p.seconds for w, p in zip(weights, points, strict=True)) / sum(weights)
