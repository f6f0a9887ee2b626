"""What a watched script's own figures can tell of its steps, and which experiments would settle the rest.

All times are the host's. On the CPU they are the step's own; on an accelerator the host may only wait, or run ahead.
"""

from msgspec.structs import replace

from metalmark.explain.amounts import share_words, time_words
from metalmark.explain.parts import SharePart, added_up
from metalmark.explain.verdict import verdict_of
from metalmark.explain.watched_proposals import watched_proposals
from metalmark.model.explanation import Bottleneck, Cause, Explained
from metalmark.model.run import Absent
from metalmark.model.watch import WatchedRun, WatchedScript, WatchedSteps
from metalmark.runner.flags import flags_of_watched
from metalmark.stats.summary import mean_interval
from metalmark.stats.window import is_cpu

SLOW_COPY_BYTES_PER_S = 1e9
COPY_CALL_S = 50e-6
"""A copy that takes longer than its bytes at this rate, and than a call, has waited for what the device did before."""
BEHIND = 0.5
"""A device that lets the host wait this share of a step whenever it is asked has more to do than the host gives it."""
OF_THE_DEVICE = "whether its arithmetic or its memory is the limit takes experiments"
OFTEN = 0.5
"""Calls that wait, per step, from which on the waits are part of every step."""
NO_PROFILE = Absent(reason="a script that is only watched is not profiled")
NO_ROOFLINE = Absent(reason="the work of a script's steps is not counted")


def explain_watched(run: WatchedRun) -> Explained:
    """Return the shares that the figures of a watched run can tell; the rest is unexplained, with what would tell."""
    script = run.script
    steady = script.steady if script is not None else None
    steady = steady if steady is not None and steady.steps else _from_stretches(run)
    if steady is None or not steady.steps or steady.elapsed_s <= 0:
        return _nothing("No training step was seen after the first")
    step_s = steady.elapsed_s / steady.steps
    error_s = _error_s(run)
    device = script.device if script is not None else ""
    parts, reasons = (_on_the_cpu if is_cpu(device or "cpu") else _on_a_device)(steady, script, error_s)
    shares = added_up(step_s, error_s, parts, reasons)
    flags = flags_of_watched(run)
    bottleneck = verdict_of(shares, flags, run.telemetry)
    explained = Explained(
        bottleneck=bottleneck,
        step_s=step_s,
        error_s=error_s,
        shares=shares,
        profile=NO_PROFILE,
        roofline=NO_ROOFLINE,
        placed_on=device,
        device_name=script.device_name if script is not None else "",
        samples_per_step=script.batch_size if script is not None else None,
        parts=_passes(steady),
        missing=_missing(script, bottleneck),
        notes=_notes(script, step_s),
    )
    return replace(explained, proposals=watched_proposals(explained, script))


def _from_stretches(run: WatchedRun) -> WatchedSteps | None:
    """What an older run has: steps and waits of the loop with the most steps."""
    loops = {name: stretches for name, stretches in run.stretches.items() if stretches}
    if not loops:
        return None
    name = "train" if "train" in loops else max(loops, key=lambda each: sum(s.steps for s in loops[each]))
    stretches = loops[name]
    return WatchedSteps(
        steps=sum(each.steps for each in stretches),
        elapsed_s=sum(each.elapsed_s for each in stretches),
        waited_s=sum(each.waited_s or 0.0 for each in stretches),
    )


def _error_s(run: WatchedRun) -> float:
    """How well the mean step is known, from how its stretches differ."""
    stretches = max(run.stretches.values(), key=len, default=())
    times = [each.elapsed_s / each.steps for each in stretches[1:] if each.elapsed_s > 0]
    interval = mean_interval(times, "stretches") if len(times) >= 3 else None
    return (interval.high - interval.low) / 2 if interval is not None else 0.0


Seen = tuple[list[SharePart], list[str]]
"""What was seen of a step, and why the rest is unexplained."""


def _input(steady: WatchedSteps, error_s: float) -> SharePart:
    waited_s, step_s = min(steady.waited_s, steady.elapsed_s) / steady.steps, steady.elapsed_s / steady.steps
    evidence = f"The loop waited {time_words(waited_s)} per step inside its loader"
    return SharePart(Cause.INPUT, waited_s, error_s * waited_s / step_s, evidence)


def _passes(steady: WatchedSteps) -> dict[str, float]:
    """Forward, backward and optimiser per step, where the hooks told them apart."""
    names = {"forward": steady.forward_s, "backward": steady.backward_s, "optimiser": steady.optimizer_s}
    return {name: seconds / steady.steps for name, seconds in names.items() if seconds}


def _on_the_cpu(steady: WatchedSteps, _: WatchedScript | None, error_s: float) -> Seen:
    step_s, passes = steady.elapsed_s / steady.steps, _passes(steady)
    parts = [_input(steady, error_s)]
    if "optimiser" in passes:
        seconds = min(passes["optimiser"], step_s)
        evidence = f"The optimiser's own call takes {time_words(seconds)} per step"
        parts.append(SharePart(Cause.OPTIMIZER, seconds, error_s * seconds / step_s, evidence))
    named = [f"{name} {time_words(passes[name])}" for name in ("forward", "backward") if name in passes]
    told = f"Computing ({', '.join(named)})" if named else "What is neither input nor optimiser"
    return parts, [f"{told}: whether Python, arithmetic or memory limits it takes experiments"]


