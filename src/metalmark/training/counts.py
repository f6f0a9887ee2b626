"""What is counted over all validation samples: classes, labels and errors."""

import math

import numpy as np

from metalmark.model.run import Absent

TOP = 5
MOST_CLASSES = 2048
"""Of more classes the overlap of each pair is not kept: the table of them would be larger than a batch."""


class ClassCounts:
    """Scores for each class against the number of the right one, per sample, position or pixel."""

    def __init__(self, *, ranked: bool) -> None:
        self._ranked = ranked
        self._counted = self._right = self._near = self._classes = 0
        self._pairs: np.ndarray | None = None

    def add(self, scores: np.ndarray, targets: np.ndarray, *, overlap: bool = False) -> None:
        self._classes = classes = scores.shape[-1]
        rows, wanted = scores.reshape(-1, classes), targets.reshape(-1).astype(np.int64)
        # Losses leave such positions out (-100, -1, 255), so they are neither right nor wrong.
        known = (wanted >= 0) & (wanted < classes)
        if not known.all():
            rows, wanted = rows[known], wanted[known]
        self._counted += len(wanted)
        if self._ranked:
            ranks = _ranks(rows, wanted)
            self._right += int((ranks == 0).sum())
            self._near += int((ranks < TOP).sum())
            return
        chosen = rows.argmax(axis=1)
        self._right += int((chosen == wanted).sum())
        if overlap and classes <= MOST_CLASSES:
            pairs = np.bincount(wanted * classes + chosen, minlength=classes * classes)
            self._pairs = pairs if self._pairs is None else self._pairs + pairs

    @property
    def accuracy(self) -> float | Absent:
        return self._right / self._counted if self._counted else Absent("no target is the number of a class")

    @property
    def top5(self) -> float | Absent:
        if not self._ranked:
            return Absent("it is counted where each sample has one class")
        if self._classes <= TOP:
            return Absent(f"there are {self._classes} classes: one of the first {TOP} is always right")
        return self._near / self._counted if self._counted else Absent("no target is the number of a class")

    @property
    def mean_iou(self) -> float | None:
        """The mean over the classes that occur of what is both over what is either."""
        if self._pairs is None:
            return None
        pairs = self._pairs.reshape(self._classes, self._classes)
        both = np.diagonal(pairs)
        either = pairs.sum(axis=0) + pairs.sum(axis=1) - both
        return float((both[either > 0] / either[either > 0]).mean()) if either.any() else None


class LabelCounts:
    """Outputs that mean yes or no, each by itself. Whether they are probabilities or logits, all of them tell
    together: what lies outside of 0 to 1 is no probability."""

    def __init__(self) -> None:
        self._by_threshold = {0.5: np.zeros(4, np.int64), 0.0: np.zeros(4, np.int64)}
        self._rows = {0.5: 0, 0.0: 0}
        self._samples = self._labels = 0
        self._probabilities = True

    def add(self, scores: np.ndarray, targets: np.ndarray) -> None:
        self._probabilities &= bool(scores.size == 0 or (scores.min() >= 0 and scores.max() <= 1))
        wanted = targets > 0.5
        self._samples += len(wanted)
        self._labels += wanted.size
        for threshold, counts in self._by_threshold.items():
            said = scores > threshold
            counts += [(said & wanted).sum(), (said & ~wanted).sum(), (~said & wanted).sum(), (~said & ~wanted).sum()]
            self._rows[threshold] += int((said == wanted).reshape(len(wanted), -1).all(axis=1).sum())

    @property
    def _counts(self) -> list[int]:
        return [int(count) for count in self._by_threshold[0.5 if self._probabilities else 0.0]]

    @property
    def accuracy(self) -> float | Absent:
        right_yes, wrong_yes, wrong_no, right_no = self._counts
        total = right_yes + wrong_yes + wrong_no + right_no
        return (right_yes + right_no) / total if total else Absent("there are no targets")

    def metrics(self) -> dict[str, float]:
        right_yes, wrong_yes, wrong_no, _ = self._counts
        either = 2 * right_yes + wrong_yes + wrong_no
        found = {"f1": 2 * right_yes / either} if either else {}
        if self._labels > self._samples:
            found["exact_match"] = self._rows[0.5 if self._probabilities else 0.0] / self._samples
        return found

    @property
    def mean_iou(self) -> float | None:
        right_yes, wrong_yes, wrong_no, right_no = self._counts
        wrong = wrong_yes + wrong_no
        parts = [right / (right + wrong) for right in (right_yes, right_no) if right + wrong]
        return sum(parts) / len(parts) if parts else None


class ErrorCounts:
    """Numbers against numbers."""

    def __init__(self) -> None:
        self._values = self._samples = 0
        self._absolute = self._squared = 0.0
        self._mean = self._spread = np.zeros(())
        self._same_shape = True

    def add(self, outputs: np.ndarray, targets: np.ndarray) -> None:
        wanted = targets.astype(np.float64)
        error = outputs.astype(np.float64) - wanted
        self._values += error.size
        self._absolute += float(np.abs(error).sum())
        self._squared += float(np.square(error).sum())
        before, added = self._samples, len(wanted)
        self._samples = before + added
        self._same_shape &= not before or self._mean.shape == wanted.shape[1:]
        if self._same_shape and added:
            # Means and spreads are merged batch by batch: sums of squares alone would cancel.
            mean = wanted.mean(axis=0)
            shift = mean - self._mean
            self._mean = self._mean + shift * added / self._samples
            spread = np.square(wanted - mean).sum(axis=0)
            self._spread = self._spread + spread + np.square(shift) * before * added / self._samples

    def metrics(self) -> dict[str, float]:
        if not self._values:
            return {}
        found = {"mae": self._absolute / self._values, "rmse": math.sqrt(self._squared / self._values)}
        spread = float(self._spread.sum()) if self._same_shape else 0.0
        return {**found, "r2": 1 - self._squared / spread} if spread > 0 else found


def _ranks(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return how many classes rank before each sample's own; of equal scores the lower class is first, as in argmax."""
    own = np.take_along_axis(outputs, targets[:, np.newaxis], axis=1)
    earlier = np.arange(outputs.shape[1]) < targets[:, np.newaxis]
    return np.asarray(((outputs > own) | ((outputs == own) & earlier)).sum(axis=1))
