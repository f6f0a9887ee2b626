"""Ceilings: the most that a device reached in a matrix product and in a copy, by framework, version and dtype."""

from collections.abc import Iterable

from msgspec import Struct

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent
from metalmark.results.cells import cells_of
from metalmark.workloads.ceiling import COPY, MATMUL, copied_bytes


class CeilingKey(Struct, frozen=True):
    """What a ceiling belongs to: another machine, framework, version, device or dtype has another ceiling."""

    chip: str
    gpus: tuple[str, ...]
    framework: str
    version: str
    placed_on: str
    dtype: str
    threads: int | None


class Ceilings(Struct, frozen=True):
    flops_per_s: dict[CeilingKey, float]
    bytes_per_s: dict[CeilingKey, float]


NO_CEILINGS = Ceilings({}, {})


def key_of(record: BenchRun, run: Completed) -> CeilingKey:
    plan = record.plan
    return CeilingKey(
        chip=record.machine.chip,
        gpus=tuple(gpu.name for gpu in record.machine.gpus),
        framework=plan.framework,
        version=record.software.versions.get(plan.framework, ""),
        placed_on=run.placed_on,
        dtype=plan.settings.dtype.value,
        threads=plan.settings.threads,
    )


def ceilings_of(records: Iterable[BenchRun]) -> Ceilings:
    """The newest ceiling of each key; runs of other workloads are ignored."""
    found = Ceilings({}, {})
    for record in sorted(records, key=lambda record: record.started_at):
        run = record.outcome
        if not isinstance(run, Completed):
            continue
        step_s = cells_of([record])[0].step_s
        if record.plan.workload == MATMUL and run.flops_per_sample:
            found.flops_per_s[key_of(record, run)] = run.flops_per_sample * run.samples_per_step / step_s
        elif record.plan.workload == COPY and isinstance(record.plan.params.get("megafloats"), int):
            found.bytes_per_s[key_of(record, run)] = copied_bytes(record.plan.params) / step_s
    return found


def share_of_ceiling(record: BenchRun, flops_per_s: float, ceilings: Ceilings) -> tuple[float, float] | Absent:
    """The ceiling that applies to a run, and the share of it that these FLOP/s are."""
    run, plan = record.outcome, record.plan
    assert isinstance(run, Completed)
    if plan.world:
        return Absent("a ceiling is of one process, and these were several")
    ceiling = ceilings.flops_per_s.get(key_of(record, run))
    if ceiling is None:
        threads = f" --threads {plan.settings.threads}" if plan.settings.threads else ""
        asked = f"-f {plan.framework} -d {plan.device} --dtype {plan.settings.dtype.value}{threads}"
        return Absent(f"not measured yet: metalmark ceiling {asked}")
    return ceiling, flops_per_s / ceiling
