"""Watched runs in tables: each pass through a loader, and of a script what its steps are made of, its phases, where it
waited for the device, its copies and its processes."""

from collections import Counter
from collections.abc import Iterator, Sequence

from metalmark.explain.from_watch import explain_watched
from metalmark.explain.sentences import verdict_sentence
from metalmark.model.watch import CopyGroup, SyncPoint, WatchedProcess, WatchedRun, WatchedScript, WatchedSteps
from metalmark.report.text.tables import Table
from metalmark.report.text.units import count, duration, figures, seconds, share, size

PASSES = ("loop", "steps", "time", "step", "input wait", "until the first batch")
PARTS = ("part of a step", "per step", "share")
PHASES = ("phase", "time", "share")
SYNCS = ("where", "call", "times", "each", "in all", "of the steps")
COPIES = ("copies of up to", "number", "bytes in all", "time as the host saw it")
PROCESSES = ("process", "number", "steps", "ended")
MOST_SYNCS = 12


def watched_tables(run: WatchedRun) -> list[Table]:
    """Return the table of the passes, and those of a script that was watched unchanged."""
    script = run.script
    if script is None:
        return [watched_table(run)]
    tables = [watched_table(run)]
    tables += [steps_table(script, script.steady)] if script.steady is not None and script.steady.steps else []
    tables += [phases_table(script.phases, run.elapsed_s)] if script.phases else []
    tables += [syncs_table(script.syncs, script.steady)] if script.syncs else []
    tables += [copies_table(script.copies)] if script.copies else []
    return [*tables, *([processes_table(script.processes)] if len(script.processes) > 1 else [])]


def watched_table(run: WatchedRun) -> Table:
    rows = [
        (one.loop, f"{one.steps:,}", seconds(one.elapsed_s), seconds(one.elapsed_s / one.steps) if one.steps else "-",
         share(one.waited_s / one.elapsed_s) if one.waited_s is not None and one.elapsed_s > 0 else "-",
         seconds(one.first_wait_s) if one.first_wait_s is not None else "-")
        for one in run.passes
    ]  # fmt: skip
    logged = [
        f"{curve.name}: {count(len(curve.values), 'value')} logged, the last finite one {values[-1]:g}."
        for curve in run.curves
        if (values := [value for value in curve.values if value is not None])
    ]
    ended = f"{run.ended.value.capitalize()} after {duration(run.elapsed_s)}; its times are the host's."
    script = (
        [] if run.script is None or not run.script.command else [f"{run.script.command}: {exit_words(run.script)}."]
    )
    return Table(
        headers=PASSES,
        numeric=(False, True, True, True, True, True),
        rows=tuple(rows),
        caption=run.name,
        notes=(ended, *script, *([run.error] if run.error else []), *logged, *run.notes),
    )


def watched_verdict(run: WatchedRun) -> str:
    """Say what the steps of a script wait for, as far as watching tells; empty where no step was seen."""
    seen = run.script is not None and run.script.steady is not None and run.script.steady.steps > 0
    return verdict_sentence(explain_watched(run)) if seen else ""


def exit_words(script: WatchedScript) -> str:
    """Say how the script ended: "exit code 0", "ended by SIGTERM"."""
    if script.signal:
        return f"ended by {script.signal}"
    return "exit code not known" if script.exit_code is None else f"exit code {script.exit_code}"


def step_parts(steady: WatchedSteps) -> list[tuple[str, float]]:
    """Return the parts of all steps, in seconds, that add up to their time; those of no length are left out."""
    told = [
        ("input wait", steady.waited_s),
        ("forward", steady.forward_s or 0.0),
        ("backward", steady.backward_s or 0.0),
        ("optimiser", steady.optimizer_s or 0.0),
    ]
    rest_s = max(steady.elapsed_s - sum(value for _, value in told), 0.0)
    apart = any(value for _, value in told[1:])
    return [
        (name, value) for name, value in (*told, ("everything else" if apart else "the step itself", rest_s)) if value
    ]


