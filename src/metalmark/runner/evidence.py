"""Proof that a cell did its work: losses are finite and fall on a fixed batch, and parameters move; in inference,
outputs follow the input and repeat.

What can't be right is a wrong result: a value that is not finite, training that moved no parameter, inference that
moved one, or that gives another output for the same batch. What a correct model may do too is a doubt: a loss that does
not fall (adversarial training), a head that begins at zero, parameters that the model does not use. A doubt leaves the
cell unproved, and `--proof strict` makes it a wrong result.
"""

import math
import time

from metalmark.backends.base import RING, Session
from metalmark.backends.ranks import ONE, Ranks, agreed, mean_of
from metalmark.errors import WrongResultError
from metalmark.model.measurement import Proof
from metalmark.model.plan import Mode, Proving
from metalmark.runner.loop import Clock

PATIENCE_STEPS = 200
PATIENCE_S = 20.0
REPEAT_TOLERANCE = 0.02
MOST_NAMES = 5
NOT_TRIED = "no proof was tried (--proof off)"


class Evidence:
    """Evidence gathered around a measurement: made before the clock's first step, concluded after its last block."""

    def __init__(
        self, session: Session, clock: Clock, mode: Mode, proving: Proving = Proving.FLAG, *, ranks: Ranks = ONE
    ) -> None:
        self._session, self._ranks = session, ranks
        self._clock = clock
        self._mode = mode
        self._proving = proving
        self._doubts: list[str] = []
        self._changed: tuple[bool, ...] = ()
        self._fingerprint = session.fingerprint()
        self.first = math.nan

    def after_first_step(self) -> None:
        """The first step ran on batch 0, the fixed batch."""
        self.first = self._proof()

    def conclude(self) -> Proof:
        if self._proving is Proving.OFF:
            return self._not_tried()
        return self._trained() if self._mode is Mode.TRAINING else self._inferred()

    def _not_tried(self) -> Proof:
        """What needs no step of its own is looked at all the same."""
        last = self._proof()
        moved, total = self._moved_rightly()
        return Proof(
            first=self.first,
            last=last,
            extra_steps=0,
            moved=f"{moved} of {total}",
            statement="not tried",
            doubts=(NOT_TRIED,),
        )

    def _trained(self) -> Proof:
        begin, began_s, last, extra = self._clock.steps_done, time.perf_counter(), math.inf, 0
        while not last < self.first:
            last = self._fixed_batch()
            extra = self._clock.steps_done - begin
            tired = extra > 2 * RING and time.perf_counter() - began_s > PATIENCE_S
            if extra > PATIENCE_STEPS or agreed(self._ranks, tired):
                break
        moved, total = self._moved_rightly()
        if moved < total:
            # A loss falls without them too: PyTorch 2.13's compiled convolution lost its gradient on the CPU so.
            self._doubt(
                f"{total - moved} of {total} trainable arrays did not change in {self._clock.steps_done} steps: "
                f"{self._unmoved()}",
                hint="Their gradient is lost here. If the model does not use them, freeze them.",
            )
        if not last < self.first:
            self._doubt(
                f"the loss did not fall on a fixed batch: {self.first:.6g} at the first step, {last:.6g} after "
                f"{self._clock.steps_done}",
                hint="The training step computes something wrong here, or its learning rate is too high.",
            )
        return Proof(
            first=self.first,
            last=last,
            extra_steps=extra,
            moved=f"{moved} of {total}",
            statement=f"loss {self.first:.4g} → {last:.4g}",
            doubts=tuple(self._doubts),
        )

    def _inferred(self) -> Proof:
        begin = self._clock.steps_done
        last = self._fixed_batch()
        extra = self._clock.steps_done - begin
        self._session.step()
        other = self._proof()
        if abs(last - self.first) > REPEAT_TOLERANCE * max(abs(self.first), 1e-12):
            raise WrongResultError(
                f"The same batch gave another output: mean square {self.first:.6g} first, {last:.6g} last."
            )
        _, total = self._moved_rightly()
        if other == last:
            self._doubt(
                f"two different batches gave the same output (mean square {last:.6g})",
                hint="The output does not depend on the input here, as that of a last layer that begins at zero.",
            )
        return Proof(
            first=self.first,
            last=last,
            extra_steps=extra,
            moved=f"0 of {total}",
            statement=f"output repeats ({last:.4g})",
            doubts=tuple(self._doubts),
        )

    def _doubt(self, seen: str, *, hint: str) -> None:
        if self._proving is Proving.STRICT:
            raise WrongResultError(f"{seen[0].upper()}{seen[1:]}.", hint=hint)
        self._doubts.append(seen)

    def _fixed_batch(self) -> float:
        """Step, untimed, until batch 0 has been used again, and return its proof."""
        while True:
            self._session.step()
            self._clock.steps_done += 1
            if self._session.feeder.batch == 0:
                return self._proof()

    def _require_one_network(self, now: tuple[float, ...]) -> None:
        """Refuse processes that should train one network and have different weights."""
        rows = self._ranks.gather(now)
        other = [number for number, row in enumerate(rows) if row != rows[0]]
        if other:
            raise WrongResultError(
                f"After {self._clock.steps_done} steps rank {other[0]} has other weights than rank 0: they do not "
                "train one network.",
                hint="The exchange of gradients is broken in this framework version; report it with the run.",
            )

    def _moved_rightly(self) -> tuple[int, int]:
        """Return how many of how many arrays changed: in training at least one, in inference none."""
        now = self._session.fingerprint()
        if not all(map(math.isfinite, now)):
            raise WrongResultError("A trainable array is no longer finite.")
        self._require_one_network(now)
        self._changed = tuple(a != b for a, b in zip(self._fingerprint, now, strict=True))
        moved, total = sum(self._changed), len(now)
        if self._mode is Mode.INFERENCE and moved:
            raise WrongResultError(f"{moved} of {total} trainable arrays changed during inference.")
        if self._mode is Mode.TRAINING and not total:
            raise WrongResultError("The model has no trainable array.", hint="Use --mode inference, or unfreeze one.")
        if self._mode is Mode.TRAINING and not moved:
            raise WrongResultError(
                f"None of {total} trainable arrays changed in {self._clock.steps_done} steps: nothing was trained.",
                hint="Give the optimiser the parameters of this model, and a learning rate above 0.",
            )
        return moved, total

    def _unmoved(self) -> str:
        """Name the arrays that did not change: the first few, and how many more."""
        every = self._session.fingerprint_names()
        names = [name for name, moved in zip(every, self._changed, strict=True) if not moved]
        more = len(names) - MOST_NAMES
        return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

    def _proof(self) -> float:
        """Return the proof of the last step: the mean over all processes, each of which has a part of the batch."""
        return self._finite(mean_of(self._ranks, self._session.proof()))

    def _finite(self, value: float) -> float:
        if not math.isfinite(value):
            raise WrongResultError(
                f"The result is {value} at step {self._clock.steps_done}.",
                hint="Try a smaller learning rate, other data, and float32 on --device cpu: where it is finite there, "
                "metalmark parity names the first layer that is not.",
            )
        return value + 0.0  # a loss that has rounded to minus zero is zero
