"""The report: one document from a Content, which begins with the answer; then come the tables, then the charts. Its
sections, a run of any kind, the cells of a sweep, trainings side by side, are those of the server too."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import metalmark
from metalmark.model.codec import AnyRun
from metalmark.model.explanation import Explained, ExplanationRun, Roofline
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityRun
from metalmark.model.plan import Plan, word
from metalmark.model.run import Telemetry, now_utc
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.report.answer import answer
from metalmark.report.charts.cells import efficiency_figures, published_figures, scaling_figures, throughput_figures
from metalmark.report.charts.draw import Drawn, Figure, Missing
from metalmark.report.charts.over_time import cell_figures, run_figures, together_figures
from metalmark.report.content import Content
from metalmark.report.html.page import Value, columns_of, figures_block, from_table, not_drawn, page, render, table
from metalmark.report.text.explain_page import explanation_sentence, explanation_tables, explanations_table
from metalmark.report.text.parity_page import checks_table, parity_sentence, parity_tables
from metalmark.report.text.run_page import (
    derived_lines,
    failure_of,
    machine_facts,
    run_facts,
    shown_flags,
    software_facts,
    when,
    window_values,
)
from metalmark.report.text.run_tables import training_table
from metalmark.report.text.side_by_side import side_notes, side_tables
from metalmark.report.text.tables import Table, plan_name, published_tables, spaced, sweep_table
from metalmark.report.text.tune_page import tuning_sentence, tuning_tables, tunings_table
from metalmark.report.text.units import count, moment, reading
from metalmark.report.text.watch_page import watched_tables, watched_verdict
from metalmark.results.ceilings import NO_CEILINGS, Ceilings
from metalmark.results.cells import Cell, cells_of, varying
from metalmark.scrub import scrub
from metalmark.stats.summary import median

if TYPE_CHECKING:
    from markupsafe import Markup

Part = tuple[str, str, "Markup"]
"""An anchor, a title, and what stands below."""
MOST_OF_A_KIND = 24
"""Figures of one part: a sweep of thousands of cells is to be filtered in its table."""
MOST_OVER_TIME = 12
"""Cells with their series drawn; those with a flag come first, since they are looked at first."""
MOST_RUNS = 200
MOST_TRAININGS = 12
ANY_WIDTH = 10_000
SERIES = columns_of(
    "series", "from", "readings", "lowest", "median", "highest", numbers={"readings", "lowest", "median", "highest"}
)
FAILED = columns_of("workload", "framework", "device", "what happened", "why, and what to do", "what else")
MOST_ROWS = 1500
"""A page of more is slow to open and too large to send; other formats have every row."""


def document(content: Content) -> str:
    missing: list[Missing] = []
    parts = list(_parts(content, missing))
    first, last = content.times[0], content.times[-1]
    begun = f"measured {moment(first)[:16]}" + (f" to {moment(last)[:16]}" if first != last else "")
    written = f"written by Metalmark {metalmark.__version__}, {moment(now_utc())[:16]}"
    runs, trainings, watched = content.bench_runs, content.trainings, content.watched
    counts = [f"{count(len(cells_of(runs)), 'cell')} in {count(len(runs), 'process', 'processes')}"] if runs else []
    counts += [count(len(trainings), "training")] if trainings else []
    counts += [count(len(watched), "watched run")] if watched else []
    counts += [count(len(content.parities), "parity check")] if content.parities else []
    counts += [count(len(content.explanations), "explanation")] if content.explanations else []
    counts += [count(len(content.tunings), "tuning")] if content.tunings else []
    return page(
        content.title,
        render("report.html", lines=answer(content), parts=parts, absent=not_drawn(missing)),
        subtitle=f"{', '.join(counts)}, {begun} UTC; {written}",
    )


def _parts(content: Content, missing: list[Missing]) -> Iterator[Part]:
    if content.tunings:
        yield ("tunings", "What tuning gained", tunings_section(content.tunings, missing))
    if content.explanations:
        yield ("explanations", "What a step waits for", explanations_section(content.explanations, missing))
    cells = cells_of(content.bench_runs)
    if cells:
        results = sweep_section(content.bench_runs, plans=content.measured_plans, left_out=content.left_out)
        yield ("results", "Results" if content.asked_bench_runs else "Trials", results)
        drawn = [*throughput_figures(cells), *scaling_figures(cells)]
        yield from _charts("speed", "Throughput and scaling", drawn, missing)
        yield from _charts("energy", "Energy and efficiency", efficiency_figures(cells, content.ceilings), missing)
        if content.published:
            tables = [from_table(table) for table in published_tables(cells)]
            body = render("join.html", parts=[figures_block(published_figures(cells), missing), *tables])
            yield ("published", "Published figures", body)
        yield ("time", "Step time over the run", _over_time(cells, missing))
    if content.trainings:
        yield ("trainings", "Training curves", trainings_section(content.trainings[:MOST_TRAININGS], missing))
    if content.watched:
        shown = content.watched[:MOST_TRAININGS]
        sections = [run_section(run, missing, machine=False, level=3) for run in shown]
        yield ("watched", "Watched runs", render("join.html", parts=sections))
    if content.parities:
        yield ("parity", "Parity", parity_section(content.parities, missing))
    software = {repr(one): one for run in content.runs if (one := run.header.software) is not None}
    facts = [*map(machine_facts, content.machines), *map(software_facts, list(software.values())[:MOST_OF_A_KIND])]
    body = render("join.html", parts=[render("facts.html", facts=one) for one in facts])
    yield ("machine", "Machine and software", body)
    if cells:
        yield ("runs", "All runs", _runs(content, missing))


def _charts(anchor: str, title: str, drawn: Sequence[Drawn], missing: list[Missing]) -> Iterator[Part]:
    """A part of charts alone, where any could be drawn."""
    figures = [one for one in drawn if isinstance(one, Figure)]
    left = len(figures) - MOST_OF_A_KIND
    if left > 0:
        missing.append(Missing(title=f"{left} more figures of {title.lower()}", reason="name fewer runs to see them"))
    kept: list[Drawn] = [*figures[:MOST_OF_A_KIND], *(one for one in drawn if isinstance(one, Missing))]
    body = figures_block(kept, missing)
    if figures:
        yield (anchor, title, body)


def _over_time(cells: Sequence[Cell], missing: list[Missing]) -> "Markup":
    done = [cell for cell in cells if not cell.failure]
    chosen = sorted(done, key=lambda cell: not cell.flags)[:MOST_OVER_TIME]
    shown = [cell for cell in done if any(cell is one for one in chosen)]
    few = f"Of {len(done):,} cells {len(shown)}, those with a flag first: name fewer runs to see others."
    parts = [render("notes.html", notes=[few])] if len(done) > len(shown) else []
    plans = [cell.plan for cell in cells]
    for cell in shown:
        name = plan_name(cell.plan, plans)
        sensors = f"Sensors of repeat {cell.records[0].repeat + 1}." if len(cell.records) > 1 else ""
        figures = figures_block(cell_figures(cell, name), missing)
        parts.append(render("cell.html", name=name, flags=", ".join(cell.flags), figures=figures, sensors=sensors))
    return render("join.html", parts=parts)


def _runs(content: Content, missing: list[Missing]) -> "Markup":
    runs, several = content.bench_runs, len(content.machines) > 1
    sections = [
        (run.id, run.plan.label, f"repeat {run.repeat + 1}",
         run_section(run, missing, ceilings=content.ceilings, draws=False, machine=several, level=3))
        for run in runs[:MOST_RUNS]
    ]  # fmt: skip
    left = len(runs) - len(sections)
    return render("runs.html", sections=sections, left=f"{left:,}" if left else "")


def run_section(
    run: AnyRun, missing: list[Missing], *, ceilings: Ceilings = NO_CEILINGS, draws: bool = True, machine: bool = True,
    level: int = 2,
) -> "Markup":  # fmt: skip
    """Return everything that is known of one run. `draws`: with figures. `machine`: False where the page says it."""
    header = run.header
    outcome = run.outcome if isinstance(run, BenchRun) else None
    done = outcome if isinstance(outcome, Completed) else None
    shown: list[Table] = []
    more: list[Table] = []
    answer = ""
    if isinstance(run, TrainingRun) and run.epochs:
        shown = [training_table(run)]
    elif isinstance(run, WatchedRun) and (run.passes or run.script is not None):
        shown, answer = watched_tables(run), watched_verdict(run)
    elif isinstance(run, ParityRun) and isinstance(run.outcome, Checked):
        shown, answer = parity_tables([run])[:1], parity_sentence(run)
    elif isinstance(run, ExplanationRun) and isinstance(run.outcome, Explained):
        shown, more = _around_figures(run, run.outcome)
        answer = explanation_sentence(run)
    elif isinstance(run, TuningRun) and isinstance(run.outcome, Tuned):
        tables = tuning_tables([run])
        shown, more, answer = tables[:1], tables[1:], tuning_sentence(run)
    at_trials = isinstance(run, TuningRun) and not run.telemetry.series
    blocks = [run_facts(run), *([machine_facts(header.machine)] if machine and header.machine is not None else [])]
    blocks += [software_facts(header.software)] if header.software is not None else []
    return render(
        "run.html",
        run=run,
        header=header,
        level=level,
        when=when(run),
        failure=failure_of(run),
        error=run.error if isinstance(run, WatchedRun) else "",
        flags=shown_flags(run),
        answer=answer,
        script=_script(run),
        table=_tables(shown, captions=1, sorts=isinstance(run, BenchRun | TrainingRun | ParityRun)),
        more=_tables(more, sorts=False),
        notes=[*derived_lines(run, ceilings), *_run_notes(run, done)],
        figures=figures_block(run_figures(run), missing) if draws else "",
        blocks=blocks,
        telemetry="" if header.telemetry is None or at_trials else telemetry_table(header.telemetry, done),
    )


def trainings_section(runs: Sequence[TrainingRun], missing: list[Missing]) -> "Markup":
    """Return the trainings side by side, then each."""
    parts = [figures_block(together_figures(runs), missing)]
    if len(runs) > 1:
        parts += [from_table(one, notes=False, sorts=False) for one in side_tables(runs, columns=ANY_WIDTH)]
        parts.append(render("notes.html", notes=list(side_notes(runs))))
    return render("join.html", parts=[*parts, *(run_section(run, missing, machine=False, level=3) for run in runs)])


def parity_section(runs: Sequence[ParityRun], missing: list[Missing]) -> "Markup":
    """Return the checks in one table where there are several, then each."""
    parts = [from_table(checks_table(runs), caption=False, notes=False)] if len(runs) > 1 else []
    shown = [run_section(run, missing, machine=False, level=3) for run in runs[:MOST_TRAININGS]]
    left = len(runs) - len(shown)
    more = [render("notes.html", notes=[f"{left} more: name fewer runs to see each."])] if left else []
    return render("join.html", parts=[*parts, *shown, *more])


def explanations_section(runs: Sequence[ExplanationRun], missing: list[Missing]) -> "Markup":
    """Return the explanations in one table where there are several, then each."""
    parts = [from_table(explanations_table(runs), caption=False)] if len(runs) > 1 else []
    shown = [run_section(run, missing, machine=False, level=3) for run in runs[:MOST_TRAININGS]]
    left = len(runs) - len(shown)
    more = [render("notes.html", notes=[f"{left} more: name fewer runs to see each."])] if left else []
    return render("join.html", parts=[*parts, *shown, *more])


def tunings_section(runs: Sequence[TuningRun], missing: list[Missing]) -> "Markup":
    """Return the tunings in one table where there are several, then each."""
    parts = [from_table(tunings_table(runs), caption=False)] if len(runs) > 1 else []
    shown = [run_section(run, missing, machine=False, level=3) for run in runs[:MOST_TRAININGS]]
    left = len(runs) - len(shown)
    more = [render("notes.html", notes=[f"{left} more: name fewer runs to see each."])] if left else []
    return render("join.html", parts=[*parts, *shown, *more])


def _around_figures(run: ExplanationRun, found: Explained) -> tuple[list[Table], list[Table]]:
    """Return the tables of an explanation that stand above its figures, and those below."""
    tables = explanation_tables([run])
    above = 2 if found.proposals else 1
    # The roofline is a figure here, which has its numbers below it.
    skipped = [above] if isinstance(found.roofline, Roofline) and len(tables) > above + 1 else []
    return tables[:above], [table for at, table in enumerate(tables) if at >= above and at not in skipped]


def _tables(shown: Sequence[Table], *, captions: int = 0, sorts: bool = True) -> "Markup | str":
    """Return tables one below the other; those before the place `captions` have theirs in the page's own words."""
    if not shown:
        return ""
    return render(
        "join.html", parts=[from_table(one, caption=at >= captions, sorts=sorts) for at, one in enumerate(shown)]
    )


