"""Facts as name and value, and the parts of a page that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from metalmark.model.plan import Plan, word
from metalmark.model.run import Absent, Machine, Peak, Software
from metalmark.report.html.page import render
from metalmark.report.units import figures, size

if TYPE_CHECKING:
    from markupsafe import Markup


class Fact(NamedTuple):
    name: str
    value: str
    look: str = ""


def facts_block(facts: Sequence[Fact]) -> Markup:
    return render("facts.html", facts=facts)


def machine_facts(machine: Machine) -> list[Fact]:
    facts = [
        Fact("chip", f"{machine.chip}{f', {machine.variant}' if machine.variant else ''} ({machine.architecture})"),
        Fact("cores", _cores(machine)),
        Fact("memory", size(machine.memory_bytes)),
        Fact("system", machine.os),
    ]
    for gpu in machine.gpus:
        parts = [gpu.name, *([size(gpu.memory_bytes)] if gpu.memory_bytes else [])]
        parts += [f"{gpu.cores} cores"] if gpu.cores else []
        parts += [f"driver {gpu.driver}"] if gpu.driver else []
        facts += [Fact("GPU", ", ".join(parts)), *_peak(gpu.peak)]
    if machine.features:
        facts.append(Fact("instructions", ", ".join(machine.features)))
    kinds = [("virtual machine", machine.virtual_machine), ("container", machine.container)]
    around = [name for name, found in kinds if found]
    if around:
        facts.append(Fact("runs in a", " and a ".join(around)))
    return facts


def software_facts(software: Software) -> list[Fact]:
    versions = [f"{name} {version}" for name, version in software.versions.items()]
    facts = [Fact("software", ", ".join([*versions, f"Python {software.python}", f"Metalmark {software.metalmark}"]))]
    if software.environment:
        facts.append(Fact("environment", " ".join(f"{name}={value}" for name, value in software.environment.items())))
    return facts


def plan_facts(plan: Plan) -> list[Fact]:
    params = ", ".join(f"{name.replace('_', ' ')} {word(value)}" for name, value in plan.params.items())
    settings = [plan.settings.dtype.value]
    settings += [f"{name.replace('_', ' ')} {value}" for name, value in plan.settings.changed().items()
                 if name != "dtype"]  # fmt: skip
    feed = plan.feed.value
    if plan.loader is not None:
        feed += f", {plan.loader.workers} workers, {plan.loader.prefetch} batches ahead"
    return [
        Fact("workload", f"{plan.workload}, {plan.mode.value}"),
        Fact("parameters", params or "none"),
        Fact("framework", f"{plan.framework} on {plan.device}"),
        Fact("settings", ", ".join(settings)),
        Fact("data", f"{plan.data}; {feed}"),
        Fact("seed", str(plan.seed)),
    ]


def _cores(machine: Machine) -> str:
    parts = [f"{machine.usable_cores} usable"] if machine.usable_cores else []
    parts += [f"{machine.physical_cores} physical"] if machine.physical_cores else []
    parts += [f"{machine.logical_cores} logical"] if machine.logical_cores else []
    return ", ".join([*parts, *machine.clusters]) or "not known"


def _peak(peak: Peak | Absent | None) -> list[Fact]:
    if not isinstance(peak, Peak):
        return [Fact("its peak", f"not known: {peak.reason}")] if isinstance(peak, Absent) else []
    parts = [f"{dtype} {figures(value / 1e12)} TFLOP/s" for dtype, value in peak.flops_per_s.items()]
    if peak.bandwidth_bytes_per_s:
        parts.append(f"memory {figures(peak.bandwidth_bytes_per_s / 1e9)} GB/s")
    return [Fact("its peak", f"{', '.join(parts)}: not measured, {peak.confidence} ({peak.source})")]
