"""The clock: blocks of steps between two synchronisations, the first step apart, every block kept."""

import math
import time
from collections.abc import Callable

from metalmark.backends.base import Session
from metalmark.backends.ranks import ONE, Ranks, agreed
from metalmark.errors import WrongResultError
from metalmark.model.measurement import Block, Measurement
from metalmark.model.plan import Budget
from metalmark.stats.summary import median, spread

BLOCK_S = 0.2
"""A block is at least this long: a million times the clock's resolution, and a hundred times what TensorFlow's
synchronisation was seen to cost behind real work, which is more than on an idle device."""
SYNC_SHARE = 0.01
"""... and so long that synchronising costs at most this share of it."""
STEADY_SPREAD = 0.05
STEADY_BLOCKS = 3
LONG_DRAIN_S = 1e-3
CONTROL_BLOCKS = 5
"""Of fewer blocks, one that was read while others had the processor decides. So many more, which do not count, show
whether synchronisation is broken: if so, they have to be waited for too."""
READINGS = 3
"""How often a result is read again, to see how long reading takes by itself. A GPU that several processes share does
it now at once and now a slice of time later."""
MAX_STEPS_PER_BLOCK = 1_000_000

Tell = Callable[[str, float | None, float | None], None]
"""tell(phase, share done, seconds per step): called between blocks, while the clock stands still."""


