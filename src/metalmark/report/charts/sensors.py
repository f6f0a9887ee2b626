"""What the sensors read over a run's life, with its phases: utilisation, power, memory, heat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from metalmark.model.measurement import BenchRun, Completed, Phases
from metalmark.model.run import Series, Telemetry
from metalmark.report.charts.figures import Drawn, Figure, Missing, numbers, titled
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, Span, lines_svg
from metalmark.report.charts.thin import thinned
from metalmark.report.units import figures, seconds, size
from metalmark.stats.summary import median

HEADERS = ("series", "source", "readings", "least", "median", "most", "longest gap")
SMALL_BYTES = 2**30
SWAP = "system_swap_used"


class Kind(Struct, frozen=True, kw_only=True):
    """One figure: series of one unit."""

    title: str
    unit: str
    axis: str
    ends: tuple[str, ...]
    """What the names of its series end with."""
    scale: float = 1.0
    zero: bool = True
    about: str = ""
    sensors: tuple[str, ...] = ()
    """Which sensors give it: of those that gave nothing, the page says why."""


KINDS = (
    Kind(title="GPU utilisation", unit="%", axis="%", ends=("_utilisation",), about="Busy with anything at all."),
    Kind(title="CPU utilisation", unit="%", axis="%", ends=("process_cpu", "system_cpu"),
         about="Process: 100 is one core. System: 100 is all of them.", sensors=("process", "system")),
    Kind(title="Power", unit="W", axis="watts", ends=("_power",),
         sensors=("nvidia", "rapl", "macmon", "zeus", "powermetrics")),
    Kind(title="Memory", unit="bytes", axis="GiB", ends=("_memory", SWAP), scale=2.0**30, sensors=("process",)),
    Kind(title="Temperature", unit="°C", axis="°C", ends=("_temperature",), zero=False),
)  # fmt: skip
NEEDED = {"CPU utilisation", "Power", "Memory"}
"""A page says why one of these is not there; a temperature is a bonus."""


def sensor_figures(record: BenchRun, name: str, *, headed: bool = False) -> list[Drawn]:
    """`headed`: they stand below a heading that has the name."""
    run = record.outcome
    phases = phase_spans(run.phases) if isinstance(run, Completed) else []
    return series_figures(record.telemetry, name, spans=phases, headed=headed)


def series_figures(telemetry: Telemetry, name: str, *, spans: Sequence[Span] = (), headed: bool = False) -> list[Drawn]:
    drawn: list[Drawn] = []
    for kind in KINDS:
        found = [one for one in telemetry.series if _is(one, kind)]
        if found:
            drawn.append(_figure(kind, found, name, spans, titled(kind.title, "" if headed else name)))
        elif kind.title in NEEDED:
            drawn.append(Missing(title=titled(kind.title, "" if headed else name), reason=_why_not(telemetry, kind)))
    return drawn


def phase_spans(phases: Phases) -> list[Span]:
    starts = [
        ("import", phases.import_s), ("build", phases.build_s), ("first step", phases.first_step_s),
        ("warm-up", phases.warmup_s), ("measured", phases.measure_s), ("", phases.end_s),
    ]  # fmt: skip
    ordered = pairwise(starts)
    return [Span(begin, end, name) for (name, begin), (_, end) in ordered if end > begin]


def _figure(kind: Kind, found: Sequence[Series], name: str, spans: Sequence[Span], title: str) -> Figure:
    scale, axis = kind.scale, kind.axis
    if kind.unit == "bytes" and max(max(one.values) for one in found) < SMALL_BYTES:
        scale, axis = 2.0**20, "MiB"
    cut = f"Of {len(found)} series the first {MOST_LINES} are drawn." if len(found) > MOST_LINES else ""
    lines = [
        Line(name=one.name.replace("_", " "),
             points=tuple((at, value / scale) for at, value in zip(one.at_s, one.values, strict=True)))
        for one in found[:MOST_LINES]
    ]  # fmt: skip
    sources = ", ".join(dict.fromkeys(one.source for one in found))
    short = thinned([len(line.points) for line in lines])
    return Figure(
        title=title,
        about=" ".join(filter(None, (kind.about, f"From {sources}.", cut, short))),
        label=f"Line chart: {kind.title.lower()} of {name} over the seconds of its process.",
        svg=lines_svg(lines, Axis("seconds since its process began"), Axis(axis, zero=kind.zero), spans=spans),
        numbers=numbers(HEADERS, [_row(one) for one in found], texts=2),
    )


def _row(one: Series) -> tuple[str, ...]:
    shown = (min(one.values), median(one.values), max(one.values))
    words = (size(value) if one.unit == "bytes" else f"{figures(value)} {one.unit}" for value in shown)
    gaps = [after - before for before, after in pairwise(one.at_s)]
    return (one.name, one.source, f"{len(one.values):,}", *words, seconds(max(gaps)) if gaps else "?")


def _is(one: Series, kind: Kind) -> bool:
    if one.unit != kind.unit or not one.name.endswith(kind.ends) or not one.values:
        return False
    # Swap that stands at 0 is a healthy machine's, and says nothing; a GPU that does says much.
    return one.name != SWAP or any(one.values)


def _why_not(telemetry: Telemetry, kind: Kind) -> str:
    if telemetry.hz is None:
        return "telemetry was switched off"
    absent = [f"{name}: {reason}" for name, reason in telemetry.absent.items() if name in kind.sensors]
    return "; ".join([f"no sensor here gives {kind.axis}", *absent])
