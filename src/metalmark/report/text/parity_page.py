"""Parity checks in words and tables: the answer first, then each kind of quantity with its worst, then what was tried
to find the cause."""

import math
from collections.abc import Iterator, Sequence

from metalmark.model.parity import Checked, Compared, FaultDiagnosis, ParityRun, ParityVerdict, Quantity, Statistic
from metalmark.model.plan import Plan, word
from metalmark.model.run import Failed
from metalmark.report.text.tables import Table, plan_value, spaced
from metalmark.report.text.units import count, duration, figures, grouped, share
from metalmark.report.text.width import WIDE
from metalmark.results.cells import varying

MANY_SIGMAS = 1e6
"""Beyond it a number of sigmas says no more than that it is large: the noise was nearly nothing."""
MOST_ROWS = 400
"""Quantities that one table lists; --json has all of them."""
NAME_COLUMNS = 30
"""Characters of a parameter's name in a narrow window: its end tells more than its beginning."""
QUANTITIES = ("quantity", "compared", "differ", "worst", "distance", "sigma", "sigmas of limit")
EVERY = ("quantity", "name", "steps", "compared by", "distance", "sigma", "sigmas of limit", "verdict")
CHECKS = ("verdict", "first difference", "sigmas of limit")
NO_SIDE = {"workload", "mode"}


# Sentences


def parity_sentence(run: ParityRun) -> str:
    """Say whether the side agrees with the reference, and what differs first or is nearest to its limit."""
    ours, theirs = side_words(run.plan, run.reference), side_words(run.reference, run.plan)
    outcome = run.outcome
    if isinstance(outcome, Failed):
        why = " ".join(part for part in (outcome.message.rstrip("."), outcome.hint.rstrip(".")) if part)
        return f"Whether {ours} agrees with {theirs} could not be tested: {outcome.kind.value}: {why}."
    rows, wrong = outcome.compared, outcome.differences
    if wrong:
        first = wrong[0]
        more = len(wrong) - 1
        others = f"; {more:,} more of {count(len(rows), 'quantity', 'quantities')} {_verb(more)}" if more else ""
        return (
            f"{ours} differs from {theirs}: the first difference is the {quantity_words(first)}, "
            f"{_off(first)} ({first.limit:g} allowed): {distance_words(first)}{others}."
        )
    within = f"{count(len(rows), 'quantity', 'quantities')} within {'its' if len(rows) == 1 else 'their'} tolerance"
    if not outcome.complete:
        return f"Whether {ours} agrees with {theirs} could not be tested to the end: {within}, then it was stopped."
    excused = sum(bool(row.excused) for row in rows)
    but_for = f", {excused} of them excused" if excused else ""
    return f"{ours} agrees with {theirs}: {within}{but_for}{_nearest(rows)}."


def parity_answers(runs: Sequence[ParityRun]) -> list[str]:
    """Return one sentence per check; where there are several, each names its workload and batch."""
    if len(runs) == 1:
        return [parity_sentence(runs[0])]
    plans = [run.plan for run in runs]
    return [f"{check_name(run.plan, plans)}: {parity_sentence(run)}" for run in runs]


def check_name(plan: Plan, among: Sequence[Plan]) -> str:
    """Name a check by its workload and what tells it from the others: "mnist-mlp, batch size 8"."""
    params, _ = varying(among)
    parts = [f"{spaced(name)} {word(plan.params[name])}" for name in params if name in plan.params]
    sides = {side_words(other) for other in among}
    return ", ".join([plan.workload, *parts, *([side_words(plan)] if len(sides) > 1 else [])])


def side_words(plan: Plan, other: Plan | None = None) -> str:
    """Name a side as people speak of it: "torch mps bfloat16 compile". A dtype that is usual is named where the other
    side has the same name without it."""
    words = _side_words(plan)
    if other is not None and words == _side_words(other):
        words.append(plan.settings.dtype.value)
    return " ".join(words)


def _side_words(plan: Plan) -> list[str]:
    changed = plan.settings.changed()
    words = [
        changed.pop("dtype", ""),
        *(spaced(name) if value == "on" else f"{value} {name}" for name, value in changed.items()),
    ]
    return [plan.framework, str(plan.device), *filter(None, words)]