def _on_a_device(steady: WatchedSteps, script: WatchedScript | None, error_s: float) -> Seen:
    """Waits and copies are the host's, and the host's own time counts where the device does not limit the step."""
    steps, step_s = steady.steps, steady.elapsed_s / steady.steps
    parts = [_input(steady, error_s)]
    copied_s, held_s = _copies(script, steady)
    if copied_s > 0:
        taken = f"Copies to the device took the host {time_words(steady.copy_s / steps)} per step"
        evidence = f"{taken}, of which their bytes can take {time_words(copied_s)}" if held_s > 0 else taken
        parts.append(SharePart(Cause.TRANSFER, copied_s, copied_s / 2, evidence))
    if steady.host_s is None:
        return parts, ["The host's own time in a step was not seen, so who waits for whom takes experiments"]
    host_s = min(steady.host_s / steps, step_s)
    waits_s, per_step, call_wait_s = _waits(script, steady)
    busy_s = waits_s + held_s
    if per_step >= OFTEN:
        # Without the waits, the step would take the larger of the host's time and the device's, which is at least what
        # was waited for it. How much of the device's work is hidden behind the host's is not seen: the more calls wait
        # in one step, the less it can be.
        most_s = min(host_s, busy_s)
        hidden = 0.5 / max(1.0, per_step)
        lost_s = most_s * (1 - hidden)
        evidence = (
            f"{_calls(per_step)} per step waited {time_words(busy_s)} for the device and the host worked for "
            f"{time_words(host_s)}; without waiting, the shorter would hide behind the longer"
        )
        parts.append(SharePart(Cause.SYNC, lost_s, most_s * max(hidden, 0.25), evidence))
        parts.append(_host(host_s - lost_s if host_s > busy_s else 0.0, host_s, 0.5))
        return parts, [
            f"The device was busy while the host waited for it ({time_words(busy_s)} per step): {OF_THE_DEVICE}"
        ]
    if per_step > 0 and call_wait_s >= BEHIND * step_s:
        behind = f"The device limits the step: whenever the host asked, it waited {time_words(call_wait_s)}"
        return parts, [f"{behind}; {OF_THE_DEVICE}"]
    if per_step > 0:
        parts.append(_host(host_s, host_s, 0.25))
        return parts, ["The rest is the device's, or the host asleep: experiments tell which"]
    parts.append(_host(host_s / 2, host_s, 1.0))
    return parts, [
        "A full queue makes the host look busy, and nothing in the loop waits for the device, which would tell"
    ]


def _host(seconds: float, host_s: float, unsure: float) -> SharePart:
    evidence = f"The training's thread computed for {time_words(host_s)} of each step: Python and launches"
    return SharePart(Cause.HOST, seconds, seconds * unsure, evidence)


def _waits(script: WatchedScript | None, steady: WatchedSteps) -> tuple[float, float, float]:
    """Seconds per step in calls that wait for the device, how many such calls a step has, and seconds per call."""
    syncs = script.syncs if script is not None else ()
    count = sum(sync.count for sync in syncs)
    seconds = steady.sync_s / steady.steps
    per_step = count / steady.steps
    return seconds, per_step, sum(sync.seconds for sync in syncs) / count if count else 0.0


def _copies(script: WatchedScript | None, steady: WatchedSteps) -> tuple[float, float]:
    """Seconds per step of copies that are copying, and those that are waiting for the device."""
    groups = script.copies if script is not None else ()
    copy_s = steady.copy_s / steady.steps
    total_s = sum(group.seconds for group in groups)
    if not total_s:
        return copy_s, 0.0
    can_s = sum(group.total_bytes / SLOW_COPY_BYTES_PER_S + group.count * COPY_CALL_S for group in groups)
    share = min(1.0, can_s / total_s)
    return copy_s * share, copy_s * (1 - share)


def _calls(per_step: float) -> str:
    count = round(per_step)
    return "A call" if count <= 1 else f"{count} calls"


def _missing(script: WatchedScript | None, bottleneck: Bottleneck) -> tuple[str, ...]:
    if bottleneck in (Bottleneck.INPUT, Bottleneck.SWAP, Bottleneck.HEAT):
        return ()
    framework = script.frameworks[0] if script is not None and script.frameworks else "torch"
    device = (script.device if script is not None else "").partition(":")[0].lower() or "cpu"
    typed = f"metalmark explain FILE.py:NAME -f {framework} -d {device}"
    return (
        f"Python and launches against the device's arithmetic and memory: describe the network as a workload of your "
        f"own and type: {typed}",
    )


def _notes(script: WatchedScript | None, step_s: float) -> tuple[str, ...]:
    if script is None:
        return ()
    notes = []
    if script.syncs and script.syncs[0].seconds > 0:
        worst = script.syncs[0]
        notes.append(f"The host waited longest at {worst.where} in {worst.call}: {time_words(worst.seconds)} in all.")
    total_s = sum(script.phases.values())
    for name in ("validation", "checkpoint"):
        seconds = script.phases.get(name, 0.0)
        if total_s > 0 and seconds >= 0.1 * total_s:
            notes.append(f"{name.capitalize()} took {share_words(seconds / total_s)} of the run, outside of its steps.")
    if script.first_step_s is not None and script.first_step_s > 20 * step_s:
        notes.append(f"The first step took {time_words(script.first_step_s)} and is not counted.")
    return tuple(notes)


def _nothing(reason: str) -> Explained:
    return Explained(
        bottleneck=Bottleneck.UNKNOWN, step_s=0.0, error_s=0.0, shares=(), profile=NO_PROFILE, roofline=NO_ROOFLINE,
        notes=(f"{reason}.",),
    )  # fmt: skip
