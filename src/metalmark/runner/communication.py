"""What several processes spend on exchanging gradients: steps with the exchange take turns with steps without it."""

from metalmark.backends.base import Session
from metalmark.backends.ranks import Ranks
from metalmark.model.measurement import Block, Measurement, RankTimes, WorldTimes
from metalmark.model.run import Absent
from metalmark.runner.loop import Clock

PAIRS = 5


def world_times(session: Session, clock: Clock, ranks: Ranks, measurement: Measurement) -> WorldTimes:
    """Return the times of all processes. All must call it."""
    size = measurement.blocks[0].steps
    together: list[Block] = []
    alone: list[Block] = []
    without = ranks.apart(session)
    while not isinstance(without, Absent) and len(alone) < PAIRS:
        ranks.gather([0.0])  # so that they begin together
        together.append(clock.block(size))
        with without:
            ranks.gather([0.0])
            alone.append(clock.block(size))
        without = ranks.apart(session)
    columns = [_step_s(blocks) for blocks in (measurement.blocks, together, alone)]
    rows = ranks.gather([value for column in columns for value in column])
    measured, turns = len(columns[0]), len(columns[1])
    return WorldTimes(
        ranks=tuple(
            RankTimes(
                number=number,
                step_s=tuple(row[:measured]),
                together_s=tuple(row[measured : measured + turns]),
                alone_s=tuple(row[measured + turns :]),
            )
            for number, row in enumerate(rows)
        ),
        not_alone=without.reason if isinstance(without, Absent) else "",
    )


def _step_s(blocks: "list[Block] | tuple[Block, ...]") -> list[float]:
    return [block.elapsed_s / block.steps for block in blocks]
