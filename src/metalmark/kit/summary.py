"""What a watched run says of itself: one line for a person, and what could have spoiled its figures."""

from __future__ import annotations

from metalmark.record import Flag
from metalmark.runner.flags import flags_around
from metalmark.watched import Watched
from metalmark.window import Window


def summary(run: Watched) -> str:
    """Return all that is worth a look, in one line."""
    parts = [f"{run.name}: {run.ended.value} in {run.elapsed_s:.1f} s"]
    for loop, stretches in run.stretches.items():
        share = run.input_wait_share(loop)
        waiting = f", {share:.0%} of it waiting for input" if share is not None else ""
        parts.append(f"{loop} {sum(stretch.steps for stretch in stretches)} steps{waiting}")
    for curve in run.curves:
        known = [value for value in curve.values if value is not None]
        if known:
            parts.append(f"{curve.name} {known[0]:.4g} → {known[-1]:.4g}")
    parts += [f"{flag.name}: {flag.evidence}" for flag in flags(run)]
    return "; ".join([*parts, *run.notes, f"kept as {run.id}"])


def flags(run: Watched) -> tuple[Flag, ...]:
    """What the machine did that could spoil the figures. Of several GPUs, which one the loop used is not known."""
    placed_on = "gpu:0" if len(run.machine.gpus) == 1 else "cpu"
    return flags_around(Window.between(0.0, run.elapsed_s, placed_on, run.telemetry), run.machine)
