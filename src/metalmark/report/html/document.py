"""The report: one document from a Content. It begins with the answer; then come the tables, then the charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import metalmark
from metalmark.model.sweep import now_utc
from metalmark.report.answer import answer
from metalmark.report.charts.cells import (
    ceiling_figures,
    derive_all,
    energy_figures,
    published_figures,
    scaling_figures,
    throughput_figures,
)
from metalmark.report.charts.draw import Drawn, Figure, Missing
from metalmark.report.charts.over_time import sensor_figures, steps_figure
from metalmark.report.content import Content
from metalmark.report.html.blocks import (
    answer_block,
    facts_block,
    figures_block,
    from_table,
    join,
    not_drawn,
    notes_block,
)
from metalmark.report.html.page import page, render
from metalmark.report.html.sections import run_section, sweep_section, trainings_section
from metalmark.report.text.run_page import machine_facts, software_facts
from metalmark.report.text.tables import plan_name, published_tables
from metalmark.report.text.units import count
from metalmark.results.cells import Cell, cells_of

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_OF_A_KIND = 24
"""Figures of one part: a sweep of thousands of cells is to be filtered in its table."""
MOST_OVER_TIME = 12
"""Cells with their series drawn; those with a flag come first, since they are looked at first."""
MOST_RUNS = 200
MOST_TRAININGS = 12


class Part(NamedTuple):
    anchor: str
    title: str
    body: Markup


def document(content: Content) -> str:
    missing: list[Missing] = []
    parts = list(_parts(content, missing))
    first, last = content.times[0], content.times[-1]
    begun = f"measured {_minute(first)}" + (f" to {_minute(last)}" if first != last else "")
    written = f"written by Metalmark {metalmark.__version__}, {_minute(now_utc())}"
    return page(
        content.title,
        render("report.html", answer=answer_block(answer(content)), parts=parts, absent=not_drawn(missing)),
        subtitle=f"{_counts(content)}, {begun} UTC; {written}",
    )


def _parts(content: Content, missing: list[Missing]) -> Iterator[Part]:
    cells = cells_of(content.bench_runs)
    if cells:
        results = sweep_section(content.bench_runs, plans=content.plans, left_out=content.left_out)
        yield Part("results", "Results", results)
        drawn = [*throughput_figures(cells), *scaling_figures(cells)]
        yield from _charts("speed", "Throughput and scaling", drawn, missing)
        derived = derive_all(cells)
        drawn = [*energy_figures(cells, derived), *ceiling_figures(cells, content.ceilings, derived)]
        yield from _charts("energy", "Energy and efficiency", drawn, missing)
        if content.published:
            tables = [from_table(table) for table in published_tables(cells)]
            body = join([figures_block(published_figures(cells), missing), *tables])
            yield Part("published", "Published figures", body)
        yield Part("time", "Step time over the run", _over_time(cells, missing))
    if content.trainings:
        yield Part("trainings", "Training curves", trainings_section(content.trainings[:MOST_TRAININGS], missing))
    if content.watched:
        shown = content.watched[:MOST_TRAININGS]
        sections = [run_section(run, missing, machine=False, level=3) for run in shown]
        yield Part("watched", "Watched runs", join(sections))
    yield Part("machine", "Machine and software", _machines(content))
    if cells:
        yield Part("runs", "All runs", _runs(content, missing))


def _charts(anchor: str, title: str, drawn: Sequence[Drawn], missing: list[Missing]) -> Iterator[Part]:
    """A part of charts alone, where any could be drawn."""
    figures = [one for one in drawn if isinstance(one, Figure)]
    left = len(figures) - MOST_OF_A_KIND
    if left > 0:
        missing.append(Missing(title=f"{left} more figures of {title.lower()}", reason="name fewer runs to see them"))
    kept: list[Drawn] = [*figures[:MOST_OF_A_KIND], *(one for one in drawn if isinstance(one, Missing))]
    body = figures_block(kept, missing)
    if figures:
        yield Part(anchor, title, body)


def _over_time(cells: Sequence[Cell], missing: list[Missing]) -> Markup:
    done = [cell for cell in cells if not cell.failure]
    chosen = sorted(done, key=lambda cell: not cell.flags)[:MOST_OVER_TIME]
    shown = [cell for cell in done if any(cell is one for one in chosen)]
    few = f"Of {len(done):,} cells {len(shown)}, those with a flag first: name fewer runs to see others."
    parts = [notes_block([few])] if len(done) > len(shown) else []
    plans = [cell.plan for cell in cells]
    for cell in shown:
        name = plan_name(cell.plan, plans)
        steps = steps_figure(cell, name, headed=True)
        drawn: list[Drawn] = [*([steps] if steps else []), *sensor_figures(cell.records[0], name, headed=True)]
        sensors = f"Sensors of repeat {cell.records[0].repeat + 1}." if len(cell.records) > 1 else ""
        figures = figures_block(drawn, missing)
        parts.append(render("cell.html", name=name, flags=", ".join(cell.flags), figures=figures, sensors=sensors))
    return join(parts)


def _machines(content: Content) -> Markup:
    software = {repr(one): one for run in content.runs if (one := run.header.software) is not None}
    return join(
        [
            *(facts_block(machine_facts(machine)) for machine in content.machines),
            *(facts_block(software_facts(one)) for one in list(software.values())[:MOST_OF_A_KIND]),
        ]
    )


def _runs(content: Content, missing: list[Missing]) -> Markup:
    runs, several = content.bench_runs, len(content.machines) > 1
    sections = [
        (run.id, run.plan.label, f"repeat {run.repeat + 1}",
         run_section(run, missing, ceilings=content.ceilings, draws=False, machine=several, level=3))
        for run in runs[:MOST_RUNS]
    ]  # fmt: skip
    left = len(runs) - len(sections)
    return render("runs.html", sections=sections, left=f"{left:,}" if left else "")


def _counts(content: Content) -> str:
    runs = content.bench_runs
    parts = [f"{count(len(cells_of(runs)), 'cell')} in {count(len(runs), 'process', 'processes')}"] if runs else []
    parts += [count(len(content.trainings), "training")] if content.trainings else []
    parts += [count(len(content.watched), "watched run")] if content.watched else []
    return ", ".join(parts)


def _minute(moment: str) -> str:
    return moment[:16].replace("T", " ")