def _script(run: AnyRun) -> str:
    """The script that shows a difference with the framework alone."""
    outcome = run.outcome if isinstance(run, ParityRun) else None
    return outcome.diagnosis.repro if isinstance(outcome, Checked) and outcome.diagnosis is not None else ""


def telemetry_table(telemetry: Telemetry, run: Completed | None = None) -> "Markup":
    """Return what each sensor read in the measured window where that is known, else over the whole run."""
    rows: list[list[str | Value]] = []
    for series in telemetry.series:
        values = window_values(series.at_s, series.values, run)
        shown = (min(values), median(values), max(values)) if values else ()
        cells = [Value(text=reading(value, series.unit), sort=float(value)) for value in shown] or [Value(text="")] * 3
        rows.append([spaced(series.name), series.source, str(len(values)), *cells])
    absent = [f"no {name}: {reason}" for name, reason in telemetry.absent.items()]
    if not rows:
        why = "Telemetry was switched off." if telemetry.hz is None else "No sensor gave a reading."
        return render("notes.html", notes=[why, *absent])
    over = "in the measured window" if run is not None else "over the whole run"
    return table(SERIES, rows, caption=f"Sensor readings {over}", notes=absent)


def sweep_section(
    runs: Sequence[BenchRun], *, plans: Sequence[Plan] = (), left_out: Sequence[str] = (), links: str = "#run-"
) -> "Markup":
    """Return the cells that completed and those that could not. `plans`: everything that was planned, where known: what
    has no run yet is listed. `left_out`: what was not tried, with the reasons. `links`: how the address of a run
    begins."""
    cells = cells_of(runs)
    done = {repr(cell.plan) for cell in cells}
    return render(
        "sweep.html",
        ran=_ran(cells, links),
        failed=_failed(cells, links),
        missing=[plan_name(plan, plans) for plan in plans if repr(plan) not in done],
        left_out=[scrub(line) for line in left_out],
        count=len(cells),
        processes=len(runs),
    )


