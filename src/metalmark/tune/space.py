"""The space: what may be changed of a plan here, and why the rest may not."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct, convert
from msgspec.structs import replace

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Feed, Loader, Plan, PlanChange, Scalar
from metalmark.model.run import Machine
from metalmark.model.tuning import TuningGoal
from metalmark.tune.search import TuningOption

SPEED = (TuningGoal.THROUGHPUT, TuningGoal.LATENCY, TuningGoal.ENERGY)
AHEAD = 8
"""Batches that a loader makes ahead where more is tried."""
MOST_WORKERS = 16
LOADER_AXES = ("workers", "prefetch", "pin")
BATCH_AXIS = "batch_size"
"""It is searched by itself, after the settings (`batches.py`)."""


class OptionEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `options.toml`, whose first lines describe the fields."""

    name: str
    axis: str
    settings: dict[str, Scalar] = {}
    loader: dict[str, Scalar] = {}
    frameworks: tuple[str, ...]
    expected: dict[str, float]
    modes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    instead_of: str = ""
    goals: tuple[TuningGoal, ...] = SPEED
    cost: float = 1.0
    recompiles: bool = False


class Space(Struct, frozen=True, kw_only=True):
    options: tuple[TuningOption, ...]
    left_out: tuple[str, ...]
    """What was not tried, each with its reason."""


@cache
def entries() -> tuple[OptionEntry, ...]:
    table = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
    return tuple(convert(entry, OptionEntry) for entry in table["options"])


def axes() -> list[str]:
    """Return the names of everything that can be kept as it is."""
    return [*dict.fromkeys(["threads", BATCH_AXIS, "workers", "prefetch", *(entry.axis for entry in entries())])]


def space_of(
    plan: Plan,
    *,
    device_type: str,
    goal: TuningGoal,
    machine: Machine,
    idle: Mapping[str, str] = MappingProxyType({}),
    waiting_share: float = 0.0,
    fixed: Collection[str] = (),
    tight: bool = False,
) -> Space:
    """Return the options for a plan on a type of device. `idle`: settings that would change nothing of its network,
    each with the reason. `waiting_share`: of a step, what it waits for its loader. `tight`: the plan needs more memory
    than it may, so what saves memory is tried whatever the goal."""
    options: list[TuningOption] = []
    left_out: list[str] = []
    refused: set[str] = set()
    # A step that waits for its input gains nothing elsewhere, so the loader comes first there.
    busy_share = 1.0 - waiting_share
    for entry in entries():
        expected = entry.expected.get(device_type)
        if expected is None or not _applies(entry, plan, goal, tight=tight):
            continue
        if entry.axis in fixed:
            left_out.append(f"{entry.name}: --keep {entry.axis}")
            continue
        change = PlanChange(settings=entry.settings, loader=entry.loader)
        needed = _settings_of(entry.needs)
        if change.applied(plan) == plan or (entry.instead_of and entry.instead_of not in refused):
            continue
        why = next((idle[name] for name in entry.settings if name in idle), "")
        why = why or unsupported(plan, replace(change, settings={**needed, **entry.settings}), device_type)
        if why:
            refused.add(entry.name)
            left_out.append(f"{entry.name}: {why}")
            continue
        options.append(
            TuningOption(
                name=entry.name, axis=entry.axis, change=change, needs=_not_had(entry.needs, plan), cost=entry.cost,
                recompiles=entry.recompiles, expected=expected * (1.0 if entry.loader else busy_share),
            )
        )  # fmt: skip
    if goal is not TuningGoal.MEMORY:
        more = [*_of_threads(plan, device_type, machine, busy_share), *_of_loaders(plan, machine, waiting_share)]
        options += [option for option in more if option.axis not in fixed]
    return Space(options=tuple(options), left_out=tuple(left_out))


def _settings_of(names: Collection[str]) -> dict[str, Scalar]:
    return {name: value for entry in entries() if entry.name in names for name, value in entry.settings.items()}


def _not_had(names: Collection[str], plan: Plan) -> tuple[str, ...]:
    """Return those of some options that a plan does not have anyway."""
    return tuple(name for name in names if PlanChange(settings=_settings_of([name])).applied(plan) != plan)


def unsupported(plan: Plan, change: PlanChange, device_type: str) -> str:
    """Return why the framework lacks a change on this type of device; empty where it has it."""
    changed = change.applied(plan)
    try:
        FRAMEWORKS[plan.framework].check(changed.settings, device_type, changed.loader)
    except UnsupportedError as error:
        return error.message
    return ""


def _applies(entry: OptionEntry, plan: Plan, goal: TuningGoal, *, tight: bool) -> bool:
    wanted = goal in entry.goals or (tight and TuningGoal.MEMORY in entry.goals)
    if plan.framework not in entry.frameworks or not wanted:
        return False
    if entry.loader and plan.feed is not Feed.PIPELINE:
        return False
    return not entry.modes or plan.mode.value in entry.modes


def _of_threads(plan: Plan, device_type: str, machine: Machine, busy_share: float) -> Iterator[TuningOption]:
    cores = machine.usable_cores or machine.logical_cores or 1
    physical = machine.physical_cores or cores
    asked = plan.settings.threads
    for count in dict.fromkeys([min(physical, cores), max(1, cores // 2)]):
        change = PlanChange(settings={"threads": count})
        # Frameworks take every usable core by themselves.
        if count == (asked or cores) or device_type != "cpu" or unsupported(plan, change, device_type):
            continue
        yield TuningOption(name=f"threads {count}", axis="threads", change=change, expected=0.02 * busy_share)


def _of_loaders(plan: Plan, machine: Machine, waiting_share: float) -> Iterator[TuningOption]:
    if plan.feed is not Feed.PIPELINE:
        return
    loader = plan.loader or Loader()
    cores = machine.usable_cores or machine.logical_cores or 1
    # However long it waits, half of the time gone is what more workers bring at first.
    expected = waiting_share
    for count in dict.fromkeys([2, 4, min(cores, MOST_WORKERS)]):
        if loader.workers < count <= max(2, cores):
            change = PlanChange(loader={"workers": count})
            yield TuningOption(name=f"{count} workers", axis="workers", change=change, expected=expected)
    if 0 < loader.prefetch < AHEAD:
        change = PlanChange(loader={"prefetch": AHEAD})
        yield TuningOption(name=f"prefetch {AHEAD}", axis="prefetch", change=change, expected=expected / 4)
