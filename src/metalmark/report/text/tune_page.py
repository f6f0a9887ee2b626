"""Tunings in words and tables: what was gained first, then the ladder, what else was tried, and what was not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from metalmark.model.parity import ParityVerdict
from metalmark.model.plan import Mode, PlanChange, word
from metalmark.model.run import PARITY_FAILED, Failed
from metalmark.model.tuning import Rung, RungStatus, Tuned, TuningGoal, TuningRun
from metalmark.report.text.explain_page import gain_words
from metalmark.report.text.tables import Table, spaced
from metalmark.report.text.units import count, duration, figures, joules, seconds, size
from metalmark.results.command import change_options
from metalmark.tune.ladder import best_so_far

LADDER = ("settings", "step", "samples/s", "gain", "first step", "memory", "energy per sample", "parity")
TEXTS = {"settings", "parity"}
MAY_LACK = {"samples/s", "gain", "first step", "memory", "energy per sample"}
"""Columns that are left out where no rung has a value."""
DROP = ("memory", "first step", "energy per sample", "samples/s")
TRIED = ("tried", "step", "gain", "status", "because")
SO_FAR = ("tried", "step", "samples/s", "energy per sample", "memory", "gain", "what came of it")
SEVERAL = ("tuned", "best settings", "step", "samples/s", "gain", "parity")
GOAL_COLUMNS = {TuningGoal.ENERGY: "energy per sample", TuningGoal.MEMORY: "memory"}
"""What a narrow window keeps, since it is what was asked for."""
GAIN_OF = {
    TuningGoal.THROUGHPUT: "samples per second of these settings over those of the baseline",
    TuningGoal.LATENCY: "the baseline's time per step over that of these settings",
    TuningGoal.ENERGY: "the baseline's energy per sample over that of these settings",
    TuningGoal.MEMORY: "the baseline's memory peak over that of these settings",
}
NOT_CHECKED = "not checked"
NOT_MEASURED = "-"
NOT_THE_BEST = "not the best"
UNGATED = "The gate was switched off: nothing here says whether these settings train the same network."


# Sentences


def tuning_sentence(run: TuningRun) -> str:
    """Say which settings are best and what they gain, that none helps, or why that could not be told."""
    found, subject = run.outcome, subject_words(run)
    if isinstance(found, Failed):
        why = " ".join(part for part in (found.message.rstrip("."), found.hint.rstrip(".")) if part)
        return f"{subject} could not be tuned: {found.kind.value}: {why}."
    best = found.best
    if len(found.ladder) < 2 or best.gain is None:
        return _nothing_helps(run, found)
    settings = settings_list(best.change) or [best.title]
    verb = "makes" if len(settings) == 1 else "make"
    better = f"{_better(run, subject, best)}: {_became(run, found)}; {_correct(run, best)}."
    if found.complete:
        return f"{_joined(settings)} {verb} {better}"
    return f"Stopped after {_trials(found)}: so far, {_joined(settings)} {verb} {better}"


def tuning_answers(runs: Sequence[TuningRun]) -> list[str]:
    """Return one sentence per tuning; where there are several, the first says which came out best."""
    if len(runs) == 1:
        return [tuning_sentence(runs[0])]
    return [*_best_of(runs), *(f"{run.plan.label}: {tuning_sentence(run)}" for run in runs)]


def _best_of(runs: Sequence[TuningRun]) -> Iterator[str]:
    """Say which of several tunings of one workload came out best, and by how much. Between them, one process each or
    three tell no interval."""
    values = {run.id: _proved_value(run) for run in runs}
    order = sorted((value, place) for place, run in enumerate(runs) if (value := values[run.id]) is not None)
    same = all(_same_question(run, runs[0]) for run in runs)
    if len(order) < 2 or not same:
        return
    (best, first), (next_best, second) = order[0], order[1]
    settings = settings_words(_best_rung(runs[first]).change) or "no setting changed"
    goal = runs[first].request.goal.value
    yield (
        f"Best {goal}: {subject_words(runs[first])} with {settings}, {next_best / best:.2f}x as good as the next, "
        f"{subject_words(runs[second])} with {settings_words(_best_rung(runs[second]).change) or 'no setting changed'}."
    )


def _same_question(one: TuningRun, other: TuningRun) -> bool:
    """Whether two tunings differ in framework or device alone."""
    a, b = one.plan, other.plan
    same = (a.workload, a.params, a.mode, one.request.goal) == (b.workload, b.params, b.mode, other.request.goal)
    return same and (one.id == other.id or (a.framework, a.device) != (b.framework, b.device))


def _best_rung(run: TuningRun) -> Rung:
    """The best rung that may be used: the baseline where the best failed the gate or is not proved."""
    assert isinstance(run.outcome, Tuned)
    usable = run.outcome.best.status in (RungStatus.BEST, RungStatus.BASELINE)
    return run.outcome.best if usable else run.outcome.baseline


def _proved_value(run: TuningRun) -> float | None:
    return _best_rung(run).value if isinstance(run.outcome, Tuned) else None


def subject_words(run: TuningRun) -> str:
    """Name what was tuned: "mnist-mlp on torch, cpu"."""
    plan = run.plan
    mode = "" if plan.mode is Mode.TRAINING else f" {plan.mode.value}"
    placed_on = "" if isinstance(run.outcome, Failed) else run.outcome.placed_on
    return f"{plan.workload}{mode} on {plan.framework}, {placed_on or plan.device}"


def settings_list(change: PlanChange) -> list[str]:
    """Name each thing that is changed, as people speak of it: ["bfloat16", "compile", "batch size 64"]."""
    words = [_setting_words(name, value) for name, value in {**change.settings, **change.loader}.items()]
    words += [f"{spaced(name)} {word(value)}" for name, value in change.params.items()]
    return [*words, *([f"data from {change.feed.value}"] if change.feed is not None else [])]


def settings_words(change: PlanChange) -> str:
    """Name everything that is changed: "bfloat16, compile and fused"."""
    return _joined(settings_list(change))


def rung_name(rung: Rung) -> str:
    """Name a rung by all its settings, whatever the rung before it was."""
    return settings_words(rung.change) or rung.title


def parity_words(rung: Rung) -> str:
    """Say what the checks found of a rung. What does not train the same network has the flag here too."""
    if rung.verdict is None:
        return NOT_MEASURED if rung.status is RungStatus.BASELINE else NOT_CHECKED
    return f"{rung.verdict.value}{failed_mark(rung)}"


def status_words(rung: Rung) -> str:
    return f"{state_word(rung)}{failed_mark(rung)}"


def state_word(rung: Rung) -> str:
    """Name the status as a reader of the gain beside it would: "no gain" beside 2.32x would be read as a mistake."""
    is_second = rung.status is RungStatus.NO_GAIN and (rung.gain or 0.0) > 1 and not rung.reason
    return NOT_THE_BEST if is_second else rung.status.value


def failed_mark(rung: Rung) -> str:
    """What stands behind a speed that is not that of the same network."""
    return f", {PARITY_FAILED}" if rung.verdict is ParityVerdict.DIFFERS else ""


def rate_of(rung: Rung) -> float | None:
    """Samples per second."""
    return rung.samples_per_step / rung.step_s if rung.samples_per_step and rung.step_s else None


def rung_line(rung: Rung, best: Rung | None) -> str:
    """Return what settings came to while the search goes on, in one line: "bfloat16: 4.10 ms per step, gain 1.73x"."""
    gain = "" if rung.status is RungStatus.BASELINE else f"gain {gain_words(rung.gain, rung.low, rung.high)}"
    figures = [f"{_step(rung)} per step", gain] if rung.step_s is not None else []
    return f"{rung.title}: {', '.join(filter(None, [*figures, came_of(rung, best)]))}"


def came_of(rung: Rung, best: Rung | None) -> str:
    """Say what became of settings while the search goes on; empty where their gain says it all."""
    if rung.status in (RungStatus.FAILED, RungStatus.DIFFERS, RungStatus.UNPROVED):
        return f"{status_words(rung)}: {rung.reason}" if rung.reason else status_words(rung)
    return "best so far" if rung == best else rung.reason


def _setting_words(name: str, value: object) -> str:
    if name == "dtype":
        return word(value)
    if isinstance(value, bool):
        return spaced(name) if value else f"no {spaced(name)}"
    return f"{spaced(name)} {word(value)}"


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _better(run: TuningRun, subject: str, best: Rung) -> str:
    """Say what is better, and by how much: "mnist-mlp on torch, cpu 1.84x as fast (1.79x to 1.90x)"."""
    interval = "" if best.low is None or best.high is None else f" ({best.low:.2f}x to {best.high:.2f}x)"
    goal, planned = run.request.goal, run.request.steps_planned
    over = f" over {count(planned, 'step')}, the first one included" if planned else ""
    if goal in (TuningGoal.THROUGHPUT, TuningGoal.LATENCY):
        return f"{subject} {best.gain:.2f}x as fast{interval}{over}"
    what = "energy per sample" if goal is TuningGoal.ENERGY else "memory peak"
    return f"the {what} of {subject} {best.gain:.2f}x lower{interval}"


def _became(run: TuningRun, found: Tuned) -> str:
    """Say what the figure of the goal was, and what it is now."""
    before, after = (_goal_words(run, rung, found) for rung in (found.baseline, found.best))
    return f"{before}{_per_step(run, found)} became {after}"


def _goal_words(run: TuningRun, rung: Rung, found: Tuned) -> str:
    goal = run.request.goal
    if goal is TuningGoal.ENERGY:
        value = rung.joules_per_sample if rung.joules_per_sample is not None else rung.value
        return NOT_MEASURED if value is None else joules(value)
    if goal is TuningGoal.MEMORY:
        held = rung.peak_bytes if rung.peak_bytes is not None else rung.value
        return NOT_MEASURED if held is None else size(held)
    return _step(rung) if _same_batch(found) else f"{_rate(rung) or NOT_MEASURED} samples/s"


def _per_step(run: TuningRun, found: Tuned) -> str:
    speed = run.request.goal in (TuningGoal.THROUGHPUT, TuningGoal.LATENCY)
    return " per step" if speed and _same_batch(found) else ""


def _same_batch(found: Tuned) -> bool:
    """Whether the steps of the baseline and of the best can be compared: those of other batch sizes do other work."""
    return found.best.samples_per_step == found.baseline.samples_per_step


def _correct(run: TuningRun, best: Rung) -> str:
    """Say whether the best settings passed the gate."""
    same = "trains the same network" if run.plan.mode is Mode.TRAINING else "computes the same outputs"
    if "batch_size" in best.change.params and run.plan.mode is Mode.TRAINING:
        same = f"{same} as the baseline does with that batch"  # another batch trains differently, whatever the settings
    if best.verdict is ParityVerdict.DIFFERS:
        same = same.replace("trains", "train").replace("computes", "compute")
        return f"it does not {same} ({PARITY_FAILED})"
    if best.proved and best.status is not RungStatus.UNPROVED:
        return f"it {same}"
    if not run.request.gate:
        return f"whether it {same} was not checked"
    return f"whether it {same} is not proved"


def _nothing_helps(run: TuningRun, found: Tuned) -> str:
    subject, was = subject_words(run), f"{_goal_words(run, found.baseline, found)}{_per_step(run, found)}"
    better = {TuningGoal.ENERGY: "less energy per sample", TuningGoal.MEMORY: "less memory"}.get(run.request.goal, "")
    faster = f"need {better}" if better else "faster"
    if not found.complete and found.baseline.step_s is None:
        return f"Stopped before the baseline of {subject} was measured."
    if not found.complete:
        return f"Stopped after {_trials(found)}, before any setting was seen to make {subject} {faster} ({was})."
    tried = len(found.others)
    if (open_one := found.undecided) is not None:
        gain = gain_words(open_one.gain, open_one.low, open_one.high)
        return (
            f"It can't be told what makes {subject} {faster} ({was}): {rung_name(open_one)} measured {gain}, since "
            "processes of the same settings differ so much here. Close other programs, or give it more processes and "
            "time (--repeat, --time)."
        )
    if not tried:
        return f"No setting helps: there was nothing to try on {subject} ({was})."
    of = "the one that was tried does not make" if tried == 1 else f"none of {tried} that were tried makes"
    gated = [one for one in found.others if one.status in (RungStatus.DIFFERS, RungStatus.UNPROVED)]
    most = max((one for one in gated if (one.gain or 0) > 1), key=lambda one: one.gain or 0, default=None)
    if most is None:
        return f"No setting helps: {of} {subject} {faster} ({was})."
    but = f"{rung_name(most)} would gain {gain_words(most.gain, most.low, most.high)}, but {_status_clause(most)}"
    return f"No setting helps: {of} {subject} {faster} ({was}) and passes the gate; {but}."


def _status_clause(rung: Rung) -> str:
    return f"is {rung.status.value}" if rung.status is RungStatus.UNPROVED else status_words(rung)


def _trials(found: Tuned) -> str:
    return count(found.trials, "trial")


# Tables


def tuning_tables(runs: Sequence[TuningRun]) -> list[Table]:
    """Return one row per tuning where there are several; of one, the ladder and what else was tried."""
    if not runs:
        return []
    only = runs[0].outcome if len(runs) == 1 else None
    if not isinstance(only, Tuned):
        return [tunings_table(runs)]
    tables = [ladder_table(runs[0], only), *([tried_table(only)] if only.others else [])]
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *closing_notes(runs[0], only)))]


def tunings_table(runs: Sequence[TuningRun]) -> Table:
    """Return one row per tuning, with the best settings that it found."""
    rows = []
    for run in runs:
        found = run.outcome
        if isinstance(found, Failed):
            rows.append((run.plan.label, found.kind.value, NOT_MEASURED, "", "", ""))
            continue
        best = found.best
        gain = "" if len(found.ladder) < 2 else gain_words(best.gain, best.low, best.high)
        settings = settings_words(best.change) or run.header.ending
        rows.append((run.plan.label, settings, _step(best), _rate(best), gain, parity_words(best)))
    return Table(
        headers=SEVERAL,
        numeric=(False, False, True, True, True, False),
        rows=tuple(rows),
        caption="\n".join([*tuning_answers(runs), *([] if len(runs) == 1 else ["Tunings side by side"])]),
        drop=("samples/s", "step"),
    )


def ladder_table(run: TuningRun, found: Tuned) -> Table:
    """Return one row per rung, the baseline first and the best last."""
    rows = [_ladder_cells(rung) for rung in found.ladder]
    shown = [at for at, name in enumerate(LADDER) if name not in MAY_LACK or any(row[at] for row in rows)]
    where = f"{found.placed_on} ({found.device_name})" if found.device_name else found.placed_on
    goal = run.request.goal
    return Table(
        headers=tuple(LADDER[at] for at in shown),
        numeric=tuple(LADDER[at] not in TEXTS for at in shown),
        rows=tuple(tuple(row[at] for at in shown) for row in rows),
        caption="\n".join(
            [tuning_sentence(run), ", ".join(filter(None, [run.plan.label, where, f"goal {goal.value}"]))]
        ),
        notes=tuple(_ladder_notes(run, found)),
        drop=tuple(name for name in DROP if name != GOAL_COLUMNS.get(goal)),
    )


def tried_table(found: Tuned) -> Table:
    """Return one row for everything else that was tried, in the order in which it was."""
    rows = [
        (rung_name(one), _step(one), gain_words(one.gain, one.low, one.high) if one.gain is not None else NOT_MEASURED,
         status_words(one), one.reason)
        for one in found.others
    ]  # fmt: skip
    wide = len(TRIED) if any(one.reason for one in found.others) else len(TRIED) - 1
    return Table(
        headers=TRIED[:wide],
        numeric=(False, True, True, False, False)[:wide],
        rows=tuple(row[:wide] for row in rows),
        caption="What else was tried",
    )


def so_far_table(rungs: Sequence[Rung], goal: TuningGoal) -> Table:
    """Return one row for everything that a running search has tried, in the order in which it was."""
    best, rows = best_so_far(rungs), []
    for rung in rungs:
        _, step, rate, gain, _, memory, energy, _ = _ladder_cells(rung)
        rows.append((rung.title, step, rate, energy, memory, gain, came_of(rung, best)))
    left_out = {"energy per sample", "memory"} - {GOAL_COLUMNS.get(goal)}
    shown = [at for at, name in enumerate(SO_FAR) if name not in left_out]
    return Table(
        headers=tuple(SO_FAR[at] for at in shown),
        numeric=tuple(SO_FAR[at] not in ("tried", "what came of it") for at in shown),
        rows=tuple(tuple(row[at] for at in shown) for row in rows),
        caption="Tried so far",
        notes=(f"Gain: {GAIN_OF[goal]}. The finalists and the gate decide which settings win.",),
    )


def _ladder_cells(rung: Rung) -> tuple[str, ...]:
    gain = "" if rung.gain is None or rung.status is RungStatus.BASELINE else gain_words(rung.gain, rung.low, rung.high)
    return (
        rung.title,
        _step(rung),
        _rate(rung),
        gain,
        seconds(rung.first_step_s) if rung.first_step_s is not None else "",
        size(rung.peak_bytes) if rung.peak_bytes is not None else "",
        joules(rung.joules_per_sample) if rung.joules_per_sample is not None else "",
        parity_words(rung),
    )


def _step(rung: Rung) -> str:
    return seconds(rung.step_s) if rung.step_s is not None else NOT_MEASURED


def _rate(rung: Rung) -> str:
    rate = rate_of(rung)
    return figures(rate) if rate is not None else ""


# What is said below the tables


def _ladder_notes(run: TuningRun, found: Tuned) -> Iterator[str]:
    best = found.best
    options = change_options(best.change)
    if len(found.ladder) > 1 and options:
        yield f"To measure or train with the best settings, add: {options}"
    if len(found.ladder) > 1:
        measured = sorted({rung.processes for rung in found.ladder if rung.low is not None and rung.processes})
        over = f" 95%: over {' or '.join(map(str, measured))} processes of each, in turn." if measured else ""
        planned = run.request.steps_planned
        first = f" The first step counts too, spread over {count(planned, 'step')}." if planned else ""
        yield f"Gain: {GAIN_OF[run.request.goal]}.{first}{over}"
    if not run.request.gate:
        yield UNGATED
    yield from (f"{rung.title}: {rung.reason.rstrip('.')}." for rung in found.ladder if rung.reason)


def closing_notes(run: TuningRun, found: Tuned) -> Iterator[str]:
    """Yield what could have spoilt the trials, what the search noted, what it took, and what was not tried and why."""
    yield from (f"{flag.name}: {flag.evidence}." for flag in run.flags)
    yield from found.notes
    if not found.complete:
        yield "Stopped before the search came to its end."
    if found.trials:
        yield f"{_trials(found)} in {duration(found.elapsed_s)}."
    yield from (f"Not tried: {line.rstrip('.')}." for line in found.left_out)
