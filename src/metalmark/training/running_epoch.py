"""RunningEpoch: the clocks of an epoch, which stand while a checkpoint is written, and go on after a resume."""

import time
from collections.abc import Callable

from metalmark.model.training import EpochPart
from metalmark.training.base import State, Trainer
from metalmark.training.folder import (
    PartialEpoch,
)
from metalmark.training.losses import LossReader


class RunningEpoch:
    """The clocks of an epoch, which stand while a checkpoint is written, and go on after a resume."""

    def __init__(
        self,
        number: int,
        trainer: Trainer,
        losses: "LossReader",
        *,
        session: int,
        now: Callable[[], float],
        checkpoint_s: float,
        partial: PartialEpoch | None,
    ) -> None:
        self.number, self.losses = number, losses
        self._trainer, self._session, self._now = trainer, session, now
        self.begin_s = self._since = self._input_before_s = 0.0
        self.begin_state: State = {}
        """The framework's generators when the epoch began, where the order of its samples may hang on them."""
        self.earlier: tuple[EpochPart, ...] = ()
        self.input_s = self.compute_s = self.first_s = 0.0
        self.first_samples, self.checkpoint_s = 0, checkpoint_s
        if partial is not None:
            self.earlier, self.input_s, self.compute_s = partial.parts, partial.input_s, partial.compute_s
            self.first_s, self.first_samples = partial.first_steps_s, partial.first_steps_samples
            self.checkpoint_s = partial.checkpoint_s
            losses.go_on_after(partial.losses, partial.sizes)

    def begin(self) -> None:
        self._trainer.synchronize()
        self.begin_s = self._now()
        self.go_on()

    def go_on(self) -> None:
        self._since, self._input_before_s = time.perf_counter(), self.input_s

    def pause(self) -> None:
        """Wait for every step, and stop the clocks."""
        self.losses.read()
        self._trainer.synchronize()
        waited_s = self.input_s - self._input_before_s
        self.compute_s += max(0.0, time.perf_counter() - self._since - waited_s)

    def partial(self) -> PartialEpoch:
        part = EpochPart(session=self._session, begin_s=self.begin_s, end_s=self._now())
        return PartialEpoch(
            number=self.number, losses=tuple(self.losses.values), sizes=tuple(self.losses.sizes),
            parts=(*self.earlier, part), input_s=self.input_s, compute_s=self.compute_s, first_steps_s=self.first_s,
            first_steps_samples=self.first_samples, checkpoint_s=self.checkpoint_s,
        )  # fmt: skip
