"""Tally: what validation counts beside the loss, by what the network learns, and the metrics of the user's own.

Every figure is over all samples, each counted once however they fell into batches.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from metalmark.errors import UnsupportedError, WrongResultError
from metalmark.model.nest import flatten
from metalmark.model.run import Absent
from metalmark.model.training import ACCURACY, TOP5, TRAIN_LOSS, VALIDATION_LOSS
from metalmark.model.workload import Task
from metalmark.training.counts import ClassCounts, ErrorCounts, LabelCounts

LARGEST_EXPONENT = 700.0
"""The perplexity of a larger loss is beyond what a float holds."""
TAKEN = {ACCURACY: "", VALIDATION_LOSS: "the loss of validation", TRAIN_LOSS: "the loss of training",
         "loss": "the loss of training", TOP5: "the share among the first five"}  # fmt: skip
"""Names that a metric of the user's own can't have, and whose they are; an accuracy may be the user's own."""
SHAPES = {
    Task.CLASSIFICATION: "scores for each class, and the number of a class, or a one-hot row, for each sample",
    Task.MULTILABEL: "outputs and targets of one shape, with targets of 0 and 1",
    Task.REGRESSION: "outputs and targets of one shape",
    Task.LANGUAGE: "scores for each token of the vocabulary, and a token for each position",
    Task.SEGMENTATION: "scores for each class, and a class, for each pixel; or masks of 0 and 1 of one shape",
}
OwnMetric = Callable[[Any, Any], float]


class Figures(NamedTuple):
    """What a validation came to."""

    loss: float | Absent
    accuracy: float | Absent
    top5: float | Absent
    metrics: dict[str, float]
    samples: int


