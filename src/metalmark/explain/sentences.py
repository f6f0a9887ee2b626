"""What an explanation says in one sentence."""

from metalmark.explain.amounts import capital, figures, gain_words, share_words, time_words
from metalmark.explain.scaling import BatchCost, batch_cost
from metalmark.explain.verdict import is_unsure
from metalmark.model.explanation import Bottleneck, Cause, ExperimentKind, Explained, Proposal, Roofline

SLOW_RATE = 0.4
"""Of what the device reached at best: below it the verdict says how slow its operations are."""
WAITS = {
    Bottleneck.INPUT: (Cause.INPUT, "of each step waits for the loader"),
    Bottleneck.HOST: (Cause.HOST, "of each step is Python and launches, while the device has nothing to do"),
    Bottleneck.COMPUTE: (Cause.COMPUTE, "of each step is the device's arithmetic"),
    Bottleneck.MEMORY: (Cause.MEMORY, "of each step goes by while the device reads and writes its memory"),
    Bottleneck.SYNC: (Cause.SYNC, "of each step is lost to calls that wait for the device"),
    Bottleneck.TRANSFER: (Cause.TRANSFER, "of each step copies batches to the device"),
    Bottleneck.OPTIMIZER: (Cause.OPTIMIZER, "of each step is the optimiser's update"),
    Bottleneck.FALLBACK: (Cause.FALLBACK, "of each step is operations that the device lacks and the CPU does"),
    Bottleneck.THREADS: (Cause.CONTENTION, "of each step goes by while threads wait for each other"),
    Bottleneck.SWAP: (Cause.CONTENTION, "of each step"),
    Bottleneck.HEAT: (Cause.CONTENTION, "of each step"),
}


def verdict_sentence(explained: Explained) -> str:
    """Return the verdict, how much of the step it is, and what the best change should bring."""
    bottleneck, step_s = explained.bottleneck, explained.step_s
    best = next(iter(explained.proposals), None)
    if bottleneck is Bottleneck.UNKNOWN:
        return _unknown(explained)
    if bottleneck is Bottleneck.BALANCED:
        ranked = sorted(explained.shares, key=lambda share: -share.seconds)[:3]
        named = [f"{share.cause.value} {share_words(share.seconds / step_s)}" for share in ranked if share.seconds > 0]
        stands = f"nothing stands out in a step of {time_words(step_s)} ({', '.join(named)})"
        return f"Balanced: {stands}{_brings(explained, best)}."
    cause, words = WAITS[bottleneck]
    share = explained.share(cause)
    evidence = next((each.evidence for each in explained.shares if each.cause is cause), "")
    if bottleneck in (Bottleneck.SWAP, Bottleneck.HEAT):
        told = f", which is about {share_words(share)} {words}" if share >= 0.01 else ""
        slow = {
            Bottleneck.SWAP: "memory does not suffice, and the system moves pages to and from the disk",
            Bottleneck.HEAT: "the machine holds its clocks down",
        }[bottleneck]
        return f"{capital(bottleneck.value)}: {slow}{told}{_brings(explained, best)}."
    if share <= 0 and evidence:
        return f"{capital(bottleneck.value)}: {evidence[:1].lower()}{evidence[1:]}{_brings(explained, best)}."
    slowly = _slowly(explained, bottleneck)
    return f"{capital(bottleneck.value)}: {share_words(share)} {words}{slowly}{_brings(explained, best)}."


def _slowly(explained: Explained, bottleneck: Bottleneck) -> str:
    """Say how far below its best rate the device works, where that is far: small operations do not fill it."""
    roofline = explained.roofline
    if not isinstance(roofline, Roofline):
        return ""
    work = {
        Bottleneck.MEMORY: (Cause.MEMORY, roofline.bytes, roofline.peak_bytes_per_s, "copy"),
        Bottleneck.COMPUTE: (Cause.COMPUTE, roofline.flops, roofline.peak_flops_per_s, "matrix product"),
    }
    if bottleneck not in work:
        return ""
    cause, amount, peak_per_s, best = work[bottleneck]
    rate = amount / (explained.share(cause) * explained.step_s) / peak_per_s
    return f", at {share_words(rate)} of the rate of a large {best}" if rate < SLOW_RATE else ""


