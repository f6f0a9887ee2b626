"""What two sides say when they are set side by side: a row a pair of cells, and the geometric mean over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from metalmark.model.run import Absent
from metalmark.results.measured import Keys, Measured
from metalmark.results.pairing import MAY_LACK, Pair, Pairing, Side, Unpaired, around_changes, pair, shown
from metalmark.stats.difference import BAND, ENOUGH, Difference, Verdict, difference, geometric_mean, typical


class Figures(Struct, frozen=True, kw_only=True):
    """One side of a row."""

    name: str
    keys: Keys
    processes: int
    step_s: float | Absent
    samples_per_s: float | Absent
    memory_bytes: int | Absent
    joules_per_sample: float | Absent
    energy_of: str
    flags: dict[str, str]
    notes: tuple[str, ...]
    failure: str
    published: str
    records: tuple[str, ...]


class Ratio(Struct, frozen=True, kw_only=True):
    """B's over A's: 0.8 is a fifth less. Without an interval where a side has one process."""

    value: float
    low: float | None = None
    high: float | None = None


class Row(Struct, frozen=True, kw_only=True):
    name: str
    a: Figures
    b: Figures
    speed: Difference | Absent
    memory: Ratio | Absent
    energy: Ratio | Absent
    changes: tuple[str, ...]
    """What is not the same around them: machine, versions, variables."""
    no_speed_up: str = ""
    """Why the ratio is of two different things; empty where it is like for like."""
    command: str = ""
    """What to type to tell, where the processes are too few."""

    @property
    def verdict(self) -> Verdict:
        return self.speed.verdict if isinstance(self.speed, Difference) else Verdict.CANT_TELL

    @property
    def reason(self) -> str:
        return self.speed.reason

    @property
    def told(self) -> bool:
        """Whether it has an interval: two processes a side or more, like for like or not."""
        return isinstance(self.speed, Difference) and self.speed.low is not None

    @property
    def more_time(self) -> float:
        """How much longer B takes for the same samples, as a share of A's time: 0.05 is 5% longer."""
        return 1 / self.speed.ratio - 1 if isinstance(self.speed, Difference) else 0.0


class Comparison(Struct, frozen=True, kw_only=True):
    a: str
    b: str
    compared: tuple[str, ...]
    rows: tuple[Row, ...]
    mean: Difference | None
    """Geometric, of the speed over the rows; None for fewer than two that have an interval."""
    unpaired: tuple[Unpaired, ...]
    unlike: dict[str, str]
    one_sweep: bool
    """Measured in turns; otherwise what changed on the machine in between is in the ratio too."""


def compare(
    a: Side, b: Side, *, by: Sequence[str] = (), anyway: bool = False, band: float = BAND
) -> tuple[Comparison, Pairing]:
    pairing = pair(a, b, by=by, anyway=anyway)
    extra = _telling(pairing)
    rows = tuple(_row(one, extra, pairing.unlike, band) for one in pairing.pairs)
    timed = [one for one in pairing.pairs if not _untold(one)]
    mean = geometric_mean([(one.a.processes, one.b.processes) for one in timed], band=band) if len(timed) > 1 else None
    together = all(set(one.a.sweeps) == set(one.b.sweeps) for one in pairing.pairs)
    found = Comparison(
        a=a.name, b=b.name, compared=pairing.compared, rows=rows, mean=mean, unpaired=pairing.unpaired,
        unlike=pairing.unlike, one_sweep=together,
    )  # fmt: skip
    return found, pairing


def _telling(pairing: Pairing) -> list[str]:
    """Of the question, what tells the pairs apart beyond workload, mode, framework and device."""
    cells = [one.b for one in pairing.pairs]
    keys = dict.fromkeys(key for cell in cells for key in (*cell.what, *cell.how))
    named = {"workload", "mode", "framework", "device", *MAY_LACK}
    return [key for key in keys if key not in named and len({cell.value(key) for cell in cells}) > 1]