def quantity_words(row: Compared) -> str:
    """Name what was compared: "output in evaluation of bn1", "change of the parameter fc.bias after 8 steps"."""
    of = {Quantity.UPDATE: " ", Quantity.STATISTIC: " ", Quantity.REPEAT: ", in "}.get(row.quantity, " of ")
    after = f" after {count(row.steps, 'step')}" if row.steps else ""
    return f"{row.quantity.value}{f'{of}{row.name}' if row.name else ''}{after}"


def name_words(row: Compared) -> str:
    """Return the name for a column: "fc.bias, 8 steps"."""
    return ", ".join(filter(None, (row.name, count(row.steps, "step") if row.steps else "")))


def distance_words(row: Compared) -> str:
    """Say how far off it is, in its own measure."""
    off = row.distance
    if off is None:
        return "it has a value that is not finite, where the reference's is"
    if row.quantity is Quantity.ACCURACY:
        return f"{off * 100:.2f} percentage points"
    if row.quantity is Quantity.DROPOUT and row.statistic is Statistic.TYPICAL:
        return f"the share that is dropped is {off * 100:.2f} percentage points off"
    if row.statistic is Statistic.SCALE:
        return f"{share(off)} off in scale"
    if row.statistic is Statistic.LARGEST:
        where = f", at element {', '.join(map(str, row.where))}" if row.where else ""
        return f"up to {figures(off)} times its typical value{where}"
    return f"typically {figures(off)} of its own size"


def sigmas_shown(row: Compared) -> str:
    """Return how many sigmas it is off, of how many are allowed: "4.13 of 10"."""
    limit = f"{row.limit:g}"
    if row.distance is None:
        return f"not finite, {limit}"
    off = f"{MANY_SIGMAS:,.0f}+" if row.sigmas > MANY_SIGMAS else figures(row.sigmas)
    return f"{off} of {limit}"


def worst_of(rows: Sequence[Compared]) -> Compared:
    """Return the one that is furthest outside of its limit, or nearest to it. One that is excused counts last."""
    return max(rows, key=lambda row: (not row.excused, row.sigmas / row.limit if row.limit else math.inf))


def _off(row: Compared) -> str:
    if row.distance is None:
        return "not finite"
    return "more than a million sigmas off" if row.sigmas > MANY_SIGMAS else f"{figures(row.sigmas)} sigmas off"


def _nearest(rows: Sequence[Compared]) -> str:
    judged = [row for row in rows if not row.excused]
    if not judged:
        return ""
    near = worst_of(judged)
    return f"; the nearest is the {quantity_words(near)} at {figures(near.sigmas)} of {near.limit:g} sigmas"


def _verb(number: int) -> str:
    return "differs" if number == 1 else "differ"


# Tables


def parity_tables(runs: Sequence[ParityRun], *, columns: int = WIDE) -> list[Table]:
    """Return one row per check where there are several; of one check a row per kind of quantity, and where nothing is
    cut to a window, a row per quantity too."""
    if not runs:
        return []
    only = runs[0].outcome if len(runs) == 1 else None
    if not isinstance(only, Checked) or not only.compared:
        return [checks_table(runs)]
    return [quantities_table(runs[0], columns=columns), *([every_table(only)] if columns >= WIDE else [])]


def checks_table(runs: Sequence[ParityRun]) -> Table:
    """Return one row per check, with a column for what differs between them."""
    plans = [run.plan for run in runs]
    params, settings = varying(plans)
    names = [name for name in ("workload", "mode") if len({plan_value(plan, name) for plan in plans}) > 1]
    names += [*params, *settings]
    names += ["batch_size"] if not names and "batch_size" in plans[0].params else []
    sides = [("framework", [plan.framework for plan in plans]), ("device", [str(plan.device) for plan in plans])]
    sides += [("reference", [side_words(run.reference) for run in runs])]
    apart = {name: values for name, values in sides if len(set(values)) > 1}
    rows = [
        (*(plan_value(run.plan, name) for name in names), *(values[at] for values in apart.values()), *_check(run))
        for at, run in enumerate(runs)
    ]
    numeric = [all(isinstance(plan.params.get(name, ""), int | float) for plan in plans) for name in names]
    said = [note for run in runs for note in _notes(run, f"{check_name(run.plan, plans)}: " if len(runs) > 1 else "")]
    return Table(
        headers=(*map(spaced, names), *apart, *CHECKS),
        numeric=(*numeric, *(False for _ in apart), False, False, True),
        rows=tuple(rows),
        caption="\n".join([*_together(runs), _caption(runs)]),
        notes=tuple(dict.fromkeys(said)),
        drop=(*(spaced(name) for name in names if name == "mode"), "sigmas of limit"),
    )


