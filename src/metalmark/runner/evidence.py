"""Proof that a cell did its work: losses are finite and fall on a fixed batch, and parameters move; in inference,
outputs follow the input and repeat."""

import math
import time

from metalmark.backends.base import RING, Session
from metalmark.errors import WrongResultError
from metalmark.model.measurement import Proof
from metalmark.model.plan import Mode
from metalmark.runner.loop import Clock

PATIENCE_STEPS = 200
PATIENCE_S = 20.0
REPEAT_TOLERANCE = 0.02


class Evidence:
    """Evidence gathered around a measurement: made before the clock's first step, concluded after its last block."""

    def __init__(self, session: Session, clock: Clock, mode: Mode) -> None:
        self._session = session
        self._clock = clock
        self._mode = mode
        self._fingerprint = session.fingerprint()
        self.first = math.nan

    def after_first_step(self) -> None:
        """The first step ran on batch 0, the fixed batch."""
        self.first = self._finite(self._session.proof())

    def conclude(self) -> Proof:
        return self._trained() if self._mode is Mode.TRAINING else self._inferred()

    def _trained(self) -> Proof:
        begin, began_s, last, extra = self._clock.steps_done, time.perf_counter(), math.inf, 0
        while not last < self.first:
            last = self._fixed_batch()
            extra = self._clock.steps_done - begin
            if extra > PATIENCE_STEPS or (extra > 2 * RING and time.perf_counter() - began_s > PATIENCE_S):
                break
        moved, total = self._moved()
        if moved < total:
            # A loss falls without them too: PyTorch 2.13's compiled convolution lost its gradient on the CPU so.
            raise WrongResultError(
                f"{total - moved} of {total} trainable arrays did not change in {self._clock.steps_done} steps.",
                hint="Their gradient is lost here. If the model does not use them, freeze them.",
            )
        if not last < self.first:
            raise WrongResultError(
                f"The loss did not fall on a fixed batch: {self.first:.6g} at the first step, {last:.6g} after "
                f"{self._clock.steps_done}.",
                hint="The training step computes something wrong here, or its learning rate is too high.",
            )
        return Proof(
            first=self.first,
            last=last,
            extra_steps=extra,
            moved=f"{moved} of {total}",
            statement=f"loss {self.first:.4g} → {last:.4g}",
        )

    def _inferred(self) -> Proof:
        begin = self._clock.steps_done
        last = self._fixed_batch()
        extra = self._clock.steps_done - begin
        self._session.step()
        other = self._finite(self._session.proof())
        if abs(last - self.first) > REPEAT_TOLERANCE * max(abs(self.first), 1e-12):
            raise WrongResultError(
                f"The same batch gave another output: mean square {self.first:.6g} first, {last:.6g} last."
            )
        if other == last:
            raise WrongResultError(f"Two different batches gave the same output (mean square {last:.6g}).")
        moved, total = self._moved()
        if moved:
            raise WrongResultError(f"{moved} of {total} trainable arrays changed during inference.")
        return Proof(
            first=self.first,
            last=last,
            extra_steps=extra,
            moved=f"0 of {total}",
            statement=f"output repeats ({last:.4g})",
        )

    def _fixed_batch(self) -> float:
        """Step, untimed, until batch 0 has been used again, and return its proof."""
        while True:
            self._session.step()
            self._clock.steps_done += 1
            if self._session.feeder.batch == 0:
                return self._finite(self._session.proof())

    def _moved(self) -> tuple[int, int]:
        now = self._session.fingerprint()
        if not all(map(math.isfinite, now)):
            raise WrongResultError("A trainable array is no longer finite.")
        return sum(a != b for a, b in zip(self._fingerprint, now, strict=True)), len(now)

    def _finite(self, value: float) -> float:
        if not math.isfinite(value):
            raise WrongResultError(f"The result is {value} at step {self._clock.steps_done}.")
        return value + 0.0  # a loss that has rounded to minus zero is zero
