"""The report: one document from a Content, its parts in the order in which one asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import metalmark
from metalmark.model.sweep import now_utc
from metalmark.report.charts.figures import Drawn, Figure, Missing
from metalmark.report.charts.naming import extras
from metalmark.report.charts.published import published_figures
from metalmark.report.charts.scaling import scaling_figures
from metalmark.report.charts.sensors import sensor_figures
from metalmark.report.charts.steps import steps_figure
from metalmark.report.charts.throughput import Once, ceiling_figures, energy_figures, throughput_figures
from metalmark.report.content import Content
from metalmark.report.html.facts import facts_block, machine_facts, software_facts
from metalmark.report.html.figure import figures_block
from metalmark.report.html.page import page, render
from metalmark.report.html.record import heading, record_section
from metalmark.report.html.sweep import sweep_section
from metalmark.report.html.tables import from_table
from metalmark.report.html.training import trainings_section, watched_section
from metalmark.report.published_table import published_tables
from metalmark.results.cells import Cell, cells_of

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_OF_A_KIND = 24
"""Figures of one question: a sweep of thousands of cells is to be filtered in its table."""
MOST_OVER_TIME = 12
"""Cells with their series drawn; those with a flag come first, since they are looked at first."""
MOST_RUNS = 200
MOST_TRAININGS = 12


class Part(NamedTuple):
    anchor: str
    title: str
    body: Markup


def document(content: Content) -> str:
    parts = list(_parts(content))
    times = content.times
    begun = f"measured {_when(times[0])}" + (f" to {_when(times[-1])}" if times[0] != times[-1] else "")
    return page(
        content.title,
        render("report.html", parts=parts),
        subtitle=f"{_counts(content)}, {begun} UTC; written by Metalmark {metalmark.__version__}, {_when(now_utc())}",
    )


def _parts(content: Content) -> Iterator[Part]:
    cells = cells_of(content.records)
    if cells:
        results = sweep_section(content.records, plans=content.plans, left_out=content.left_out)
        yield Part("results", "What ran and what could not", results)
        yield Part("speed", "How fast", _block([*throughput_figures(cells), *scaling_figures(cells)]))
        derived = Once()
        dear = [*energy_figures(cells, derived), *ceiling_figures(cells, content.ceilings, derived)]
        yield Part("cost", "How dear, and how near the ceiling", _block(dear))
        if content.published:
            yield Part("published", "Beside what others published", _published(cells))
        yield Part("time", "Over time", _over_time(cells))
    if content.trainings:
        yield Part("trainings", "Trainings", trainings_section(content.trainings[:MOST_TRAININGS]))
    if content.watched:
        body = render("none.html")
        for run in content.watched[:MOST_TRAININGS]:
            body += watched_section(run, level=3)
        yield Part("watched", "Watched loops", body)
    yield Part("machine", "The machine", _machines(content))
    if cells:
        yield Part("runs", "Every run", _runs(content))


def _published(cells: Sequence[Cell]) -> Markup:
    body = _block(published_figures(cells))
    for table in published_tables(cells):
        body += from_table(table)
    return body


def _over_time(cells: Sequence[Cell]) -> Markup:
    done = [cell for cell in cells if not cell.failure]
    chosen = sorted(done, key=lambda cell: not cell.flags)[:MOST_OVER_TIME]
    shown = [cell for cell in done if any(cell is one for one in chosen)]
    few = [f"Of {len(done):,} cells {len(shown)}, those with a flag first: name fewer runs to see others."]
    body = render("notes.html", notes=few) if len(done) > len(shown) else render("none.html")
    missing: list[Drawn] = []
    for cell in shown:
        name = _name(cell, cells)
        steps = steps_figure(cell, name, headed=True)
        drawn = [*([steps] if steps else []), *sensor_figures(cell.records[0], name, headed=True)]
        missing += [one for one in drawn if isinstance(one, Missing)]
        figures = figures_block([one for one in drawn if isinstance(one, Figure)])
        sensors = f"sensors: of process {cell.records[0].repeat + 1}" if len(cell.records) > 1 else ""
        body += render("cell.html", name=name, flags=", ".join(cell.flags), figures=figures, sensors=sensors)
    return body + figures_block(missing)


def _name(cell: Cell, cells: Sequence[Cell]) -> str:
    more = extras(cell.plan, [one.plan for one in cells])
    which = f"{cell.plan.workload} {cell.plan.mode.value}, {cell.plan.framework} {cell.plan.device}"
    return f"{which}{f', {more}' if more else ''}"


def _machines(content: Content) -> Markup:
    body = render("none.html")
    for machine in content.machines:
        body += facts_block(machine_facts(machine))
    software = {repr(record.software): record.software for record in content.records}
    for one in list(software.values())[:MOST_OF_A_KIND]:
        body += facts_block(software_facts(one))
    return body


def _runs(content: Content) -> Markup:
    several = len(content.machines) > 1
    shown = content.records[:MOST_RUNS]
    sections = [
        (record.id, heading(record), f"process {record.repeat + 1}",
         record_section(record, ceilings=content.ceilings, machine=several, level=3))
        for record in shown
    ]  # fmt: skip
    left = len(content.records) - len(shown)
    return render("runs.html", sections=sections, left=f"{left:,}" if left else "")


def _block(drawn: Sequence[Drawn]) -> Markup:
    figures = [one for one in drawn if isinstance(one, Figure)]
    left = len(figures) - MOST_OF_A_KIND
    missing: list[Drawn] = [one for one in drawn if isinstance(one, Missing)]
    if left > 0:
        missing.append(Missing(title=f"{left} more figures", reason="name fewer runs to see them"))
    return figures_block([*figures[:MOST_OF_A_KIND], *missing])


def _counts(content: Content) -> str:
    cells, runs = len(cells_of(content.records)), len(content.records)
    parts = [f"{_count(cells, 'cell')} in {_count(runs, 'process', 'processes')}"] if runs else []
    parts += [_count(len(content.trainings), "training")] if content.trainings else []
    parts += [_count(len(content.watched), "watched loop")] if content.watched else []
    return ", ".join(parts)


def _count(number: int, word: str, many: str = "") -> str:
    return f"{number:,} {word if number == 1 else many or f'{word}s'}"


def _when(moment: str) -> str:
    return moment[:16].replace("T", " ")
