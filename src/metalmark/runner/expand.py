"""From lists to cells: the product of everything that was asked for, as Plans in the order of the table."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from metalmark.errors import UsageError
from metalmark.plan import Budget, Device, Mode, Plan, Scalar, Settings
from metalmark.runner.values import parse_param
from metalmark.workload import WorkloadInfo

MOST_CELLS = 10_000


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A command's lists, parsed. `devices` is per framework, since `all` means other devices for each."""

    workloads: Sequence[WorkloadInfo]
    params: Mapping[str, str]
    modes: Sequence[Mode]
    devices: Mapping[str, Sequence[Device]]
    settings: Sequence[Settings]
    budget: Budget
    seed: int = 0
    every_framework: bool = False
    """`--framework all`: leave out, rather than refuse, what a workload has no implementation for."""
    options: Sequence[str] = ()
    """The command's own flags, to name the nearest when a parameter is unknown."""
    left_out: list[str] = field(default_factory=list)


def expand(wish: Wish) -> tuple[Plan, ...]:
    _refuse_unknown(wish)
    plans = tuple(plan for workload in wish.workloads for plan in _of(workload, wish))
    if not plans:
        raise UsageError(
            "There is nothing to run: none of these frameworks has an implementation or a device for it.",
            hint="`metalmark list workloads` shows which frameworks each workload has.",
        )
    if len(plans) > MOST_CELLS:
        raise UsageError(f"That is {len(plans)} cells.", hint=f"Ask for at most {MOST_CELLS} at once.")
    return plans


def _of(workload: WorkloadInfo, wish: Wish) -> Iterator[Plan]:
    lists = [_values(workload, name, wish.params) for name in (param.name for param in workload.params)]
    names = [param.name for param in workload.params]
    frameworks = list(_frameworks(workload, wish))
    modes = [mode for mode in wish.modes if mode in workload.modes]
    if not modes:
        raise UsageError(f"{workload.name} has no {wish.modes[0].value}.", hint=f"It has: {', '.join(workload.modes)}.")
    for mode, values, settings in product(modes, product(*lists), wish.settings):
        for framework in frameworks:
            for device in wish.devices[framework]:
                yield Plan(
                    workload=workload.name,
                    params=dict(zip(names, values, strict=True)),
                    mode=mode,
                    framework=framework,
                    device=device,
                    settings=settings,
                    budget=wish.budget,
                    seed=wish.seed,
                    workload_digest=workload.digest,
                )


def _frameworks(workload: WorkloadInfo, wish: Wish) -> Iterator[str]:
    for framework in wish.devices:
        if framework in workload.frameworks:
            yield framework
        elif wish.every_framework:
            wish.left_out.append(f"{workload.name} on {framework}: it has no implementation for it.")
        else:
            raise UsageError(
                f"{workload.name} has no implementation for {framework}.",
                hint=f"It has: {', '.join(workload.frameworks)}.",
            )


def _values(workload: WorkloadInfo, name: str, given: Mapping[str, str]) -> list[Scalar]:
    param = next(param for param in workload.params if param.name == name)
    return parse_param(param, given[name]) if name in given else [param.default]


def _refuse_unknown(wish: Wish) -> None:
    """A parameter need be known to one of the workloads only: `mnist-mlp,bert --size tiny`."""
    known = {param.name for workload in wish.workloads for param in workload.params}
    for name in wish.params:
        if name not in known:
            flag = f"--{name.replace('_', '-')}"
            flags = sorted(f"--{each.replace('_', '-')}" for each in known)
            near = difflib.get_close_matches(flag, [*flags, *wish.options], n=1)
            names = ", ".join(workload.name for workload in wish.workloads)
            raise UsageError(
                f"{names} has no parameter {flag}{f'; did you mean {near[0]}?' if near else '.'}",
                hint=f"Parameters: {', '.join(flags)}. Options: metalmark bench --help",
            )
