"""What would help a script that was only watched."""

from metalmark.explain.amounts import share_words
from metalmark.explain.instructions import device_type, written
from metalmark.explain.proposals import LEAST_SHARE, TITLES, ranked
from metalmark.model.explanation import (
    Bottleneck,
    Cause,
    Explained,
    Proposal,
)
from metalmark.model.plan import DeviceKind
from metalmark.model.watch import WatchedScript


def watched_proposals(explained: Explained, script: WatchedScript | None) -> tuple[Proposal, ...]:
    """What would help a script that was only watched; gains are what its steps would be without a share."""
    framework = script.frameworks[0] if script is not None and script.frameworks else ""
    where = f" ({script.syncs[0].where})" if script is not None and script.syncs else ""
    step_s = explained.step_s
    ideas = {
        Cause.INPUT: (
            "workers",
            "4 loader workers",
            "Each step waits {share} of its time for the loader; four workers make four batches at a time",
        ),
        Cause.SYNC: (
            "fewer_waits",
            TITLES["fewer_waits"],
            f"Waiting for the device costs about {{share}} of a step{where}",
        ),
        Cause.TRANSFER: ("pin", TITLES["pin"], "Copies to the device take {share} of a step"),
        Cause.HOST: ("compile", TITLES["compile"], "Python and launches take {share} of a step; at best none is left"),
        Cause.OPTIMIZER: ("fused", TITLES["fused"], "The optimiser takes {share} of a step; at best none is left"),
    }
    device = device_type(script.device if script is not None else "")
    found = []
    for share in explained.shares:
        name, title, reason = ideas.get(share.cause, ("", "", ""))
        lines = written(name, framework, value=4, device=device) if name else ""
        if not lines or share.seconds < LEAST_SHARE * step_s or (name == "pin" and device != DeviceKind.CUDA.value):
            continue
        left_s = step_s - share.seconds
        if share.cause is Cause.INPUT:  # four workers make four batches in the time of one, at best
            left_s = max(left_s, share.seconds / 4)
        most = step_s / max(left_s, 0.02 * step_s)
        sure = share.cause is Cause.SYNC
        found.append(
            Proposal(
                title=title,
                written=lines,
                gain=most if sure else None,
                low=1.0,
                high=most,
                reason=reason.format(share=share_words(share.seconds / step_s)),
            )
        )
    if explained.bottleneck is Bottleneck.SWAP:
        found.append(
            Proposal(
                title="a smaller batch",
                written=written("memory", framework),
                gain=None,
                reason="The machine swaps; a step that fits into memory does not",
            )
        )
    return ranked(found)
