"""What records say, in a tracker's words: params of a plan, tags of a machine, rows of telemetry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from metalmark.errors import MetalmarkError
from metalmark.model.plan import Plan
from metalmark.model.plan import word as in_words
from metalmark.model.run import Absent, Machine, Series, Software, Telemetry
from metalmark.track.event import Axis, Row, Value

MOST_ROWS = 500
"""Of telemetry, a session: a tracker draws no more, and the record has every reading."""
UNITS = {"%": "percent", "W": "watts", "J": "joules", "°C": "celsius", "MHz": "mhz", "of 1": "share"}


def plan_params(plan: Plan) -> dict[str, Value]:
    settings = msgspec.structs.asdict(plan.settings)
    loader = msgspec.structs.asdict(plan.loader) if plan.loader is not None else {}
    return {
        "workload": plan.workload,
        "framework": plan.framework,
        "device": str(plan.device),
        "mode": plan.mode.value,
        "data": plan.data,
        "data_from": plan.feed.value,
        "seed": plan.seed,
        **{name: in_words(value) or "auto" for name, value in settings.items()},
        **{f"loader.{name}": in_words(value) or "auto" for name, value in loader.items()},
        **plan.params,
    }


def machine_tags(machine: Machine, software: Software) -> dict[str, str]:
    tags = {
        "metalmark.version": software.metalmark,
        "python": software.python,
        "chip": machine.chip,
        "os": machine.os,
        "cores": str(machine.usable_cores or machine.logical_cores or "unknown"),
        "memory_gib": f"{machine.memory_bytes / 2**30:.1f}",
        **{f"version.{name}": version for name, version in software.versions.items()},
        **{f"gpu{number}": gpu.name for number, gpu in enumerate(machine.gpus)},
    }
    return {name: value for name, value in tags.items() if value}


def telemetry_rows(telemetry: Telemetry, *, began_ms: int, after_s: float = 0.0) -> Iterator[Row]:
    """Each series as `system/NAME_UNIT`, thinned by means over equal spans. `after_s`: of the run, when this session
    began."""
    series = [one for one in telemetry.series if one.at_s]
    if not series:
        return
    end_s = max(one.at_s[-1] for one in series)
    count = min(MOST_ROWS, max(len(one.at_s) for one in series))
    span_s = end_s / count if end_s > 0 else 1.0
    means = {system_name(one): _means(one, span_s, count) for one in series}
    for number in range(count):
        values = {name: found[number] for name, found in means.items() if number in found}
        if values:
            at_s = (number + 0.5) * span_s
            yield Row(
                axis=Axis.SECONDS,
                x=round(after_s + at_s, 3),
                at_ms=began_ms + round(at_s * 1000),
                values=dict(values),
            )


def system_name(series: Series) -> str:
    unit = UNITS.get(series.unit, series.unit)
    return f"system/{series.name}_{unit}" if unit else f"system/{series.name}"


def known_numbers(values: Mapping[str, float | int | Absent | None]) -> dict[str, float | None]:
    """Those that were measured."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def milliseconds(utc: str) -> int:
    return round(datetime.fromisoformat(utc).timestamp() * 1000)


def stopped(error: BaseException) -> str:
    """For the user: why nothing more of a run is queued."""
    why = error.message if isinstance(error, MetalmarkError) else f"{type(error).__name__}: {error}"
    return f"tracking stopped, the run goes on: {why}"


def _means(series: Series, span_s: float, count: int) -> dict[int, float]:
    sums: dict[int, tuple[float, int]] = {}
    for at_s, value in zip(series.at_s, series.values, strict=True):
        number = min(int(at_s / span_s), count - 1)
        total, readings = sums.get(number, (0.0, 0))
        sums[number] = total + value, readings + 1
    return {number: total / readings for number, (total, readings) in sums.items()}