class Tally:
    """Validation figures of one epoch. Without a `task` it is told from the shapes and the values of all batches."""

    def __init__(self, task: Task | str | None = None, metrics: Mapping[str, OwnMetric] | None = None) -> None:
        self._asked, self._own = known_task(task), dict(metrics or {})
        refuse_taken_names(self._own)
        self.samples = 0
        self._loss = 0.0
        self._without_loss = False
        self._classes: ClassCounts | None = None
        self._labels = LabelCounts()
        self._errors = ErrorCounts()
        self._one_hot = self._on_off = True
        """What all targets so far were: one-hot rows; 0 or 1."""
        self._single = False
        """Whether a sample has one answer of yes or no."""
        self._seen: Task | None = None
        """The task that numbers of classes stand for."""
        self._why_not = ""
        self._sums = {name: [0.0, 0.0] for name in self._own}

    def add(self, mean_loss: float | None, outputs: Any, targets: Any, *, inputs: Any = None, size: int = 0) -> None:
        """Count a batch of `size` samples; where it is not given, the first array of the targets has so many."""
        scores = [np.asarray(leaf) for leaf in flatten(outputs)[0] if np.ndim(leaf)]
        wanted = [np.asarray(leaf) for leaf in flatten(targets)[0] if np.ndim(leaf)]
        size = size or next((len(array) for array in (*wanted, *scores)), 0)
        self.samples += size
        # A batch's loss is a mean: without its size a short last batch would weigh as much as a full one.
        self._loss += (mean_loss or 0.0) * size
        self._without_loss |= mean_loss is None
        if outputs is None:
            self._why_not = "only the recipe's own `validate` knows the outputs, and it returns a loss"
            return
        self._count(scores, wanted, inputs)
        for name, metric in self._own.items():
            value = _own_value(name, metric, outputs, targets)
            if math.isfinite(value):  # what a batch does not tell, such as the area under a curve of one class alone
                self._sums[name][0] += value * size
                self._sums[name][1] += size

    @property
    def task(self) -> Task | None:
        """What the network was taken to learn."""
        if self._asked is not None or self._why_not:
            return self._asked
        if self._seen is not None:
            return self._seen
        if not self.samples:
            return None
        if self._one_hot or (self._on_off and self._single):
            return Task.CLASSIFICATION
        return Task.MULTILABEL if self._on_off else Task.REGRESSION

    def figures(self) -> Figures:
        own = {name: total / samples for name, (total, samples) in self._sums.items() if samples}
        accuracy, top5, metrics = self._of_task()
        if 0 <= own.get(ACCURACY, -1.0) <= 1:
            accuracy = own.pop(ACCURACY)
        return Figures(self.loss, accuracy, top5, {**metrics, **own}, self.samples)

    @property
    def loss(self) -> float | Absent:
        if self._without_loss or not self.samples:
            return Absent("nothing computes a loss of validation")
        loss = self._loss / self.samples
        if not math.isfinite(loss):
            raise WrongResultError(
                f"The validation loss is {loss}.",
                hint="The weights or the validation data hold values that are not finite; see the training loss.",
            )
        return loss

    @property
    def accuracy(self) -> float | Absent:
        return self.figures().accuracy

    @property
    def top5(self) -> float | Absent:
        return self.figures().top5

    def _of_task(self) -> tuple[float | Absent, float | Absent, dict[str, float]]:
        task, metrics = self.task, dict[str, float]()
        if task is Task.LANGUAGE and not isinstance(self.loss, Absent) and self.loss < LARGEST_EXPONENT:
            metrics["perplexity"] = math.exp(self.loss)
        if task is None or self._why_not:
            unknown = Absent(self._why_not or "nothing was validated")
            return unknown, unknown, metrics
        if task is Task.REGRESSION:
            none = Absent("a regression has no accuracy")
            return none, none, self._errors.metrics()
        counts: ClassCounts | LabelCounts = self._labels
        if self._classes is not None and task is not Task.MULTILABEL:
            counts = self._classes
        iou = counts.mean_iou if task is Task.SEGMENTATION else None
        if iou is not None:
            metrics["mean_iou"] = iou
        if isinstance(counts, LabelCounts):
            metrics |= counts.metrics()
            return counts.accuracy, Absent("it is counted where each sample has one class"), metrics
        return counts.accuracy, counts.top5, metrics

    def _count(self, scores: list[np.ndarray], wanted: list[np.ndarray], inputs: Any) -> None:
        if self._asked is Task.LANGUAGE and not wanted:
            self._why_not = "there are no targets: the model computes its loss from its inputs"
            return
        if len(wanted) == 1:
            for each in scores:
                if self._counted(each, wanted[0], inputs):
                    return
        shown = f"outputs are {_shapes(scores)}, targets {_shapes(wanted)}"
        if self._asked is not None:
            raise UnsupportedError(
                f"task={self._asked.value!r} does not fit: {shown}.",
                hint=f"It wants {SHAPES[self._asked]}. Leave `task` out of the workload, or give "
                "Recipe(metrics={...}) and no task.",
            )
        self._why_not = (
            f"what the network learns can't be told from its shapes ({shown}): give the workload a task= "
            f"({', '.join(task.value for task in Task)}), or the recipe metrics= of your own"
        )

    def _counted(self, scores: np.ndarray, targets: np.ndarray, inputs: Any) -> bool:
        """Count one output where it fits."""
        by_class = _by_class(scores, targets)
        if by_class is not None and self._asked not in (Task.MULTILABEL, Task.REGRESSION):
            told = self._asked or _task_of_classes(by_class, targets, inputs)
            # One batch of few words may look like a vocabulary; all of them together do not.
            self._seen = self._seen if self._seen is Task.CLASSIFICATION else told
            self._add_classes(*by_class, ranked=by_class[1].ndim == 1 and self._seen is Task.CLASSIFICATION)
            return True
        alike = _alike(scores, targets)
        if alike is None or self._asked is Task.LANGUAGE:
            return False
        scores, targets = alike
        self._on_off &= bool(((targets == 0) | (targets == 1)).all())
        self._single = targets.ndim == 1
        axis = _one_hot_axis(targets) if self._on_off else None
        asked_classes = self._asked in (Task.CLASSIFICATION, Task.SEGMENTATION)
        least = 3 if self._asked is Task.SEGMENTATION else 2
        if axis is None and asked_classes and scores.ndim >= least and scores.shape[-1] > 1 and not self._on_off:
            axis = -1  # soft labels: the largest is the class
        self._one_hot &= axis is not None
        if axis is None and not self._fits_without_classes:
            return False
        if axis is not None and (self._one_hot or asked_classes):
            moved, classes = np.moveaxis(scores, axis, -1), np.moveaxis(targets, axis, -1).argmax(axis=-1)
            self._add_classes(moved, classes, ranked=classes.ndim == 1)
        if self._on_off:
            self._labels.add(scores, targets)
        if self._asked in (None, Task.REGRESSION):
            self._errors.add(scores, targets)
        return True

    @property
    def _fits_without_classes(self) -> bool:
        """Whether the task that was asked for takes what has no axis of classes."""
        if self._asked is Task.CLASSIFICATION:
            return self._on_off and self._single
        return self._on_off or self._asked not in (Task.MULTILABEL, Task.SEGMENTATION)

    def _add_classes(self, scores: np.ndarray, targets: np.ndarray, *, ranked: bool) -> None:
        if self._classes is None:
            self._classes = ClassCounts(ranked=ranked)
        self._classes.add(scores, targets, overlap=Task.SEGMENTATION in (self._asked, self._seen))