def steps_table(script: WatchedScript, steady: WatchedSteps) -> Table:
    parts = step_parts(steady)
    whole_s = sum(value for _, value in parts) or 1.0
    rows = [(name, seconds(value / steady.steps), share(value / whole_s)) for name, value in parts]
    return Table(
        headers=PARTS,
        numeric=(False, True, True),
        rows=(*rows, ("one step", seconds(steady.elapsed_s / steady.steps), "100.0%")),
        caption=f"What {count(steady.steps, 'step')} after the first are made of, as the host saw them",
        notes=tuple(_step_notes(script, steady)),
    )


def _step_notes(script: WatchedScript, steady: WatchedSteps) -> Iterator[str]:
    per_step_s = steady.elapsed_s / steady.steps
    inside = [("waiting for the device", steady.sync_s), ("copying to it", steady.copy_s)]
    said = [f"{name} {seconds(value / steady.steps)} ({share(value / steady.elapsed_s)})"
            for name, value in inside if value and steady.elapsed_s]  # fmt: skip
    if said:
        yield f"Of each step, wherever in it: {', '.join(said)}."
    if steady.host_s is not None:
        yield f"Processor time of the training's own thread: {seconds(steady.host_s / steady.steps)} per step."
    if script.first_step_s is not None:
        times = f", {figures(script.first_step_s / per_step_s)} times the others" if per_step_s > 0 else ""
        yield f"First step: {seconds(script.first_step_s)}{times}."
    if script.batch_size and per_step_s > 0:
        yield f"Batch size {script.batch_size:,}: {figures(script.batch_size / per_step_s)} samples per second."


def phases_table(phases: dict[str, float], elapsed_s: float) -> Table:
    """Return the phases of the script's time, and what is left of it."""
    rest_s = elapsed_s - sum(phases.values())
    every = {**phases, **({"other": rest_s} if rest_s > 0 and "other" not in phases else {})}
    whole_s = max(elapsed_s, sum(phases.values())) or 1.0
    return Table(
        headers=PHASES,
        numeric=(False, True, True),
        rows=tuple((name, seconds(value), share(value / whole_s)) for name, value in every.items()),
        caption="Where the time of the whole script went",
    )


def syncs_table(syncs: Sequence[SyncPoint], steady: WatchedSteps | None) -> Table:
    """Return where the host waited for the device, the worst first."""
    whole_s = steady.elapsed_s if steady is not None else 0.0
    worst = sorted(syncs, key=lambda one: -one.seconds)
    rows = [
        (one.where, one.call, f"{one.count:,}", seconds(one.seconds / one.count) if one.count else "-",
         seconds(one.seconds), share(one.seconds / whole_s) if whole_s else "")
        for one in worst[:MOST_SYNCS]
    ]  # fmt: skip
    left = len(worst) - len(rows)
    return Table(
        headers=SYNCS,
        numeric=(False, False, True, True, True, True),
        rows=tuple(rows),
        caption="Where the host waited for the device, the worst first",
        notes=(f"{left} more; --json has them all.",) if left > 0 else (),
        drop=("each",),
    )


def copies_table(copies: Sequence[CopyGroup]) -> Table:
    rows = [
        (size(one.up_to_bytes), f"{one.count:,}", size(one.total_bytes), seconds(one.seconds))
        for one in sorted(copies, key=lambda one: one.up_to_bytes)
    ]
    return Table(
        headers=COPIES,
        numeric=(True, True, True, True),
        rows=tuple(rows),
        caption="Copies from the host's memory to the device's, by size",
        notes=("A copy that the host does not wait for ends later than it saw.",),
    )


def processes_table(processes: Sequence[WatchedProcess]) -> Table:
    """Return one row per kind of process."""
    kinds = Counter((one.role, one.steps, one.ended) for one in processes)
    rows = [
        (role, str(number), f"{steps:,}" if steps else "-", "yes" if ended else "no, or killed")
        for (role, steps, ended), number in kinds.items()
    ]
    return Table(
        headers=PROCESSES,
        numeric=(False, True, True, False),
        rows=tuple(rows),
        caption="Processes of the script that were followed",
    )