def _run_notes(run: AnyRun, done: Completed | None) -> list[str]:
    if isinstance(run, TrainingRun) and len(run.sessions) > 1:
        starts = ", ".join(f"epoch {session.first_epoch}" for session in run.sessions[1:])
        return [f"It was stopped and resumed: {len(run.sessions)} sessions, which began again at {starts}."]
    if isinstance(run, WatchedRun) and not run.passes:
        return list(run.notes)
    if done is None:
        return []
    fallbacks = [f"on the CPU for want of a kernel: {', '.join(done.fallbacks)}"] if done.fallbacks else []
    return [*done.notes, *fallbacks]


def _ran(cells: Sequence[Cell], links: str) -> "Markup | None":
    """Cells of several sweeps and machines are one table: a page has room, and it filters."""
    done = [cell for cell in cells if not cell.failure]
    if not done:
        return None
    shown = done[:MOST_ROWS]
    ours = sweep_table(shown)
    runs = [cell.records[0] for cell in shown]
    apart = {"machine": [run.machine.chip for run in runs], "sweep": [run.sweep for run in runs]}
    # Columns for what is the same in one sweep, and not in several.
    more = {name: values for name, values in apart.items() if len(set(values)) > 1 and name not in ours.headers}
    numbers = set(compress(ours.headers, ours.numeric))
    columns = columns_of(*ours.headers, *more, "run", numbers=numbers, codes={"run"})
    ids = [Value(text=run.id, href=f"{links}{run.id}") for run in runs]
    rows = [[*row, *others] for row, *others in zip(ours.rows, *more.values(), ids, strict=True)]
    cut = [f"The first {MOST_ROWS:,} of {len(done):,}; --format csv has them all."] if len(done) > MOST_ROWS else []
    return table(columns, rows, caption=ours.caption, notes=[*cut, *ours.notes])


def _failed(cells: Sequence[Cell], links: str) -> "Markup | None":
    lost = [cell for cell in cells if cell.failure][:MOST_ROWS]
    if not lost:
        return None
    params, _ = varying([cell.plan for cell in cells])
    rows: list[list[str | Value]] = []
    for cell in lost:
        plan, failure = cell.plan, cell.failure
        assert failure is not None
        chosen = {name: word(plan.params[name]) for name in params if name in plan.params}
        extras = {"mode": plan.mode.value, **chosen, **plan.settings.changed()}
        what = Value(text=failure.kind.value, href=f"{links}{cell.records[-1].id}", look="what")
        why = " ".join(filter(None, (failure.message, failure.hint)))
        else_ = ", ".join(f"{spaced(name)} {value}" for name, value in extras.items())
        rows.append([plan.workload, plan.framework, str(plan.device), what, why, else_])
    return table(FAILED, rows, caption="What could not run", marks=["failed"] * len(rows))