def quantities_table(run: ParityRun, *, columns: int = WIDE) -> Table:
    """Return one row per kind of quantity, in the order in which they are compared, with its worst."""
    assert isinstance(run.outcome, Checked)
    groups = grouped((row.quantity, row) for row in run.outcome.compared)
    rows = []
    for quantity in (quantity for quantity in Quantity if quantity in groups):
        found = groups[quantity]
        worst, wrong = worst_of(found), sum(not row.agrees for row in found)
        name = name_words(worst)
        shown = name if columns >= WIDE or len(name) <= NAME_COLUMNS else f"…{name[1 - NAME_COLUMNS :]}"
        rows.append((quantity.value, f"{len(found):,}", f"{wrong:,}" if wrong else "-", shown, *_far(worst)))
    return Table(
        headers=QUANTITIES,
        numeric=(False, True, True, False, True, True, True),
        rows=tuple(rows),
        caption="\n".join([parity_sentence(run), _caption([run])]),
        notes=tuple(_notes(run)),
        drop=("sigma", "distance", "compared"),
    )


def every_table(outcome: Checked) -> Table:
    """Return one row per quantity that was compared, in their order."""
    shown, left = outcome.compared[:MOST_ROWS], len(outcome.compared) - MOST_ROWS
    rows = [
        (
            row.quantity.value, row.name, str(row.steps) if row.steps else "", row.statistic.value, *_far(row),
            row_verdict(row),
        )
        for row in shown
    ]  # fmt: skip
    return Table(
        headers=EVERY,
        numeric=(False, False, True, False, True, True, True, False),
        rows=tuple(rows),
        caption="Everything that was compared, in order",
        notes=(f"The first {MOST_ROWS:,} of {len(outcome.compared):,}; --json has them all.",) if left > 0 else (),
    )


def row_verdict(row: Compared) -> str:
    return "excused" if row.excused else "agrees" if row.agrees else "differs"


def _far(row: Compared) -> tuple[str, str, str]:
    off = "not finite" if row.distance is None else f"{row.distance:.2g}"
    return off, f"{row.sigma:.2g}", sigmas_shown(row)


def _check(run: ParityRun) -> tuple[str, str, str]:
    outcome = run.outcome
    if isinstance(outcome, Failed):
        return run.verdict.value, outcome.kind.value, ""
    wrong = outcome.differences
    if not outcome.compared:
        return run.verdict.value, "", ""
    row = wrong[0] if wrong else worst_of(outcome.compared)
    return run.verdict.value, quantity_words(row) if wrong else "-", sigmas_shown(row)


def _together(runs: Sequence[ParityRun]) -> list[str]:
    if len(runs) == 1:
        return [parity_sentence(runs[0])]
    counts = [(verdict, sum(run.verdict is verdict for run in runs)) for verdict in ParityVerdict]
    said = [f"{number} {_many(verdict, number)}" for verdict, number in counts if number]
    plans = [run.plan for run in runs]
    first = next((run for run in runs if run.verdict is ParityVerdict.DIFFERS), None)
    lines = [f"Of {count(len(runs), 'check')}, {', '.join(said)}."]
    return lines if first is None else [*lines, f"{check_name(first.plan, plans)}: {parity_sentence(first)}"]


def _many(verdict: ParityVerdict, number: int) -> str:
    plural = {ParityVerdict.AGREES: "agree", ParityVerdict.DIFFERS: "differ"}
    return verdict.value if number == 1 else plural.get(verdict, verdict.value)


