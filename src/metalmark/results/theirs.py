"""Published figures as a side: one number each, without repeats, so that no verdict can come of them."""

from __future__ import annotations

from metalmark.model.run import Absent
from metalmark.results.measured import Measured
from metalmark.results.published import METRICS, STEPS, Figure, published

NOT_SAID = Absent(reason="not published")


def published_side() -> list[Measured]:
    """Those that time training steps alone; a time of a whole run or an epoch counts more than steps."""
    return [_measured(figure) for figure in published() if figure.metric in METRICS]


def _measured(figure: Figure) -> Measured:
    batch = int(figure.params.get("batch_size", "1"))
    step_s = None if figure.value is None else figure.value / STEPS
    return Measured(
        what={"workload": figure.workload, "mode": figure.mode.value, "dtype": figure.dtype, **figure.params},
        how={"framework": figure.framework, "device": figure.device},
        around={},
        processes=() if step_s is None else ((step_s / batch,),),
        samples_per_step=batch,
        memory_bytes=NOT_SAID,
        memory_of="",
        energy=NOT_SAID,
        flags={},
        failure="" if step_s is not None else "out of memory: as published",
        published=f"{figure.source}; {figure.note}",
    )
