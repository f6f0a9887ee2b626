"""The derived figures of a record, in words: one line a question, and the reason where there is no answer."""

from __future__ import annotations

from metalmark.model.measurement import BenchRun
from metalmark.model.run import Absent
from metalmark.report.units import figures, share, size
from metalmark.results.ceilings import Ceilings, share_of_ceiling
from metalmark.results.derived import Cost, Derived, derive


def derived_lines(record: BenchRun, ceilings: Ceilings) -> list[str]:
    derived = derive(record)
    if derived is None:
        return []
    answers = [
        _flops(derived),
        *_ceiling(record, derived, ceilings),
        _utilisation(derived),
        *_energy(derived),
        _growth(derived),
        _swap(derived),
    ]
    return [f"  {answer}" for answer in answers]


def _flops(derived: Derived) -> str:
    rate = derived.flops_per_s
    if isinstance(rate, Absent):
        return f"FLOP/s unknown: {rate.reason}"
    return f"about {figures(rate / 1e9)} GFLOP/s, by an analytic count of the model's work"


def _ceiling(record: BenchRun, derived: Derived, ceilings: Ceilings) -> list[str]:
    if isinstance(derived.flops_per_s, Absent):
        return []
    found = share_of_ceiling(record, derived.flops_per_s, ceilings)
    if isinstance(found, Absent):
        return [f"share of the ceiling unknown: {found.reason}"]
    ceiling, part = found
    return [f"{share(part)} of the {figures(ceiling / 1e9)} GFLOP/s that a matrix product reached here"]


def _utilisation(derived: Derived) -> str:
    used = derived.utilisation
    if isinstance(used, Absent):
        return f"utilisation unknown: {used.reason}"
    return f"utilisation: {share(used.percent / 100)} of {used.of} ({used.source})"


def _energy(derived: Derived) -> list[str]:
    own = f"energy unknown: {derived.energy.reason}" if isinstance(derived.energy, Absent) else _cost(derived.energy)
    return [own, *map(_cost, derived.others)]


def _cost(cost: Cost) -> str:
    peak = "" if isinstance(cost.peak_w, Absent) else f", {figures(cost.peak_w)} W at most"
    idle = "" if isinstance(cost.idle_w, Absent) else f", {figures(cost.idle_w)} W idle before"
    if isinstance(cost.samples_per_joule, Absent):
        return f"energy of {cost.part}: none ({cost.source}; {cost.method})"
    # A source says itself whether it is measured or modelled, and of what.
    return (
        f"energy of {cost.part}: {figures(cost.average_w)} W on average{peak}{idle}; "
        f"{joules(cost.joules_per_step)} a step, "
        f"{joules(cost.joules_per_sample)} a sample, {figures(cost.samples_per_joule)} samples a joule "
        f"({cost.source}; {cost.method})"
    )


def _growth(derived: Derived) -> str:
    if isinstance(derived.growth, Absent):
        return f"memory growth unknown: {derived.growth.reason}"
    parts = [f"{_signed(one.bytes_per_1000_steps)} in {one.of}" for one in derived.growth]
    return f"memory growth in 1,000 steps: {', '.join(parts)}"


def _swap(derived: Derived) -> str:
    moved_in, moved_out = derived.swapped_in_bytes, derived.swapped_out_bytes
    if isinstance(moved_in, Absent):
        return f"swap traffic unknown: {moved_in.reason}"
    if isinstance(moved_out, Absent):
        return f"swap traffic unknown: {moved_out.reason}"
    return f"swapped by the whole machine: {size(moved_in)} in, {size(moved_out)} out"


def joules(value: float) -> str:
    for scale, unit in ((1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ")):
        if value >= scale:
            return f"{figures(value / scale)} {unit}"
    return f"{figures(value / 1e-9)} nJ"


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else ''}{size(abs(value))}"
