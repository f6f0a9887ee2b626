"""The callback for Hugging Face's Trainer. A step is an optimiser's step, of several batches with accumulation.

The Trainer fetches all batches of a step, then says that the step begins: what goes by before that is waiting, but for
the evaluation and the saving that it may do first. Each of those ends with a hook of its own.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import transformers
from transformers import TrainerCallback

from metalmark.kit.fits import FitOptions, FitWatch, LoopWatch, clock

SETTINGS = ("learning_rate", "num_train_epochs", "max_steps", "gradient_accumulation_steps", "optim", "seed")

NO_METRICS, NO_METRICS_END = ("epoch", "total_flos"), ("_runtime", "_per_second")


def make_callback(options: FitOptions) -> "TransformersWatch":
    return TransformersWatch(options)


class TransformersWatch(FitWatch, TrainerCallback):  # type: ignore[misc]
    LIBRARY = "transformers"

    def __init__(self, options: FitOptions) -> None:
        super().__init__(options)
        self._edge = 0.0
        """The end of what the Trainer did last: from here on it waits for a batch, or evaluates, or saves."""
        self._evaluating: LoopWatch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        if not state.is_world_process_zero:
            return
        given = {name: getattr(args, name, None) for name in SETTINGS}
        # Some are the Trainer's own words for text; max_steps is -1 where epochs are counted.
        params = {name: getattr(value, "value", value) for name, value in given.items() if value not in (None, -1)}
        name = type(model).__name__ if model is not None else "train"
        self._evaluating = None
        self._fits.begin(
            name, {"batch_size": args.train_batch_size, **params}, {"transformers": transformers.__version__}
        )
        self._fits.step = state.global_step
        self._edge = clock()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            # The step before lasted until its numbers were logged, which may be after its epoch.
            self._fits.train.close(self._edge)
            self._edge = clock()
            self._fits.train.begin(self._edge)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            train, now = self._fits.train, clock()
            train.asked(self._edge)
            train.got(now - self._edge)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._fits.train.done()
            self._fits.step = state.global_step
            self._edge = clock()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        if not self._fits.is_open:
            return
        self._fits.step = state.global_step
        self._fits.log({name: value for name, value in (logs or {}).items() if _is_metric(name, value)})
        # To read its numbers the Trainer has waited for the device, so that belongs to the step.
        self._edge = clock()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if not self._fits.is_open:
            return
        if self._evaluating is None:
            self._evaluating = self._fits.validate(self._edge)
            # There is one hook per batch, after it.
            self._evaluating.blind()
        self._evaluating.asked(self._edge)
        self._evaluating.done()
        self._edge = clock()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._evaluating is not None and self._fits.is_open:
            self._evaluating.close(self._edge)
            self._edge = clock()
        self._evaluating = None

    on_predict = on_evaluate

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._fits.train.pause(self._edge)
            self._edge = clock()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._fits.train.close(self._edge)
            self._fits.end()


def _is_metric(name: str, value: object) -> bool:
    """Return whether it is a number that was learned, not the Trainer's count of epochs or its own stopwatch."""
    return isinstance(value, Real) and name not in NO_METRICS and not name.endswith(NO_METRICS_END)
