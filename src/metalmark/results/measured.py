"""One cell as `compare` sees it: what was asked, how it ran, what was around it, and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan, word
from metalmark.model.run import Absent, Failed, FailureKind
from metalmark.results.cells import Cell, cells_of
from metalmark.results.derived import Cost, derive
from metalmark.results.retype import bench_command

Keys = dict[str, str]

OURS = "METALMARK_"
"""Variables that tell our own worker which of the repeats it is: no two processes have the same."""


DAMAGED = "damaged: a process has no block, or one that lasted no time"


class Measured(Struct, frozen=True, kw_only=True):
    what: Keys
    """The question: workload, parameters, mode, data. Two cells that differ here are two questions."""
    how: Keys
    """Framework, device and settings: what a comparison is usually of."""
    around: Keys
    """Machine and versions."""
    processes: tuple[tuple[float, ...], ...]
    """Seconds a sample, of each block of each process."""
    samples_per_step: int
    memory_bytes: int | Absent
    memory_of: str
    """Who counted it: the device, or the process. The two are not of one thing."""
    energy: dict[str, tuple[float, ...]] | Absent
    """Joules a sample of each process, by whose energy and who says so."""
    flags: dict[str, str]
    notes: tuple[str, ...] = ()
    """What a reader of its figures must know: that a build is not the fast one, say."""
    failure: str = ""
    published: str = ""
    """Where it was published and what is wrong with it; empty for what was measured with Metalmark."""
    parameters: int | None = None
    """That are trained."""
    records: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    command: str = ""
    """What to type to measure it again."""

    def value(self, key: str) -> str | None:
        for keys in (self.what, self.how, self.around):
            if key in keys:
                return keys[key]
        return None

    @property
    def name(self) -> str:
        """For messages: what it is, where it ran."""
        mode = self.what.get("mode", "")
        return f"{self.what['workload']} {mode} on {self.how.get('framework', '?')} {self.how.get('device', '?')}"


def measured_of(records: Iterable[BenchRun]) -> list[Measured]:
    """Records of the same plan, machine and versions are one cell, whichever sweep each came from: more processes."""
    groups: dict[tuple[tuple[tuple[str, str], ...], ...], list[Cell]] = {}
    for cell in cells_of(records):
        key = tuple(tuple(sorted(keys.items())) for keys in (_asked(cell), _how(cell.plan), _around(cell)))
        groups.setdefault(key, []).append(cell)
    return [_measured(Cell(plan=cells[0].plan, records=_settled(cells))) for cells in groups.values()]


def _settled(cells: Sequence[Cell]) -> tuple[BenchRun, ...]:
    """Without what Ctrl-C stopped, where anything came to its end: it says nothing of the cell."""
    every = [record for cell in cells for record in cell.records]
    ended = [record for record in every if not _interrupted(record)]
    return tuple(ended or every)


def _interrupted(record: BenchRun) -> bool:
    return isinstance(record.outcome, Failed) and record.outcome.kind is FailureKind.INTERRUPTED


def _measured(cell: Cell) -> Measured:
    failure, runs = cell.failure, cell.completed
    samples = runs[0].samples_per_step if runs else 1
    # The clock gives no such block; a file that someone edited may.
    damaged = DAMAGED if any(not times or min(times) <= 0 for times in cell.step_times) else ""
    memory = cell.memory_bytes if runs else None
    return Measured(
        what={**_asked(cell), **({"data read": runs[0].data, "samples a step": str(samples)} if runs else {})},
        how=_how(cell.plan),
        around=_around(cell),
        processes=() if damaged else tuple(tuple(time / samples for time in times) for times in cell.step_times),
        samples_per_step=samples,
        memory_bytes=Absent(reason="nothing counted it") if memory is None else memory,
        memory_of="process" if memory == cell.process_bytes else "device",
        energy=Absent(reason=damaged) if damaged else _energy(cell),
        flags=cell.flags,
        notes=tuple(dict.fromkeys(f"{cell.plan.framework}: {note}" for run in runs for note in run.notes)),
        failure=f"{failure.kind.value}: {failure.message}" if failure else damaged,
        parameters=runs[0].trainable_parameters if runs else None,
        records=tuple(record.id for record in cell.records),
        sweeps=tuple(dict.fromkeys(record.sweep for record in cell.records)),
        command=bench_command(cell.plan),
    )


def _asked(cell: Cell) -> Keys:
    plan = cell.plan
    return {
        "workload": plan.workload,
        "workload file": plan.workload_digest,
        "mode": plan.mode.value,
        "dtype": plan.settings.dtype.value,
        "data": plan.data,
        "data from": plan.feed.value,
        **{name: word(value) for name, value in plan.params.items()},
    }


def _how(plan: Plan) -> Keys:
    settings = {name: word(getattr(plan.settings, name)) for name in plan.settings.__struct_fields__ if name != "dtype"}
    loader = plan.loader
    ahead = {name: word(getattr(loader, name)) for name in loader.__struct_fields__} if loader else {}
    return {"framework": plan.framework, "device": str(plan.device), **settings, **ahead}


def _around(cell: Cell) -> Keys:
    machine, software = cell.records[0].machine, cell.records[0].software
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus)
    cores = f", {machine.usable_cores} cores" if machine.usable_cores else ""
    return {
        "machine": f"{machine.chip}{cores}, {machine.memory_bytes / 2**30:.0f} GiB{gpus}",
        "os": machine.os,
        "python": software.python,
        "metalmark": software.metalmark,
        **software.versions,
        **{name: value for name, value in software.environment.items() if not name.startswith(OURS)},
    }


def _energy(cell: Cell) -> dict[str, tuple[float, ...]] | Absent:
    found: dict[str, list[float]] = {}
    reasons: list[str] = []
    for record in cell.records:
        derived = derive(record)
        if derived is None:
            continue
        cost = derived.energy
        if isinstance(cost, Cost):
            found.setdefault(f"{cost.part}, {cost.source}", []).append(cost.joules_per_sample)
        else:
            reasons.append(cost.reason)
    if not found or reasons:
        return Absent(reason=reasons[0] if reasons else "it did not complete")
    return {name: tuple(values) for name, values in found.items()}
