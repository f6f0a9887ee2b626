"""From lists to cells: the product of everything that was asked for, as Plans in the order of the table."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import product

from msgspec import UNSET, UnsetType

from metalmark.errors import UsageError, did_you_mean
from metalmark.model.plan import Budget, Device, Feed, Loader, Mode, Plan, Proving, Scalar, Settings, World
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.values import parse_param

MOST_CELLS = 10_000

Combinations = list[dict[str, Scalar]]


@dataclass(frozen=True, kw_only=True)
class SweepAxes:
    """The lists that span a sweep. `devices` is per framework, since `all` means other devices for each."""

    workloads: Sequence[WorkloadInfo]
    params: Mapping[str, Combinations]
    """Combinations of parameters by workload, as `combine` makes them."""
    modes: Sequence[Mode]
    devices: Mapping[str, Sequence[Device]]
    settings: Sequence[Settings]
    budget: Budget
    data: Sequence[str] = ()
    """Empty: each workload's own, or else synthetic."""
    target_column: str = ""
    feeds: Sequence[Feed] = ()
    """Empty: each workload's own default."""
    loaders: Sequence[Loader] = (Loader(),)
    seed: int = 0
    proof: Proving = Proving.FLAG
    worlds: Sequence[World | UnsetType] = (UNSET,)
    """The processes that train each cell together; unset for one."""
    alone: Collection[tuple[str, str]] = ()
    """Frameworks and devices that several processes can't use."""
    left_out: list[str] = field(default_factory=list)


def refuse_too_many(*lists: Sized) -> None:
    """Refuse lists that multiply to more cells than a sweep has, before any of them is made: a few short lists ask for
    more than memory holds."""
    count = math.prod(map(len, lists))
    if count > MOST_CELLS:
        raise UsageError(f"That is {count} cells.", hint=f"Ask for at most {MOST_CELLS} at once.")


def expand(axes: SweepAxes) -> tuple[Plan, ...]:
    plans = tuple(plan for workload in axes.workloads for plan in _of(workload, axes))
    if not plans:
        raise UsageError(
            "There is nothing to run: none of these frameworks has an implementation or a device for it.",
            hint="`metalmark list workloads` shows which frameworks each workload has.",
        )
    if len(plans) > MOST_CELLS:
        raise UsageError(f"That is {len(plans)} cells.", hint=f"Ask for at most {MOST_CELLS} at once.")
    return plans


def combine(
    workloads: Sequence[WorkloadInfo], given: Mapping[str, str], options: Sequence[str], *, verb: str
) -> dict[str, Combinations]:
    """Return every combination of each workload's parameters. A parameter must be known to at least one of the
    workloads (`mnist-mlp,bert --size tiny`); the answer to an unknown one names the nearest, the verb's `options`
    included."""
    known = {param.name for workload in workloads for param in workload.params}
    for name in given:
        if name not in known:
            flag, *flags = [f"--{each.replace('_', '-')}" for each in (name, *sorted(known))]
            asked = ", ".join(workload.name for workload in workloads)
            raise UsageError(
                f"{asked} has no parameter {flag}{did_you_mean(flag, [*flags, *options])}",
                hint=f"Parameters: {', '.join(flags)}. Options: metalmark {verb} --help",
            )
    combinations = {}
    for workload in workloads:
        lists = [
            parse_param(param, given[param.name]) if param.name in given else [param.default]
            for param in workload.params
        ]
        refuse_too_many(*lists)
        names = [param.name for param in workload.params]
        combinations[workload.name] = [dict(zip(names, values, strict=True)) for values in product(*lists)]
    return combinations


def require(workloads: Sequence[WorkloadInfo], frameworks: Sequence[str]) -> None:
    """Refuse a workload that has no implementation for a framework that was named."""
    for workload in workloads:
        for framework in frameworks:
            if framework not in workload.frameworks:
                raise UsageError(
                    f"{workload.name} has no implementation for {framework}.",
                    hint=f"It has: {', '.join(workload.frameworks)}.",
                )


def _of(workload: WorkloadInfo, axes: SweepAxes) -> Iterator[Plan]:
    modes = [mode for mode in axes.modes if mode in workload.modes]
    if not modes:
        raise UsageError(f"{workload.name} has no {axes.modes[0].value}.", hint=f"It has: {', '.join(workload.modes)}.")
    frameworks = [name for name in axes.devices if name in workload.frameworks]
    axes.left_out.extend(
        f"{workload.name} on {name} not run: it has no implementation for it."
        for name in axes.devices
        if name not in workload.frameworks
    )
    feeds = [
        (feed, loader)
        for feed in axes.feeds or [workload.feed]
        for loader in (axes.loaders if feed is Feed.PIPELINE else [None])
    ]
    devices = [device for framework in frameworks for device in axes.devices[framework]]
    sources = axes.data or [workload.data]
    refuse_too_many(modes, axes.params[workload.name], axes.settings, sources, feeds, devices, axes.worlds)
    for mode, params, settings, data, (feed, loader) in product(
        modes, axes.params[workload.name], axes.settings, sources, feeds
    ):
        for framework in frameworks:
            for device, world in product(axes.devices[framework], axes.worlds):
                if world and (framework, str(device)) in axes.alone:
                    continue
                yield Plan(
                    workload=workload.name, params=params, mode=mode, framework=framework, device=device,
                    settings=settings, budget=axes.budget, data=data, target_column=axes.target_column, feed=feed,
                    loader=loader, seed=axes.seed,
                    proof=axes.proof, workload_digest=workload.digest, world=world,
                )  # fmt: skip