class Clock:
    """Measures one session. Reads the time only while the device is idle."""

    def __init__(
        self,
        session: Session,
        budget: Budget,
        *,
        origin_s: float,
        tell: Tell,
        streams: bool = False,
        ranks: Ranks = ONE,
    ) -> None:
        """`streams`: the steps after the first are fed by the session's loader. `ranks`: the processes that take every
        step together, and so must agree on how many there are."""
        self._session = session
        self._ranks = ranks
        self._budget = budget
        self._origin_s = origin_s
        self._tell = tell
        self._streams = streams
        self._busy_blocks = 0
        self.steps_done = 0

    def measure(self, first_step_s: float) -> Measurement:
        """Measure everything after the first step, whose time the caller has from `first_step`."""
        sync_s = self._sync_cost_s()
        self._tell("warm-up", None, first_step_s)
        warmup, steady = self._warm_up(sync_s)
        step_s = median([block.elapsed_s / block.steps for block in warmup[-STEADY_BLOCKS:]])
        self._tell("measure", 0.0, step_s)
        fixed = self._budget.steps
        blocks = self._fixed_steps(fixed, step_s, sync_s) if fixed else self._until_enough(step_s, sync_s)
        self._refuse_pending_work(blocks)
        return Measurement(
            first_step_s=first_step_s, warmup=tuple(warmup), steady=steady, blocks=tuple(blocks), sync_s=sync_s
        )

    def first_step(self) -> float:
        """Time the step that traces, compiles and allocates: it is reported by itself, not in the steady state."""
        self._session.synchronize()
        begin = time.perf_counter()
        self._session.step()
        self._session.synchronize()
        elapsed = time.perf_counter() - begin
        self._session.settle()
        self.steps_done += 1
        return elapsed

    def block(self, steps: int) -> Block:
        session = self._session
        at_s = time.monotonic() - self._origin_s
        waited_s = session.feeder.waited_s
        begin = time.perf_counter()
        for _ in range(steps):
            session.step()
        session.synchronize()
        end = time.perf_counter()
        # Reading the proof drains the queue, so do it after the clock stops; it should find nothing to wait for.
        proof = session.proof()
        drain_s = time.perf_counter() - end
        if drain_s > LONG_DRAIN_S:
            # Where others use the machine or its GPU, reading itself takes long: again, with nothing to wait for, tells
            # the two apart.
            drain_s = max(0.0, drain_s - max(self._reading_s() for _ in range(READINGS)))
        # Allocators' counters: asking for them waits for nothing, and the device is idle here.
        live_bytes = session.memory().live_bytes
        self.steps_done += steps
        if not math.isfinite(proof):
            raise WrongResultError(
                f"The result is {proof} at step {self.steps_done}.",
                hint="Timings of a diverged model mean nothing: try float32, or a lower learning rate.",
            )
        block = Block(
            steps=steps,
            elapsed_s=end - begin,
            at_s=max(at_s, 0.0),
            proof=proof,
            drain_s=drain_s,
            waited_s=session.feeder.waited_s - waited_s if self._streams else None,
            live_bytes=live_bytes if isinstance(live_bytes, int) else None,
        )
        self._watch_for_pending_work(block)
        return block

    def _warm_up(self, sync_s: float) -> tuple[list[Block], bool]:
        began = time.perf_counter()
        blocks = [self.block(1)]
        while True:
            last = blocks[-1]
            steps = int(self._agreed(self._block_steps(last.elapsed_s / last.steps, sync_s)))
            if steps <= last.steps * 2:
                break
            blocks.append(self.block(last.steps * 2))
        calibration = len(blocks)
        while True:
            blocks.append(self.block(steps))
            self._tell("warm-up", None, blocks[-1].elapsed_s / blocks[-1].steps)
            recent = [block.elapsed_s / block.steps for block in blocks[calibration:]]
            # A block of over a second averages much noise away by itself, and three of them are a long wait.
            need = STEADY_BLOCKS if blocks[-1].elapsed_s < 1 else STEADY_BLOCKS - 1
            steady = len(recent) >= need and spread(recent[-need:]) <= STEADY_SPREAD
            tired = len(recent) >= need + 2 and time.perf_counter() - began > self._budget.seconds
            if self._agreed(steady or tired):
                return blocks, steady

    def _fixed_steps(self, total: int, step_s: float, sync_s: float) -> list[Block]:
        largest = max(1, total // self._budget.min_blocks)
        size = int(self._agreed(min(self._block_steps(step_s, sync_s), largest)))
        blocks: list[Block] = []
        done = 0
        while done < total:
            blocks.append(self.block(min(size, total - done)))
            done += blocks[-1].steps
            self._tell("measure", done / total, blocks[-1].elapsed_s / blocks[-1].steps)
        return blocks

    def _until_enough(self, step_s: float, sync_s: float) -> list[Block]:
        size = int(self._agreed(self._block_steps(step_s, sync_s)))
        blocks: list[Block] = []
        measured_s = 0.0
        while self._agreed(len(blocks) < self._budget.min_blocks or measured_s < self._budget.seconds):
            blocks.append(self.block(size))
            measured_s += blocks[-1].elapsed_s
            done = min(len(blocks) / self._budget.min_blocks, measured_s / self._budget.seconds)
            self._tell("measure", min(done, 1.0), blocks[-1].elapsed_s / size)
        return blocks

    def _agreed(self, value: float) -> float:
        """Return the first process's value: what a clock decides must be the same in all."""
        return agreed(self._ranks, value)

    def _block_steps(self, step_s: float, sync_s: float) -> int:
        target_s = max(BLOCK_S, sync_s / SYNC_SHARE)
        return max(1, min(MAX_STEPS_PER_BLOCK, math.ceil(target_s / max(step_s, 1e-9))))

    def _sync_cost_s(self) -> float:
        costs = []
        self._session.proof()  # the first reading may compile its own small kernel; keep that out of the blocks
        for _ in range(5):
            begin = time.perf_counter()
            self._session.synchronize()
            costs.append(time.perf_counter() - begin)
        return median(costs)

    def _reading_s(self) -> float:
        begin = time.perf_counter()
        self._session.proof()
        return time.perf_counter() - begin

    def _watch_for_pending_work(self, block: Block) -> None:
        """Stop after three blocks in a row whose proof had to be waited for, rather than after an hour of draining."""
        assert block.drain_s is not None
        busy = block.drain_s > 2e-3 and block.drain_s > block.elapsed_s / 2
        self._busy_blocks = self._busy_blocks + 1 if busy else 0
        if self._busy_blocks >= 3:
            self._raise_pending(block.drain_s, block.elapsed_s)

    def _refuse_pending_work(self, blocks: list[Block]) -> None:
        """Refuse results that had to be waited for."""
        if not self._has_pending_work(blocks):
            return
        if len(blocks) < CONTROL_BLOCKS:
            blocks = [self.block(blocks[-1].steps) for _ in range(CONTROL_BLOCKS)]
            if not self._has_pending_work(blocks):
                return
        self._raise_pending(*_waits(blocks))

    def _has_pending_work(self, blocks: list[Block]) -> bool:
        drain_s, elapsed_s = _waits(blocks)
        pending = drain_s > LONG_DRAIN_S and drain_s > 0.1 * elapsed_s
        # All processes of one training go on with the same steps, so what one of them sees counts for all.
        return any(seen for (seen,) in self._ranks.gather([float(pending)]))

    def _raise_pending(self, drain_s: float, elapsed_s: float) -> None:
        raise WrongResultError(
            f"The device was still working after synchronize() returned: a block took {elapsed_s * 1e3:.3g} ms "
            f"by the clock, and its result another {drain_s * 1e3:.3g} ms.",
            hint="Synchronisation is broken in this framework version on this device; report it with the run.",
        )


def _waits(blocks: list[Block]) -> tuple[float, float]:
    """Return how long the results of blocks were waited for, and how long the blocks took."""
    return median([block.drain_s or 0.0 for block in blocks]), median([block.elapsed_s for block in blocks])
