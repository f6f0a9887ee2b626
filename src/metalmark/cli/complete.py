"""What the shell completes besides verbs and options: workloads, frameworks, devices, settings, checks and runs.

Nothing is asked that takes long: devices are the words that there are, not those that a framework finds here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from metalmark.errors import MetalmarkError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from metalmark.store.row import Row

LAST = "last"


def complete_workloads(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.workloads.catalog import shown_names

    return _last_of_list(incomplete, shown_names())


def complete_frameworks(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.backends.catalog import visible

    return _last_of_list(incomplete, [*(framework.name for framework in visible()), "all"])


def complete_devices(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.model.plan import DeviceKind

    return _last_of_list(incomplete, [*(kind.value for kind in DeviceKind), "all"])


def complete_dtypes(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.model.plan import Dtype

    return _last_of_list(incomplete, [dtype.value for dtype in Dtype])


def complete_compile_modes(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.model.plan import COMPILE_MODES

    return _last_of_list(incomplete, COMPILE_MODES)


def complete_attention_kernels(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.model.plan import ATTENTION_KERNELS

    return _last_of_list(incomplete, ATTENTION_KERNELS)


def complete_environments(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.backends.environment import written

    return _last_of_list(incomplete, written())


def complete_modes(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.model.plan import Mode

    return _last_of_list(incomplete, [mode.value for mode in Mode])


def complete_checks(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from metalmark.doctor.catalog import CHECKS

    return _last_of_list(incomplete, CHECKS)


def complete_runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete `last`, names and tags, and the ids of the newest runs and of their sweeps, each with what it is."""
    from click.shell_completion import CompletionItem

    words = {LAST: "what the newest command made", **_names(ctx)}
    for row in _newest(ctx):
        what = " ".join(filter(None, (row.workload or row.name, row.framework, row.device)))
        words |= {row.id: f"{row.kind}: {what}", **({row.sweep: f"sweep: {row.workload}"} if row.sweep else {})}
    return [CompletionItem(word, help=text) for word, text in words.items() if word.startswith(incomplete)]


def complete_subjects(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete what can be explained: workloads and runs."""
    from click.shell_completion import CompletionItem

    workloads = [CompletionItem(word, help="workload") for word in complete_workloads(ctx, param, incomplete)]
    return [*workloads, *complete_runs(ctx, param, incomplete)]


def complete_sweeps(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    sweeps = dict.fromkeys(row.sweep for row in _newest(ctx) if row.sweep and row.kind == "bench")
    return [sweep for sweep in (LAST, *sweeps) if sweep.startswith(incomplete)]


def complete_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _names(ctx) if name.startswith(incomplete)]


def complete_waiting(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the runs that wait for a tracker."""
    from metalmark.track.waiting import waiting

    return list(dict.fromkeys(one.run for one in waiting() if one.run.startswith(incomplete)))


def _last_of_list(incomplete: str, words: Iterable[str]) -> list[str]:
    """Complete the last word of a list that commas join; those before it stay."""
    before, comma, begun = incomplete.rpartition(",")
    given = before.split(",") if comma else []
    return [f"{before}{comma}{word}" for word in words if word.startswith(begun) and word not in given]


def _newest(ctx: click.Context) -> "tuple[Row, ...]":
    from metalmark.app.runs import list_runs

    try:
        return tuple(reversed(list_runs(store=ctx.params.get("store")).rows))
    except MetalmarkError:  # a store that can't be read: whoever types goes on typing, and the command says why
        return ()


def _names(ctx: click.Context) -> dict[str, str]:
    from metalmark.app.runs import list_runs

    try:
        listing = list_runs(limit=1, store=ctx.params.get("store"))
    except MetalmarkError:
        return {}
    return {name: "name or tag" for names in listing.names.values() for name in names}