def _row(one: Pair, extra: Sequence[str], unlike: dict[str, str], band: float) -> Row:
    a, b = one
    changes = around_changes(one)
    if a.parameters is not None and b.parameters is not None and a.parameters != b.parameters:
        changes.append(f"trained parameters {a.parameters:,} → {b.parameters:,}")
    speed = _speed(a, b, band)
    return Row(
        name=_name(a if b.published else b, extra),
        a=_figures(a, extra),
        b=_figures(b, extra),
        speed=speed,
        memory=_memory(a, b),
        energy=_energy(a, b),
        changes=tuple(changes),
        no_speed_up="; ".join(unlike.values()),
        command=_command(a, b, speed),
    )


def _command(a: Measured, b: Measured, speed: Difference | Absent) -> str:
    """Of each side that has too few."""
    if isinstance(speed, Absent) or speed.more_repeats is None:
        return ""
    wanted = max(ENOUGH, min(speed.repeats) + speed.more_repeats)
    few = dict.fromkeys(cell.command for cell in (a, b) if len(cell.processes) < wanted)
    return " && ".join(f"{command} --repeat {wanted}" for command in few)


def _untold(one: Pair) -> str:
    """Why the two have no ratio with an interval."""
    for cell in one:
        if cell.failure:
            return f"{cell.name} did not complete: {cell.failure}"
    for cell in one:
        if cell.published:
            return "published without repeats: nothing tells its noise"
    return ""


def _speed(a: Measured, b: Measured, band: float) -> Difference | Absent:
    why = _untold(Pair(a, b))
    if a.failure or b.failure:
        return Absent(reason=why)
    if why:
        ratio = typical(a.processes) / typical(b.processes)
        counts = len(a.processes), len(b.processes)
        return Difference(
            ratio=ratio, low=None, high=None, band=None, verdict=Verdict.CANT_TELL, repeats=counts, reason=why
        )
    return difference(a.processes, b.processes, band=band)


def _name(cell: Measured, extra: Sequence[str]) -> str:
    return cell.name + "".join(f", {shown(key)} {cell.value(key)}" for key in extra if cell.value(key))


def _figures(cell: Measured, extra: Sequence[str]) -> Figures:
    lost = Absent(reason=cell.failure)
    per_sample = None if cell.failure else typical(cell.processes)
    energy = cell.energy
    return Figures(
        name=_name(cell, extra),
        keys={**cell.what, **cell.how},
        processes=len(cell.processes),
        step_s=lost if per_sample is None else per_sample * cell.samples_per_step,
        samples_per_s=lost if per_sample is None else 1 / per_sample,
        memory_bytes=cell.memory_bytes,
        joules_per_sample=energy if isinstance(energy, Absent) else _geometric(_joules(energy)),
        energy_of="" if isinstance(energy, Absent) else "; ".join(energy),
        flags=cell.flags,
        notes=cell.notes,
        failure=cell.failure,
        published=cell.published,
        records=cell.records,
    )


def _memory(a: Measured, b: Measured) -> Ratio | Absent:
    if isinstance(a.memory_bytes, Absent):
        return a.memory_bytes
    if isinstance(b.memory_bytes, Absent):
        return b.memory_bytes
    if a.memory_of != b.memory_of:
        return Absent(reason=f"A's is what the {a.memory_of} counted, B's what the {b.memory_of} did")
    return Ratio(value=b.memory_bytes / a.memory_bytes) if a.memory_bytes else Absent(reason="nothing was held")


def _energy(a: Measured, b: Measured) -> Ratio | Absent:
    if isinstance(a.energy, Absent):
        return a.energy
    if isinstance(b.energy, Absent):
        return b.energy
    if len(a.energy) != 1 or len(b.energy) != 1:
        return Absent(reason="its processes were not metered alike")
    ours, theirs = ([[joules] for joules in _joules(cell)] for cell in (a.energy, b.energy))
    if min(map(min, (*ours, *theirs))) <= 0:
        return Absent(reason="the meter counted nothing")
    # `difference` is of times: B's energy over A's is the inverse of its ratio.
    found = difference(ours, theirs)
    if found.low is None or found.high is None:
        return Ratio(value=1 / found.ratio)
    return Ratio(value=1 / found.ratio, low=1 / found.high, high=1 / found.low)


def _joules(energy: dict[str, tuple[float, ...]]) -> list[float]:
    return [value for values in energy.values() for value in values]


def _geometric(values: Sequence[float]) -> float:
    if min(values) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, values)) / len(values))
