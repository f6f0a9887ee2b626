"""The callback for Lightning, under either of its two names.

Waiting is what Lightning's own profiler would call fetching: that is asked by its start and stop, so what other
callbacks, loggers and checkpoints do between two batches is not taken for waiting.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from metalmark.kit.fits import FitOptions, FitWatch, LoopWatch, clock

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same library; the callbacks of one are none of the other's."""
TRAIN_FETCH, VALIDATION_FETCH = "train_dataloader_next", "val_next"


def make_callback(options: FitOptions) -> FitWatch:
    # A callback of both kinds, where the script has both.
    kinds = [import_module(name).Callback for name in PACKAGES if name in sys.modules] or [_first_installed()]
    return type("LightningWatch", (LightningHooks, *dict.fromkeys(kinds)), {})(options)  # type: ignore[no-any-return]


def _first_installed() -> type:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError as error:
        if error.name != "lightning":
            raise
        from pytorch_lightning import Callback
    return Callback  # type: ignore[no-any-return]


class LightningHooks(FitWatch):
    LIBRARY = "lightning"

    def __init__(self, options: FitOptions) -> None:
        super().__init__(options)
        self._profiler: Any = None
        self._asked_at = 0.0
        self._steps_before = 0
        self._logged: dict[str, Any] = {}
        """By name, the number that was logged last, to tell a new one from one that still stands there."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._let_go()
        if not trainer.is_global_zero:
            return
        settings = {
            "precision": str(trainer.precision),
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            **({"max_epochs": trainer.max_epochs} if trainer.max_epochs is not None else {}),
        }
        hyper = {str(name): value for name, value in getattr(pl_module, "hparams", {}).items()}
        package = type(trainer).__module__.partition(".")[0]
        self._fits.begin(
            type(pl_module).__name__, {**settings, **hyper}, {"lightning": sys.modules[package].__version__}
        )
        self._fits.step = self._steps_before = trainer.global_step
        self._logged = dict(trainer.logged_metrics)
        self._listen(trainer.profiler)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._log(trainer)
            self._fits.train.begin(clock())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if not self._fits.is_open:
            return
        stepped = trainer.global_step != self._steps_before
        if stepped or trainer.accumulate_grad_batches == 1:
            self._fits.train.done()
            self._fits.step = self._steps_before = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None and pl_module.automatic_optimization and trainer.accumulate_grad_batches > 1:
                # Lightning has divided it, so that the gradients of the batches add up to their mean.
                loss = loss * trainer.accumulate_grad_batches
            self._log(trainer, {"loss": loss} if loss is not None else {})

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._fits.is_open and not trainer.sanity_checking:
            self._fits.validate(clock())

    def on_validation_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if self._fits.is_open and not trainer.sanity_checking and self._fits.validation is not None:
            self._fits.validation.done()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._fits.is_open and not trainer.sanity_checking and self._fits.validation is not None:
            self._fits.validation.close(clock())
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._fits.train.close(clock())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._log(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._let_go()
        self._fits.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._let_go()
        self._fits.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Lightning's own search for a learning rate leaves a fit by this way alone."""
        self._let_go()
        self._fits.end()

    def _log(self, trainer: Any, more: Mapping[str, Any] | None = None) -> None:
        """Log what the module has logged since: it stays on its device, and nobody waits for it."""
        found: dict[str, Any] = dict(more or {})
        for name, value in trainer.logged_metrics.items():
            before = self._logged.get(name)
            # What was logged anew lies elsewhere, because the number before is still held here.
            if before is None or value.data_ptr() != before.data_ptr():
                found[name] = self._logged[name] = value
        self._fits.log(found)

    def _listen(self, profiler: Any) -> None:
        """Hear when Lightning fetches. The profiler may be the user's own; it is told everything as before."""
        self._profiler = profiler
        profiler.start = partial(self._heard_start, profiler.start)
        profiler.stop = partial(self._heard_stop, profiler.stop)

    def _heard_start(self, start: Callable[[str], None], action: str) -> None:
        loop = self._fetching(action)
        if loop is not None:
            self._asked_at = clock()
            loop.asked(self._asked_at)
        start(action)

    def _heard_stop(self, stop: Callable[[str], None], action: str) -> None:
        stop(action)
        loop = self._fetching(action)
        if loop is not None:
            loop.got(clock() - self._asked_at)

    def _fetching(self, action: str) -> LoopWatch | None:
        if not action.endswith("_next") or not self._fits.is_open:
            return None
        if action.endswith(TRAIN_FETCH):
            return self._fits.train
        validation = self._fits.validation
        return (
            validation if action.endswith(VALIDATION_FETCH) and validation is not None and validation.is_open else None
        )

    def _let_go(self) -> None:
        if self._profiler is not None:
            # The class's own again.
            del self._profiler.start, self._profiler.stop
        self._profiler = None
