"""The verdict: which cause stands out among the shares of a step."""

from collections.abc import Iterable, Sequence

from metalmark.model.explanation import Bottleneck, Cause, StepShare
from metalmark.model.run import Flag, Telemetry

MOST = 0.5
"""A cause with this share of the step is what it is bound by, whatever the others are."""
MUCH, AHEAD = 0.4, 1.5
"""One with this share is too, if it is so many times the next."""
WAITED = 1 / 3
"""What a wait inside the step costs is at most the smaller of the host's and the device's time, so it can't be much
more than half. From this share on the step would be 1.5 times as fast without it."""
LEAST_SURE = 0.25
"""A cause is named only where its share, less its error, is at least this."""
OVERSUBSCRIBED = 1.3
"""Fewer threads must be so many times as fast."""
LITTLE_SWAPPED_BYTES = 16 << 20
"""Systems swap some idle pages of others now and then, which no step feels."""
SWAPPING, THROTTLED = "swapping", "throttled"

BOUND_BY = {
    Cause.INPUT: Bottleneck.INPUT,
    Cause.HOST: Bottleneck.HOST,
    Cause.COMPUTE: Bottleneck.COMPUTE,
    Cause.MEMORY: Bottleneck.MEMORY,
    Cause.SYNC: Bottleneck.SYNC,
    Cause.TRANSFER: Bottleneck.TRANSFER,
    Cause.OPTIMIZER: Bottleneck.OPTIMIZER,
    Cause.FALLBACK: Bottleneck.FALLBACK,
    Cause.CONTENTION: Bottleneck.THREADS,
    Cause.UNEXPLAINED: Bottleneck.UNKNOWN,
}
AVOIDABLE = {Cause.INPUT, Cause.HOST, Cause.TRANSFER, Cause.FALLBACK, Cause.OPTIMIZER, Cause.CONTENTION}


def verdict_of(
    shares: Sequence[StepShare],
    flags: Iterable[Flag] = (),
    telemetry: Telemetry | None = None,
    threads_gain: float = 1.0,
) -> Bottleneck:
    """Return what the step is bound by. `threads_gain`: how many times as fast it is with fewer threads."""
    names = {flag.name for flag in flags}
    if SWAPPING in names and not _swapped_little(telemetry):
        return Bottleneck.SWAP
    if THROTTLED in names:
        return Bottleneck.HEAT
    if threads_gain >= OVERSUBSCRIBED:
        return Bottleneck.THREADS
    step_s = sum(share.seconds for share in shares)
    if step_s <= 0:
        return Bottleneck.UNKNOWN
    sizes = {share.cause: share.seconds / step_s for share in shares}
    waits = sizes.get(Cause.SYNC, 0.0)
    if waits >= WAITED and waits >= max((sizes.get(cause, 0.0) for cause in AVOIDABLE), default=0.0):
        return Bottleneck.SYNC
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    cause, first = ranked[0]
    second = ranked[1][1] if len(ranked) > 1 else 0.0
    if is_unsure(shares):
        return Bottleneck.UNKNOWN
    if first >= MOST or (first >= MUCH and first >= AHEAD * second):
        return BOUND_BY[cause]
    return Bottleneck.BALANCED


def is_unsure(shares: Sequence[StepShare]) -> bool:
    """Whether the largest share is known so badly that it may as well be a small one: on a busy machine, say."""
    step_s = sum(share.seconds for share in shares)
    largest = max(shares, key=lambda share: share.seconds, default=None)
    if largest is None or largest.cause is Cause.UNEXPLAINED or largest.seconds < MUCH * step_s:
        return False
    return largest.seconds - largest.error_s < LEAST_SURE * step_s


def _swapped_little(telemetry: Telemetry | None) -> bool:
    """Whether the system's own counters say that next to nothing was swapped."""
    counters = [series for series in (telemetry.series if telemetry else ()) if series.name.startswith("system_swap_")]
    counters = [series for series in counters if len(series.values) > 1]
    moved = sum(max(0.0, series.values[-1] - series.values[0]) for series in counters)
    return bool(counters) and moved < LITTLE_SWAPPED_BYTES
