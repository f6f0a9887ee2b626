"""The answer: what the runs of a report say, in a few plain sentences. Commands in them stand between backticks.

Its verdicts are those of `metalmark compare`. Where the repeats are too few or the intervals too wide, it says that
this can't be told, and what to type to find out.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from metalmark.model.run import PARITY_FAILED, Absent
from metalmark.model.training import ACCURACY, Target, TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.report.compare_answer import comparison_answer, parity_failed_words, try_to_compare
from metalmark.report.content import Content
from metalmark.report.text.explain_page import explanation_answers
from metalmark.report.text.parity_page import parity_answers
from metalmark.report.text.tune_page import tuning_answers
from metalmark.report.text.units import (
    count,
    duration,
    figures,
    grouped,
    metric_value,
    percent,
    seconds,
    share,
    target_shown,
)
from metalmark.report.text.watch_page import watched_verdict
from metalmark.results.comparison import Comparison, compare
from metalmark.results.derived import parity_flags, target_reached, training_figures
from metalmark.results.measured import Measured, measured_of
from metalmark.results.pairing import Side, shown
from metalmark.results.sides import comparable_keys
from metalmark.stats.difference import ENOUGH, Difference, Verdict, typical
from metalmark.stats.summary import step_interval
from metalmark.training.derived import best, elapsed_s, figure, monitor_of

MOST_GROUPS = 3
MOST_SIDES = 4
MOST_CAUSES = 2
NO_REASON = {"metalmark", "os", "python"}
"""What nobody compares by unless it is all that differs."""
CAUSES = {
    "busy_machine": "the machine was busy",
    "throttled": "the chip slowed down from heat",
    "on_battery": "the machine ran on its battery",
    "low_power_mode": "low power mode was on",
    "slept": "the machine slept meanwhile",
    "swapping": "the machine was swapping memory",
    "drifting": "step times drifted",
    "unsteady": "step times were unsteady",
}
"""Flags that another measurement may be free of."""


def answer(content: Content) -> list[str]:
    """Return what the runs say, a sentence or two per workload and kind of run."""
    cells = measured_of(content.asked_bench_runs)
    lines = [
        *_limited(tuning_answers(content.tunings)),
        *_limited(explanation_answers(content.explanations)),
    ]
    lines += [*_limited(_bench_answers(cells)), *_limited(_training_answers(content.trainings))]
    lines += _limited(parity_answers(content.asked_parities))
    lines += _limited(map(_watched_answer, content.watched))
    if len(content.watched) > 1:
        lines += _verdicts([Side.of_runs(run.name, [run]) for run in content.watched])
    if lost := [cell for cell in cells if cell.failure]:
        first = f"{lost[0].name} ({lost[0].failure.partition(':')[0]})"
        lines.append(f"{len(lost)} of {count(len(cells), 'cell')} did not complete, the first {first}.")
    return lines


def _limited(answers: Iterable[str]) -> list[str]:
    every = list(answers)
    left = len(every) - MOST_GROUPS
    return [*every[:MOST_GROUPS], *([f"The tables below have {left} more."] if left > 0 else [])]


def _verdicts(sides: Sequence[Side], *, by: Sequence[str] = (), target: float | None = None) -> list[str]:
    found = try_to_compare(sides, by=by, target_accuracy=target)
    more = [f"The table has {len(found) - MOST_SIDES} more."] if len(found) > MOST_SIDES else []
    return [*map(_verdict, found[:MOST_SIDES]), *more]


def _verdict(found: Comparison) -> str:
    said = comparison_answer(found)
    if len(found.rows) > 1 and all(row.verdict is Verdict.CANT_TELL for row in found.rows) and not found.mean:
        cells = count(len(found.rows), "cell")
        said = f"Can't tell whether {found.b} is faster than {found.a} in any of {cells}: {found.rows[0].reason}."
    unsure = [row for row in found.rows if row.command and row.verdict is Verdict.CANT_TELL]
    if not unsure or unsure[0].command in said:
        return said
    return f"{said} Measure again: `{_together(unsure[0].command.split(' && '))}`."


def _together(commands: Sequence[str]) -> str:
    """Commands that differ in one word as a single one with a list, so that its cells are measured in turns."""
    words = [shlex.split(command) for command in dict.fromkeys(commands)]
    if len({len(each) for each in words}) == 1:
        apart = [place for place, each in enumerate(zip(*words, strict=True)) if len(set(each)) > 1]
        if len(apart) == 1:
            name, equals, _ = words[0][apart[0]].partition("=")
            values = [each[apart[0]].removeprefix(f"{name}=") for each in words]
            words[0][apart[0]] = f"{name}={','.join(values)}" if equals else ",".join(values)
            return shlex.join(words[0])
    return " && ".join(dict.fromkeys(commands))


def _bench_answers(cells: Sequence[Measured]) -> Iterator[str]:
    done = [((cell.what["workload"], cell.what["mode"]), cell) for cell in cells if not cell.failure]
    for (workload, mode), group in grouped(done).items():
        told = _compared(group)
        lead = f"{workload} {mode}"
        for key, before in (("batch_size", "batch "), ("device", "")):
            values = {cell.value(key) for cell in group}
            lead += f", {before}{group[0].value(key)}" if len(values) == 1 and None not in values else ""
        said = " ".join([f"{lead}: {told}", *_again(group, asked="`" in told)]) if told else _fastest(group)
        # A comparison says it itself, in its own words.
        unsaid = [cell.name for cell in group if PARITY_FAILED in cell.flags and PARITY_FAILED not in said]
        yield " ".join([said, *(parity_failed_words(name) for name in dict.fromkeys(unsaid))])


def _compared(cells: Sequence[Measured]) -> str:
    """How the frameworks, or else the devices or settings, of these cells compare; empty where nothing does."""
    keys = [key for key in comparable_keys(cells) if len({cell.value(key) for cell in cells}) > 1]
    for key in sorted(keys, key=lambda key: key in NO_REASON):
        values = grouped((cell.value(key) or "", cell) for cell in cells)
        plain = key in ("framework", "device")
        sides = [Side(value if plain else f"{shown(key)} {value or 'not set'}", held) for value, held in values.items()]
        speeds = [1.0]
        for found in (compare(sides[0], side, by=[key]) for side in sides[1:]):
            # B's speed over A's in the cells that both have; 0 where there is none.
            every = [found.mean, *(row.speed for row in found.rows)]
            speeds.append(next((speed.ratio for speed in every if isinstance(speed, Difference)), 0.0))
        fastest = sides[speeds.index(max(speeds))]
        told = _verdicts([fastest, *(side for side in sides if side is not fastest)], by=[key])
        if told:
            return " ".join(told)
    return ""


def _again(cells: Sequence[Measured], *, asked: bool = False) -> list[str]:
    """Why these figures deserve a second look, and the command that takes it unless it is there already."""
    flagged = [cell for cell in cells if set(cell.flags) & set(CAUSES)]
    if not flagged:
        return []
    causes = dict.fromkeys(CAUSES[flag] for cell in flagged for flag in cell.flags if flag in CAUSES)
    said = " and ".join(list(causes)[:MOST_CAUSES]).capitalize()
    if asked:
        return [f"{said}."]
    same = [cell for cell in cells if cell.what == flagged[0].what]
    command = _together([f"{cell.command} --repeat {ENOUGH}" for cell in same])
    return [f"{said}, so measure again: `{command}`."]


def _fastest(cells: Sequence[Measured]) -> str:
    """The figure of one cell; of cells that differ in their sizes alone, that of the fastest."""
    ranked = sorted(cells, key=_sample_s)
    top = ranked[0]
    step_s = _sample_s(top) * top.samples_per_step
    interval = step_interval([[time * top.samples_per_step for time in times] for times in top.processes])
    about = "too few blocks for an interval"
    if interval is not None:
        about = f"95% interval {seconds(interval.low)} to {seconds(interval.high)}, over {interval.over}"
    name = top.name + (f", batch {top.what['batch_size']}" if "batch_size" in top.what else "")
    figure = f"{seconds(step_s)} per step, {figures(top.samples_per_step / step_s)} samples per second ({about})"
    lines = [f"{name} takes {figure}." if len(cells) == 1 else f"Highest throughput: {name} with {figure}."]
    others = step_interval(ranked[1].processes) if len(ranked) > 1 else None
    ours = step_interval(top.processes)
    # Where one has no interval, nothing tells them apart.
    if len(ranked) > 1 and (ours is None or others is None or ours.high >= others.low):
        lines.append(f"The next one, {figures(1 / _sample_s(ranked[1]))} samples per second, can't be told from it.")
    again = _again([top])
    if not again and len(top.processes) < 3:
        few = f"{count(len(top.processes), 'process', 'processes')} can't show how processes differ"
        again = [f"{few}, so measure again: `{top.command} --repeat {ENOUGH}`."]
    return " ".join([*lines, *again])


def _sample_s(cell: Measured) -> float:
    return typical(cell.processes)


def _training_answers(runs: Sequence[TrainingRun]) -> Iterator[str]:
    groups = grouped((run.plan.workload, run) for run in runs)
    for workload, group in groups.items():
        trained = [run for run in group if run.epochs]
        lead = f"{workload}: " if len(groups) > 1 else ""
        if not trained:
            yield f"{lead}no training came to the end of an epoch."
        else:
            yield lead + (_training_answer(trained[0]) if len(trained) == 1 else _first_to_reach(trained))


def _training_answer(run: TrainingRun) -> str:
    top, target = best(run.epochs, run.goal.monitor), run.goal.wanted
    assert top is not None
    by = monitor_of(run.epochs, run.goal.monitor)
    value = metric_value(by.name, figure(top, by.name))
    came_to = f"a validation accuracy of {value}" if by.name == ACCURACY else f"a {by.name} of {value}"
    line = (
        f"{training_figures(run).label} reached {came_to} in epoch {top.number} "
        f"of {len(run.epochs)}, which took {duration(sum(map(elapsed_s, run.epochs)))} in all."
    )
    wrong = f" {parity_failed_words('It')}" if parity_flags(run) else ""
    if target is None:
        return f"{line}{wrong}"
    found = target_reached(run, target)
    after = f"was reached after {duration(found.seconds)}" if found else "was not reached"
    return f"{line} The target of {target_shown(target)} {after}.{wrong}"


def _first_to_reach(runs: Sequence[TrainingRun]) -> str:
    """Who reached the target and when; without a common target, the best that all of them reached."""
    targets = {run.goal.wanted for run in runs}
    target = targets.pop() if len(targets) == 1 else None
    if target is None:
        target = _reached_by_all(runs)
    if target is None:
        return " ".join(_training_answer(run) for run in runs[:MOST_SIDES])
    accuracy = target.value if target.name == ACCURACY else None
    what = f"{percent(accuracy)} validation accuracy" if accuracy is not None else target_shown(target)
    sides = grouped((training_figures(run).label, run) for run in runs)
    reached = [(label, target_reached(run, target)) for label, held in sides.items() for run in held]
    times = sorted((found.seconds, label) for label, found in reached if found is not None)
    never = dict.fromkeys(label for label, found in reached if found is None)
    parts = [f"{label} after {duration(time_s)}" for time_s, label in times]
    line = (
        f"No training reached {what}."
        if accuracy is None
        else (f"No training reached a validation accuracy of {percent(accuracy)}.")
    )
    if parts:
        more = f" and {len(parts) - MOST_SIDES} more" if len(parts) > MOST_SIDES else ""
        line = f"{what}: first {', then '.join(parts[:MOST_SIDES])}{more}."
        line += f" Not reached by {', '.join(never)}." if never else ""
    if len(sides) < 2:
        return line
    verdicts = _verdicts([Side.of_runs(label, held) for label, held in sides.items()], target=accuracy)
    return " ".join([line, *verdicts])


def _reached_by_all(runs: Sequence[TrainingRun]) -> Target | None:
    """Return the best value that every training came to of what they were all judged by; None where they differ."""
    monitors = {monitor_of(run.epochs, run.goal.monitor) for run in runs}
    if len(monitors) > 1:
        return None
    by = monitors.pop()
    tops = [best(run.epochs, by) for run in runs]
    values = [figure(top, by.name) for top in tops if top is not None]
    known = [value for value in values if not isinstance(value, Absent)]
    worst = max(known, default=None) if by.falls else min(known, default=None)
    return None if worst is None else Target(name=by.name, falls=by.falls, value=worst)


def _watched_answer(run: WatchedRun) -> str:
    loop = next(iter(run.stretches), "")
    stretches = run.stretches.get(loop, ())
    steps, wait = sum(stretch.steps for stretch in stretches), run.input_wait_share(loop)
    if not steps:
        return f"{run.name}: {run.ended.value} after {duration(run.elapsed_s)}, and no loop of it was watched."
    step_s = sum(stretch.elapsed_s for stretch in stretches) / steps
    waiting = f", {share(wait)} of it waiting for input" if wait is not None else ""
    told = f"{run.name}: {seconds(step_s)} per step by the host's clock over {count(steps, 'step')}{waiting}"
    return f"{told} ({run.ended.value}). {watched_verdict(run)}".rstrip()