def known_task(task: Task | str | None) -> Task | None:
    """Return a workload's task, which may be written as its word."""
    words = [one.value for one in Task]
    if task is not None and task not in words:
        raise UnsupportedError(f"task={task!r} is no task.", hint=f"There are: {', '.join(words)}; or leave it out.")
    return None if task is None else Task(task)


def refuse_taken_names(metrics: Mapping[str, OwnMetric]) -> None:
    """Refuse metrics of the user's own whose names mean something else, or that can't be typed behind --target."""
    for name in metrics:
        if not isinstance(name, str) or not name or any(letter in "=<>,:" or letter.isspace() for letter in name):
            raise UnsupportedError(
                f"{name!r} can't be the name of a metric: --target and --monitor could not name it.",
                hint="Use letters, digits, - and _.",
            )
        if TAKEN.get(name):
            raise UnsupportedError(
                f"A metric can't be called {name!r}: that is {TAKEN[name]}.",
                hint="Give it another name in Recipe(metrics=...).",
            )


def _own_value(name: str, metric: OwnMetric, outputs: Any, targets: Any) -> float:
    try:
        return float(metric(outputs, targets))
    except Exception as error:
        shapes = [_shapes([np.asarray(leaf) for leaf in flatten(nest)[0]]) for nest in (outputs, targets)]
        raise UnsupportedError(
            f"The metric {name!r} failed: {type(error).__name__}: {error}. Its outputs were {shapes[0]}, its targets "
            f"{shapes[1]}.",
            hint=f"It is called as {name}(outputs, targets) with the NumPy arrays of one batch and returns one number.",
        ) from error


def _by_class(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scores with the classes last, and the number of a class for each; None where these are no such shapes."""
    if targets.dtype.kind not in "iu" and not (targets.dtype.kind == "f" and (targets == np.floor(targets)).all()):
        return None
    if targets.ndim == scores.ndim > 1 and targets.shape[-1] == 1 < scores.shape[-1]:
        targets = targets[..., 0]  # as Keras' sparse losses take them
    if scores.ndim == targets.ndim + 1:
        if scores.shape[:-1] == targets.shape and scores.shape[-1] > 1:
            return scores, targets
        if scores.ndim > 2 and scores.shape[:1] + scores.shape[2:] == targets.shape and scores.shape[1] > 1:
            return np.moveaxis(scores, 1, -1), targets  # as PyTorch has them
    if scores.ndim == 2 < targets.ndim + 1 and scores.shape[0] == targets.size and scores.shape[1] > 1:
        return scores, targets.reshape(-1)  # positions in one row after another
    return None


def _task_of_classes(by_class: tuple[np.ndarray, np.ndarray], targets: np.ndarray, inputs: Any) -> Task:
    if targets.ndim == 1 or targets.shape[1:] == (1,):
        return Task.CLASSIFICATION
    if targets.ndim > 2:
        return Task.SEGMENTATION
    # Tokens in and tokens of the same vocabulary out; tags of tokens are fewer than the tokens are.
    tokens = [leaf for leaf in flatten(inputs)[0] if getattr(leaf, "shape", None) == targets.shape]
    same = any(leaf.dtype.kind in "iu" and leaf.max(initial=0) < by_class[0].shape[-1] for leaf in tokens)
    return Task.LANGUAGE if same else Task.CLASSIFICATION


def _alike(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return both in one shape, where they differ at most by axes of one."""
    if scores.shape == targets.shape:
        return scores, targets
    bare = [(len(array), *(size for size in array.shape[1:] if size > 1)) for array in (scores, targets)]
    return (scores.reshape(bare[0]), targets.reshape(bare[1])) if bare[0] == bare[1] else None


def _one_hot_axis(targets: np.ndarray) -> int | None:
    """Return the axis along which targets of 0 and 1 have exactly one 1; where both have, the last one."""
    if targets.ndim < 2 or targets.shape[-1] < 2:  # a last axis of one has masks of one class
        return None
    return next((axis for axis in (-1, 1) if targets.shape[axis] > 1 and (targets.sum(axis=axis) == 1).all()), None)


def _shapes(arrays: list[np.ndarray]) -> str:
    return " and ".join(f"{array.dtype} {array.shape}" for array in arrays) or "none"
