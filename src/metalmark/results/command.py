"""The command that would measure a cell or train a network again."""

import shlex
from functools import cache

from msgspec.structs import replace

from metalmark.model.plan import DEFAULT_SETTINGS, Budget, Feed, Loader, Plan, PlanChange, Proving, Scaling, word
from metalmark.model.training import Goal, Metric, Target
from metalmark.workloads.catalog import load, names

ANYWHERE = ("--rdzv", "HOST:PORT", "--node-rank", "0")


def bench_command(plan: Plan) -> str:
    """The command that measures a plan again."""
    parts = _plan_words(plan)
    parts[5:5] = ["--mode", plan.mode.value]
    if plan.feed is not Feed.RESIDENT:
        parts += ["--data-from", plan.feed.value]
    if plan.loader is not None:
        usual, loader = Loader(), plan.loader
        named = {"workers": loader.workers, "prefetch": loader.prefetch, "pin": loader.pin}
        parts += [f"--{name}={word(value)}" for name, value in named.items() if value != getattr(usual, name)]
    if plan.budget.steps:
        parts += ["--steps", str(plan.budget.steps)]
    elif plan.budget.seconds != Budget().seconds:
        parts += ["--seconds", f"{plan.budget.seconds:g}"]
    if plan.proof is not Proving.FLAG:
        parts += ["--proof", plan.proof.value]
    return f"metalmark bench {shlex.join(parts)}"


def explain_command(plan: Plan) -> str:
    """The command that takes a step of a plan apart by experiments."""
    step = replace(plan, budget=Budget(), proof=Proving.FLAG)
    return bench_command(step).replace("metalmark bench", "metalmark explain", 1)


def train_command(plan: Plan, goal: Goal) -> str:
    """The command that trains a plan again."""
    parts = [*_plan_words(plan), "--epochs", str(goal.epochs)]
    parts += ["--target-accuracy", f"{goal.target_accuracy:g}"] if goal.target_accuracy is not None else []
    parts += ["--target", target_words(goal.target)] if goal.target is not None else []
    parts += ["--monitor", monitor_words(goal.monitor)] if goal.monitor is not None else []
    parts += ["--limit-samples", str(goal.limit_samples)] if goal.limit_samples is not None else []
    parts += ["--limit-steps", str(goal.limit_steps)] if goal.limit_steps is not None else []
    parts += ["--patience", str(goal.patience)] if goal.patience is not None else []
    parts += ["--workers", str(goal.workers)] if goal.workers is not None else []
    return f"metalmark train {shlex.join(parts)}"


def change_options(change: PlanChange) -> str:
    """The options that make a change, to be added to a command that measures or trains."""
    flags = {**change.settings, **change.loader, **change.params}
    parts = [f"--{name.replace('_', '-')}={word(value)}" for name, value in flags.items()]
    parts += [f"--data-from={change.feed.value}"] if change.feed is not None else []
    return shlex.join(parts)


def target_words(target: Target) -> str:
    """A target as --target takes it, with the direction said."""
    return f"{target.name}{'<=' if target.falls else '>='}{target.value:g}"


def monitor_words(monitor: Metric) -> str:
    return f"{monitor.name}:{'min' if monitor.falls else 'max'}"


def settings_command(plan: Plan, path: str) -> str:
    """The command that measures a workload with the settings of a file."""
    workload, *params = _workload_words(plan)
    return f"metalmark bench {shlex.join([workload, *params, '--settings', path])}"


def _workload_words(plan: Plan) -> list[str]:
    """The workload and its parameters, as far as they are not the usual ones."""
    usual = _defaults(plan.workload)
    parts = [plan.workload]
    for name, value in plan.params.items():
        parts += [] if name in usual and usual[name] == value else [f"--{name.replace('_', '-')}", word(value)]
    return parts


def _plan_words(plan: Plan) -> list[str]:
    workload, *params = _workload_words(plan)
    parts = [workload, "-f", plan.framework, "-d", str(plan.device), *params]
    for name in plan.settings.__struct_fields__:
        value = getattr(plan.settings, name)
        if value != getattr(DEFAULT_SETTINGS, name):
            parts.append(f"--{name.replace('_', '-')}={word(value)}")
    parts += ["--target-column", plan.target_column] if plan.target_column else []
    if plan.world:
        parts += ["--nproc", str(plan.world.nproc)]
        parts += ["--scaling", plan.world.scaling.value] if plan.world.scaling is not Scaling.STRONG else []
        # Where they met is not stored.
        parts += ["--nnodes", str(plan.world.nnodes), *ANYWHERE] if plan.world.nnodes > 1 else []
    return [*parts, *(["--data", plan.data] if plan.data != "synthetic" else [])]


@cache
def _defaults(workload: str) -> dict[str, object]:
    """The default parameters of a built-in workload; a user's own file is not run to ask."""
    if workload not in names():
        return {}
    return {param.name: param.default for param in load(workload).params}