def _unknown(explained: Explained) -> str:
    if not explained.step_s:
        return "Not told: no step was timed."
    if is_unsure(explained.shares):
        largest = max(explained.shares, key=lambda share: share.seconds)
        known = f"{share_words(largest.seconds / explained.step_s)} ± {share_words(largest.error_s / explained.step_s)}"
        return (
            f"Not told: {largest.cause.value} seems to be {known} of a step of {time_words(explained.step_s)}, which "
            f"is too unsure. Run it again while nothing else runs, or with --seconds 3."
        )
    left = next((each for each in explained.shares if each.cause is Cause.UNEXPLAINED), None)
    share = explained.share(Cause.UNEXPLAINED)
    of_step = f"{share_words(share)} of a step of {time_words(explained.step_s)}"
    return f"Not told: {of_step} is open. {left.evidence}." if left is not None else f"Not told: {of_step} is open."


def _brings(explained: Explained, best: Proposal | None) -> str:
    """The end of the sentence: what the best change should bring."""
    if best is None:
        return ""
    if best.gain is None:
        return f"; {best.title} could make it up to {gain_words(best.high)} as fast" if best.high else ""
    before = _scale(explained, best)
    if before is None:
        return f"; {best.title} should make it {gain_words(best.gain)} as fast"
    return f"; {best.title} should bring {time_words(explained.step_s)} to about {time_words(before)}"


def _scale(explained: Explained, best: Proposal) -> float | None:
    """The step's time after the change; None where its steps have another number of samples."""
    if best.gain is None or (best.change is not None and best.change.params):
        return None
    return explained.step_s / best.gain


def device_sentence(first: Explained, second: Explained) -> str:
    """Return from which batch size on one of two devices is faster, and why, for the same workload."""
    costs = cost_of(first), cost_of(second)
    names = _device(first), _device(second)
    if names[0] == names[1]:
        names = f"the first {names[0]}", f"the second {names[1]}"
    if costs[0] is None or costs[1] is None:
        lacking = names[0] if costs[0] is None else names[1]
        return f"Which device is faster from which batch size on can't be said: {lacking} was timed at one size only."
    needs = ", ".join(f"{name} {_needs(cost)}" for name, cost in zip(names, costs, strict=True) if cost)
    begin = f"{names[0]} needs{needs.removeprefix(names[0])}"
    crossing = crossing_of(costs[0], costs[1])
    small = 0 if costs[0].seconds(1) <= costs[1].seconds(1) else 1
    large = 1 - small
    if crossing is None:
        return f"{begin}: {names[small]} is faster at every batch size."
    return f"{begin}: {names[large]} is faster from a batch of about {figures(crossing)} on."


def cost_of(explained: Explained) -> BatchCost | None:
    """Fixed and marginal cost of a resident step, from its experiments."""
    resident = [each for each in explained.experiments if each.kind is ExperimentKind.RESIDENT and each.seconds]
    if not resident or not explained.samples_per_step:
        return None
    batches = [each for each in explained.experiments if each.kind is ExperimentKind.BATCH]
    return batch_cost(explained.samples_per_step, resident[0], batches)


def crossing_of(first: BatchCost, second: BatchCost) -> float | None:
    """Return the batch size from which on the device that is slower for one sample is the faster one."""
    slow, quick = (first, second) if first.seconds(1) > second.seconds(1) else (second, first)
    low, high = 1.0, 2.0
    while slow.seconds(high) > quick.seconds(high):
        low, high = high, high * 2
        if high > 2**40:
            return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slow.seconds(middle) > quick.seconds(middle) else (low, middle)
    return max(1.0, round(high))


def _needs(cost: BatchCost) -> str:
    return f"{time_words(cost.fixed_s)} + {time_words(cost.marginal_s)} per sample"


def _device(explained: Explained) -> str:
    return explained.placed_on or explained.device_name or "the device"