def _caption(runs: Sequence[ParityRun]) -> str:
    plan, plans = runs[0].plan, [run.plan for run in runs]
    parts = [plan.workload] if len({one.workload for one in plans}) == 1 else []
    parts += [plan.mode.value] if len({one.mode for one in plans}) == 1 else []
    params, _ = varying(plans)
    same = [name for name in plan.params if name not in params and all(name in one.params for one in plans)]
    parts += [f"{spaced(name)} {word(plan.params[name])}" for name in same]
    parts += [f"{plan.data} data"] if len({one.data for one in plans}) == 1 else []
    return ", ".join(["parity", *parts])


# What is said below a table


def _notes(run: ParityRun, lead: str = "") -> Iterator[str]:
    """`lead`: which check it is, where there are several."""
    outcome = run.outcome
    if isinstance(outcome, Failed):
        if lead:  # a check by itself has the reason in its sentence
            yield f"{lead}{outcome.kind.value}: {outcome.message} {outcome.hint}".rstrip()
        return
    if outcome.diagnosis is not None:
        yield from (f"{lead}{line}" for line in diagnosis_lines(outcome.diagnosis))
    for why, rows in grouped((row.excused, row) for row in outcome.compared if row.excused).items():
        number = count(len(rows), "quantity", "quantities")
        yield f"{lead}{number} excused, the first the {quantity_words(rows[0])}: {why}"
    if not outcome.complete:
        yield f"{lead}Stopped before everything was compared."
    yield from (f"{lead}{note}" for note in outcome.notes)
    took = f", in {duration(outcome.seconds)}" if outcome.seconds and not lead else ""
    noise = ", ".join(outcome.noise) or "one rounding of each value"
    yield f"Compared with {outcome.truth}{took}. A sigma is the reference's own noise: {noise}."


def diagnosis_lines(found: FaultDiagnosis) -> Iterator[str]:
    """Say when the difference is there, what switches it off, and what it could be."""
    if found.batch_sizes:
        yield batch_words(found.batch_sizes)
    off = [trial.change for trial in found.trials if trial.verdict is ParityVerdict.AGREES]
    still = [trial.change for trial in found.trials if trial.verdict is ParityVerdict.DIFFERS]
    if off:
        yield f"Not there {', nor '.join(map(_with, off))}."
    if still:
        yield f"Still there {', and '.join(map(_with, still))}."
    for trial in found.trials:
        if trial.verdict is ParityVerdict.UNTESTED:
            yield f"Could not be tried: {trial.change}{f': {trial.reason}' if trial.reason else ''}."
    if found.compiled_until:
        yield f"The shortest part that differs when it is compiled by itself: from the input to {found.compiled_until}."
    yield from (f"Known issue: {issue}" for issue in found.known_issues)
    if found.repro:
        lines = len(found.repro.splitlines())
        yield f"A script of {count(lines, 'line')} shows it with the framework alone: `--repro FILE.py` writes it."
    yield from found.notes


def _with(change: str) -> str:
    return change if change.startswith("without ") else f"with {change}"


def batch_words(verdicts: dict[int, ParityVerdict]) -> str:
    """Say at which batch sizes it differs: "from batch 9 on", or at which ones and at which not."""
    wrong = sorted(size for size, verdict in verdicts.items() if verdict is ParityVerdict.DIFFERS)
    right = sorted(size for size, verdict in verdicts.items() if verdict is ParityVerdict.AGREES)
    untested = sorted(size for size, verdict in verdicts.items() if verdict is ParityVerdict.UNTESTED)
    left = f" Not tested: {', '.join(map(str, untested))}." if untested else ""
    agreeing, differing = ", ".join(map(str, right)), ", ".join(map(str, wrong))
    if not wrong:
        return f"At none of the batch sizes tried: {agreeing}.{left}" if right else f"No batch size was tested.{left}"
    if not right:
        return f"At every batch size tried: {differing}.{left}"
    if max(right) < wrong[0]:
        return f"From batch {wrong[0]} on; not at {agreeing}.{left}"
    if wrong[-1] < min(right):
        return f"Up to batch {wrong[-1]}; not at {agreeing}.{left}"
    return f"At batch {differing}; not at {agreeing}.{left}"
