"""A plan as the command that measures it again."""

from __future__ import annotations

import shlex
from functools import cache

from metalmark.model.plan import DEFAULT_SETTINGS, Budget, Feed, Loader, Plan, word
from metalmark.workloads.catalog import load, names


def bench_command(plan: Plan) -> str:
    parts = [plan.workload, "-f", plan.framework, "-d", str(plan.device), "--mode", plan.mode.value]
    usual = _defaults(plan.workload)
    for name, value in plan.params.items():
        parts += [] if name in usual and usual[name] == value else [f"--{name.replace('_', '-')}", word(value)]
    for name in plan.settings.__struct_fields__:
        value = getattr(plan.settings, name)
        if value != getattr(DEFAULT_SETTINGS, name):
            parts.append(f"--{name.replace('_', '-')}={word(value)}")
    if plan.data != "synthetic":
        parts += ["--data", plan.data]
    if plan.feed is not Feed.RESIDENT:
        parts += ["--data-from", plan.feed.value]
    parts += _loader(plan.loader)
    if plan.budget.steps:
        parts += ["--steps", str(plan.budget.steps)]
    elif plan.budget.seconds != Budget().seconds:
        parts += ["--seconds", f"{plan.budget.seconds:g}"]
    return f"metalmark bench {shlex.join(parts)}"


@cache
def _defaults(workload: str) -> dict[str, object]:
    """Of a built-in; a user's own file is not run to ask."""
    if workload not in names():
        return {}
    return {param.name: param.default for param in load(workload).params}


def _loader(loader: Loader | None) -> list[str]:
    if loader is None:
        return []
    usual = Loader()
    named = {"workers": loader.workers, "prefetch": loader.prefetch, "pin": loader.pin}
    return [f"--{name}={word(value)}" for name, value in named.items() if value != getattr(usual, name)]
