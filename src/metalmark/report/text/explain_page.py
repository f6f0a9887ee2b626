"""Explanations in words and tables: the verdict first, then what a step is made of, what would make it faster, the
roofline, the most expensive operations, the experiments, and what is not known."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs
from msgspec.json import encode

from metalmark.explain.sentences import device_sentence, verdict_sentence
from metalmark.model.explanation import (
    Cause,
    Experiment,
    Explained,
    ExplanationRun,
    MeasuredGain,
    Profile,
    Proposal,
    Roofline,
    StepShare,
)
from metalmark.model.plan import Device, DeviceKind, PlanChange, word
from metalmark.model.run import Absent, Failed
from metalmark.report.text.tables import Table, spaced
from metalmark.report.text.units import count, duration, figures, prefix_of, seconds, share
from metalmark.report.text.width import WIDE

TENTHS = 1000
"""Tenths of a percent in the whole."""
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
PROPOSALS = ("", "change", "type", "expected", "measured")
OPERATIONS = ("operation", "calls", "time", "of all operations")
EXPERIMENTS = ("experiment", "changed", "time", "±95%", "of the step", "input wait", "note")
SEVERAL = ("explained", "verdict", "step", "largest share", "first proposal", "expected", "measured")
MOST_OPERATIONS = 10
CHART_COLUMNS, CHART_ROWS = 56, 11
NOT_MEASURED = "-"


# Sentences


def explanation_sentence(run: ExplanationRun) -> str:
    """Say what the step waits for, or why that could not be told."""
    outcome = run.outcome
    if isinstance(outcome, Failed):
        why = " ".join(part for part in (outcome.message.rstrip("."), outcome.hint.rstrip(".")) if part)
        return f"What {run.subject} waits for could not be told: {outcome.kind.value}: {why}."
    return verdict_sentence(outcome)


def explanation_answers(runs: Sequence[ExplanationRun]) -> list[str]:
    """Return one sentence per explanation; where there are several, each names what it explains."""
    if len(runs) == 1:
        return [explanation_sentence(runs[0])]
    return [*(f"{run.subject}: {explanation_sentence(run)}" for run in runs), *device_answers(runs)]


def device_answers(runs: Sequence[ExplanationRun]) -> list[str]:
    """Say from which batch size on which device is faster, of each explanation that differs from the first one of its
    kind in its device alone."""
    first: dict[bytes, Explained] = {}
    answers = []
    for run in runs:
        if run.plan is None or not isinstance(run.outcome, Explained):
            continue
        key = encode(structs.replace(run.plan, device=Device(kind=DeviceKind.ANY)), order="deterministic")
        before = first.setdefault(key, run.outcome)
        if before is not run.outcome:
            answers.append(device_sentence(before, run.outcome))
    return answers


def change_words(change: PlanChange) -> str:
    """Name what is changed: "workers 4, batch size 64"."""
    values = {**change.settings, **change.loader, **change.params}
    feed = [f"data from {change.feed.value}"] if change.feed is not None else []
    return ", ".join([*(f"{spaced(name)} {word(value)}" for name, value in values.items()), *feed])


def gain_words(gain: float | None, low: float | None = None, high: float | None = None) -> str:
    """Say how many times as many samples per second there are: "3.18x (2.90 to 3.40)"."""
    if gain is None:
        return "?"
    interval = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f"{gain:.2f}x{interval}"


def measured_words(found: MeasuredGain | None) -> str:
    if found is None:
        return NOT_MEASURED
    return f"failed: {found.failed}" if found.gain is None else gain_words(found.gain, found.low, found.high)


def error_words(error: float, of: float) -> str:
    """An error bar as a percentage; beyond the value itself it says no more than that."""
    return ">100%" if error > of else f"{error / of * 100:.1f}%"


def scaled(value: float, unit: str) -> str:
    """A large quantity with its unit: "14.0 TFLOP/s"."""
    scale, prefix = next((found for found in PREFIXES if value >= found[0]), (1.0, ""))
    return f"{figures(value / scale)} {prefix}{unit}"


def shown_percentages(values: Sequence[float]) -> list[str]:
    """Return shares as percentages to a tenth that add up to 100.0%: what rounding loses goes to the largest
    remainders."""
    total = sum(values)
    if total <= 0:
        return ["0.0%" for _ in values]
    exact = [value / total * TENTHS for value in values]
    whole = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: (whole[at] - exact[at], at))
    for at in by_remainder[: TENTHS - sum(whole)]:
        whole[at] += 1
    return [f"{value / 10:.1f}%" for value in whole]


# Tables


def explanation_tables(runs: Sequence[ExplanationRun], *, columns: int = WIDE) -> list[Table]:
    """Return one row per explanation where there are several; of one, everything that is known."""
    if not runs:
        return []
    only = runs[0].outcome if len(runs) == 1 else None
    if not isinstance(only, Explained):
        return [explanations_table(runs)]
    # Of a script that took no step there is nothing to add up.
    tables = [shares_table(runs[0], only) if only.step_s and only.shares else explanations_table(runs)]
    tables += [proposals_table(only)] if only.proposals else []
    tables += [roofline_table(only.roofline)] if isinstance(only.roofline, Roofline) else []
    tables += [operations_table(only.profile)] if isinstance(only.profile, Profile) else []
    tables += [experiments_table(only, columns=columns)] if only.experiments else []
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *closing_notes(only)))]


def explanations_table(runs: Sequence[ExplanationRun]) -> Table:
    """Return one row per explanation."""
    rows = []
    for run in runs:
        found = run.outcome
        if isinstance(found, Failed):
            rows.append((run.subject, found.kind.value, "-", "", "", "", ""))
            continue
        most = max(found.shares, key=lambda one: one.seconds, default=None)
        first = found.proposals[0] if found.proposals else None
        largest = "" if most is None else f"{most.cause.value} {share(found.share(most.cause))}"
        gains = ("", "", "")
        if first is not None:
            gains = (first.title, gain_words(first.gain), measured_words(first.measured))
        step = seconds(found.step_s) if found.step_s else "-"
        rows.append((run.subject, found.bottleneck.value, step, largest, *gains))
    return Table(
        headers=SEVERAL,
        numeric=(False, False, True, False, False, True, True),
        rows=tuple(rows),
        caption="\n".join([*explanation_answers(runs), *([] if len(runs) == 1 else ["Explanations side by side"])]),
        drop=("measured", "expected", "first proposal", "largest share"),
    )


def shown_shares(found: Explained) -> list[StepShare]:
    """Return the causes that took time, the largest first and what is unexplained last."""
    return sorted(
        (one for one in found.shares if one.seconds > 0),
        key=lambda one: (one.cause is Cause.UNEXPLAINED, -one.seconds),
    )


def shares_table(run: ExplanationRun, found: Explained) -> Table:
    """Return one row per cause that took time, the largest first, and the step that they add up to."""
    shown = shown_shares(found)
    scale, prefix = prefix_of(found.step_s)
    error = [error_words(one.error_s, found.step_s) for one in shown]
    percentages = shown_percentages([one.seconds for one in shown])
    rows = [
        (one.cause.value, figures(one.seconds / scale), percent, width, one.evidence)
        for one, percent, width in zip(shown, percentages, error, strict=True)
    ]
    rate = "" if not found.samples_per_step else f"{figures(found.samples_per_step / found.step_s)} samples/s"
    whole = ("one step", figures(found.step_s / scale), "100.0%", error_words(found.error_s, found.step_s), rate)
    where = f"{found.placed_on} ({found.device_name})" if found.device_name else found.placed_on
    of = f"run {run.of}" if run.of is not None else ""
    nothing = [one.cause.value for one in found.shares if one.seconds <= 0 and one.cause is not Cause.UNEXPLAINED]
    return Table(
        headers=("cause", f"{prefix}s", "share", "±95%", "because"),
        numeric=(False, True, True, True, False),
        rows=(*rows, whole),
        caption="\n".join([explanation_sentence(run), ", ".join(filter(None, [run.subject, of, where]))]),
        notes=(f"No time was found for: {', '.join(nothing)}.",) if nothing else (),
    )


def proposals_table(found: Explained) -> Table:
    """Return one row per change, the largest gain first; below the table, what to write and why."""
    rows = [
        (f"{number}.", one.title, one.typed or "-", gain_words(one.gain, one.low, one.high),
         measured_words(one.measured))
        for number, one in enumerate(found.proposals, start=1)
    ]  # fmt: skip
    kept = [True, True, True, True, any(one.measured is not None for one in found.proposals)]
    return Table(
        headers=tuple(name for name, keep in zip(PROPOSALS, kept, strict=True) if keep),
        numeric=tuple(numeric for numeric, keep in zip((False, False, False, True, True), kept, strict=True) if keep),
        rows=tuple(tuple(value for value, keep in zip(row, kept, strict=True) if keep) for row in rows),
        caption="What would make it faster, in samples per second",
        notes=tuple(_proposal_note(number, one) for number, one in enumerate(found.proposals, start=1)),
    )


def _proposal_note(number: int, one: Proposal) -> str:
    written = f" In a script: {one.written}" if one.written else ""
    return f"{number}. {one.title}: {one.reason.rstrip('.')}.{written}"


def roofline_table(line: Roofline) -> Table:
    """Return the work of a step, the rates it reached and those of the device, with a drawing of the roofline."""
    rates = (line.achieved_flops_per_s, line.bytes / line.step_s)
    peaks = (line.peak_flops_per_s, line.peak_bytes_per_s)
    return Table(
        headers=("roofline", "arithmetic", "memory"),
        numeric=(False, True, True),
        rows=(
            ("a step has to do", scaled(line.flops, "FLOP"), scaled(line.bytes, "B")),
            ("it reached", scaled(rates[0], "FLOP/s"), scaled(rates[1], "B/s")),
            ("the device reached at best", scaled(peaks[0], "FLOP/s"), scaled(peaks[1], "B/s")),
            ("share of that", *(share(rate / peak) for rate, peak in zip(rates, peaks, strict=True))),
        ),
        caption="Roofline: what the step reached, and what a matrix product and a copy reached here",
        notes=(roofline_words(line), f"Work: {line.source.rstrip('.')}."),
        lines=roofline_lines(line),
    )


def roofline_words(line: Roofline) -> str:
    """Say which ceiling the work of the step meets first, and how near it came."""
    limit = "memory" if line.intensity < line.ridge else "arithmetic"
    reached = line.achieved_flops_per_s / line.reachable_flops_per_s
    # Bytes are counted as if nothing stayed in a cache.
    beyond = ", since much of what it reads stays in a cache" if reached > 1 and line.intensity < line.ridge else ""
    return (
        f"{figures(line.intensity)} FLOP per byte, the ridge is at {figures(line.ridge)}: at its best {limit} would "
        f"limit it, to {scaled(line.reachable_flops_per_s, 'FLOP/s')}; it reached {share(reached)} of that{beyond}."
    )


def roofline_lines(line: Roofline) -> tuple[str, ...]:
    """Draw the roofline with characters, both axes logarithmic: the roof, the step below it."""
    left = math.floor(math.log10(min(line.intensity, line.ridge))) - 0.5
    right = math.ceil(math.log10(max(line.intensity, line.ridge))) + 0.5
    top = math.log10(line.peak_flops_per_s) + 0.2
    lowest_roof = left + math.log10(line.peak_bytes_per_s)
    bottom = min(math.log10(line.achieved_flops_per_s) - 0.3, max(lowest_roof, top - 4))
    grid = [[" "] * CHART_COLUMNS for _ in range(CHART_ROWS)]

    def row_of(rate: float) -> int:
        return round((top - math.log10(rate)) / (top - bottom) * (CHART_ROWS - 1))

    for column in range(CHART_COLUMNS):
        at = 10 ** (left + (right - left) * column / (CHART_COLUMNS - 1))
        row = row_of(min(line.peak_flops_per_s, at * line.peak_bytes_per_s))
        if row < CHART_ROWS:
            grid[row][column] = "─" if at >= line.ridge else "·"
    column = round((math.log10(line.intensity) - left) / (right - left) * (CHART_COLUMNS - 1))
    step_row = min(row_of(line.achieved_flops_per_s), CHART_ROWS - 1)
    for row in range(row_of(line.reachable_flops_per_s) + 1, step_row):
        grid[row][column] = "┊"
    grid[step_row][column] = "●"
    labels = {step_row: scaled(line.achieved_flops_per_s, "FLOP/s")}
    labels.setdefault(row_of(line.peak_flops_per_s), scaled(line.peak_flops_per_s, "FLOP/s"))
    width = max(map(len, labels.values()))
    lines = [f"{labels.get(at, ''):>{width}} │{''.join(row).rstrip()}" for at, row in enumerate(grid)]
    ticks = [" "] * (CHART_COLUMNS + 4)
    for power in range(math.ceil(left), math.floor(right) + 1):
        text = f"{10.0**power:g}"
        begin = max(0, round((power - left) / (right - left) * (CHART_COLUMNS - 1)) - len(text) // 2)
        if all(sign == " " for sign in ticks[max(0, begin - 1) : begin + len(text) + 1]):
            ticks[begin : begin + len(text)] = text
    axis = [f"{'':>{width}} └{'─' * CHART_COLUMNS}", f"{'':>{width}}  {''.join(ticks).rstrip()}"]
    return (*lines, *axis, f"{'':>{width}}  FLOP per byte; ● this step, ─ arithmetic, · memory")


def operations_table(profile: Profile) -> Table:
    """Return the most expensive kinds of operations of a step."""
    shown = profile.operations[:MOST_OPERATIONS]
    return Table(
        headers=OPERATIONS,
        numeric=(False, True, True, True),
        rows=tuple((one.name, f"{one.calls:,}", seconds(one.seconds), share(one.share)) for one in shown),
        caption=f"The most expensive operations of a step ({profile.source})",
        notes=(f"All operations of a step together: {seconds(profile.total_s)}.",),
    )


def experiments_table(found: Explained, *, columns: int = WIDE) -> Table:
    """Return one row per experiment that was done; those that could not be are named below."""
    done = [one for one in found.experiments if one.seconds is not None]
    absent = [one for one in found.experiments if one.seconds is None]
    rows = [(*_experiment_cells(one), one.note if columns >= WIDE else "") for one in done]
    used = [True, *(any(row[at] for row in rows) for at in range(1, len(EXPERIMENTS)))]
    shown = tuple(name for name, keep in zip(EXPERIMENTS, used, strict=True) if keep)
    return Table(
        headers=shown,
        numeric=tuple(name in EXPERIMENTS[2:6] for name in shown),
        rows=tuple(tuple(value for value, keep in zip(row, used, strict=True) if keep) for row in rows),
        caption="What was tried, and how long a step or a part of it took",
        notes=(
            *(["Of the step: of the one that was timed beside it."] if "of the step" in shown else []),
            *(f"Not tried: {experiment_name(one)}: {one.absent.rstrip('.')}." for one in absent),
        ),
        drop=("input wait", "±95%", "of the step"),
    )


def experiment_name(one: Experiment) -> str:
    changed = change_words(one.change)
    return f"{one.kind.value} ({changed})" if changed else one.kind.value


def _experiment_cells(one: Experiment) -> tuple[str, ...]:
    assert one.seconds is not None
    return (
        one.kind.value,
        change_words(one.change),
        seconds(one.seconds),
        error_words(one.error_s, one.seconds) if one.error_s and one.seconds else "",
        share(one.seconds / one.baseline_s) if one.baseline_s else "",
        seconds(one.waited_s) if one.waited_s is not None else "",
    )


# What is said below the tables


def closing_notes(found: Explained) -> Iterator[str]:
    """Yield what the tables leave out, what could not be measured, and at the end what would settle the rest."""
    if found.parts:
        yield f"Parts of a step: {', '.join(f'{name} {seconds(value)}' for name, value in found.parts.items())}."
    if found.fallbacks:
        yield f"On the CPU for want of a kernel: {', '.join(found.fallbacks)}."
    yield from found.notes
    if isinstance(found.roofline, Absent):
        yield f"No roofline: {found.roofline.reason.rstrip('.')}."
    if isinstance(found.profile, Absent):
        yield f"No operations: {found.profile.reason.rstrip('.')}."
    if not found.complete:
        yield "Stopped before every experiment was done."
    if found.elapsed_s and found.experiments:
        yield f"{count(len(found.experiments), 'experiment')} in {duration(found.elapsed_s)}."
    yield from (f"To know more: {each}" for each in found.missing)
