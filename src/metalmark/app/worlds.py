"""What --nproc and its companions ask for: how many processes train one network, where they meet, and what can't be."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, UnsetType

from metalmark.app import choices
from metalmark.app.choices import Choice
from metalmark.backends.base import DeviceReport, Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import NodeFailedError, UsageError, counted
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Scaling, Settings, World
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.expand import Combinations
from metalmark.runner.probing import probe_all
from metalmark.runner.values import parse_numbers
from metalmark.runner.world import Meeting, await_meeting
from metalmark.track.launch import Say

MOST_RANKS = 64
MOST_NODES = 1000
MOST_PORT = 65535
__all__ = ["await_meeting"]

EXAMPLE = "--nnodes 2 --rdzv 192.0.2.7:29500 --node-rank 0"
Worlds = Sequence[World | UnsetType]
Refusals = dict[tuple[str, str], str]
"""Why several processes can't train, by framework and device."""


def parse_worlds(nproc: Choice | None, nnodes: int | None, scaling: Choice | None) -> list[World | UnsetType]:
    """Return what is asked for, each once: one process by itself is not a world."""
    counts = [1] if nproc is None else parse_numbers(choices.listed(nproc), what="--nproc", whole=True)
    for count in counts:
        if not 1 <= count <= MOST_RANKS:
            raise UsageError(
                f"--nproc is a number of processes from 1 to {MOST_RANKS}, not {count}.", hint="Write --nproc 2."
            )
    nodes = 1 if nnodes is None else choices.parse_count(nnodes, what="--nnodes", most=MOST_NODES)
    ways = choices.members(Scaling, scaling or Scaling.STRONG, what="--scaling", plural="It takes")
    if scaling is not None and max(counts) * nodes == 1:
        raise UsageError(
            "--scaling says whether a batch is split over processes or grows with them, and there is one process.",
            hint="Add --nproc 2, or leave --scaling out.",
        )
    made = [
        World(nproc=int(count), nnodes=nodes, scaling=way) if count * nodes > 1 else UNSET
        for count in counts
        for way in ways
    ]
    return list(dict.fromkeys(made))


def parse_meeting(
    nnodes: int | None, rdzv: str | None, node_rank: int | None, timeout_s: float | None
) -> Meeting | None:
    """Return where the processes of several machines meet; None where there is one machine."""
    given = {"--rdzv": rdzv, "--node-rank": node_rank, "--rdzv-timeout": timeout_s}
    if nnodes is None or nnodes == 1:
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} is for several machines, and there is one.", hint=f"Write {EXAMPLE}.")
        return None
    for flag in ("--rdzv", "--node-rank"):
        if given[flag] is None:
            what = "where the machines meet" if flag == "--rdzv" else "which of the machines this is, from 0 on"
            raise UsageError(f"--nnodes {nnodes} needs {flag}: {what}.", hint=f"Write {EXAMPLE}.")
    assert rdzv is not None
    assert node_rank is not None
    if not 0 <= node_rank < nnodes:
        raise UsageError(
            f"--node-rank is from 0 to {nnodes - 1} for --nnodes {nnodes}, not {node_rank}.", hint=f"Write {EXAMPLE}."
        )
    host, colon, port = rdzv.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= MOST_PORT):
        raise UsageError(
            f"--rdzv is HOST:PORT with a port from 1 to {MOST_PORT}, not {rdzv!r}.",
            hint="Write --rdzv 192.0.2.7:29500.",
        )
    limit = {} if timeout_s is None else {"timeout_s": choices.parse_seconds(timeout_s, what="--rdzv-timeout")}
    return Meeting(host=host, port=int(port), node_rank=node_rank, **limit)


def several(worlds: Worlds) -> list[World]:
    return [world for world in worlds if isinstance(world, World)]


def refuse_options(
    worlds: Worlds, *, modes: Sequence[Mode], settings: Sequence[Settings], parity: bool, meeting: Meeting | None
) -> None:
    """Refuse what several processes can't be combined with."""
    if not several(worlds):
        return
    if Mode.INFERENCE in modes:
        raise UsageError(
            "--nproc is for training: in inference processes have nothing to tell each other.",
            hint="Use --mode training, or leave --nproc out.",
        )
    for name in ("compile", "graph", "accumulate", "recompute"):
        if any(getattr(each, name) != getattr(Settings(), name) for each in settings):
            raise UsageError(
                f"--{name} can't be combined with --nproc: Metalmark runs plain steps in several processes.",
                hint="Leave one of the two out.",
            )
    if parity:
        raise UsageError(
            "--parity checks one process, and --nproc asks for several.",
            hint="Check with `metalmark parity` first; then train or measure with --nproc.",
        )
    if meeting is not None and len(worlds) > 1:
        raise UsageError(
            "With --nnodes, each machine must run the same one cell: --nproc and --scaling take one value.",
            hint="Write one command per number of processes.",
        )


def refuse_cluster(on: str | None, *, nproc: Choice | None, nnodes: int | None) -> None:
    """The nodes of a cluster run each cell in one process of their own."""
    if on is not None and (nproc is not None or nnodes is not None):
        raise UsageError(
            "--on sends each cell to one process of one node, and --nproc and --nnodes let several train together.",
            hint="Leave one of them out.",
        )


def refuse_batches(worlds: Worlds, combinations: Mapping[str, Combinations]) -> None:
    """Refuse a batch that can't be split into equal parts, and name the nearest that can."""
    for workload, values in combinations.items():
        for params in values:
            for world in several(worlds):
                size, count = params.get("batch_size"), world.size
                if not isinstance(size, int):
                    raise UsageError(
                        f"{workload} has no parameter --batch-size, so --nproc has nothing to split.",
                        hint="Leave --nproc out.",
                    )
                if world.scaling is Scaling.STRONG and size % count:
                    below, above = size // count * count, (size // count + 1) * count
                    near = f"{below} or {above}" if below else str(above)
                    raise UsageError(
                        f"A batch of {size} can't be split into {count} equal parts, one per process.",
                        hint=f"Use --batch-size {near}; or --scaling weak, which gives each process {size}.",
                    )


def refuse_devices(worlds: Worlds, devices: Mapping[str, Sequence[Device]], *, named: bool) -> Refusals:
    """Return which frameworks and devices several processes can't use, and why. `named`: the user has named them all,
    so the first reason is an error; it is also where nothing is left."""
    wanted = several(worlds)
    if not wanted:
        return {}
    asked = [name for name, found in devices.items() if any(device.kind is not DeviceKind.CPU for device in found)]
    probes = probe_all([name for name in asked if FRAMEWORKS[name].launcher])
    reasons: Refusals = {}
    for name, found in devices.items():
        for device in found:
            probe = probes.get(name)
            why = _why_not(name, device, wanted, probe.devices if isinstance(probe, Probe) else ())
            if why:
                reasons[name, str(device)] = why
    count = sum(len(found) for found in devices.values())
    if reasons and (named or len(reasons) == count):
        (name, word), why = next(iter(reasons.items()))
        can = [one.name for one in FRAMEWORKS.values() if one.launcher]
        raise UsageError(
            f"--nproc on {name}, {word}: {why}",
            hint=f"Use --device cpu with {' or '.join(can)}, or leave --nproc out.",
        )
    return reasons


def _why_not(name: str, device: Device, worlds: Sequence[World], reports: Iterable[DeviceReport]) -> str:
    framework, nproc = FRAMEWORKS[name], max(world.nproc for world in worlds)
    if not framework.launcher:
        return framework.no_world
    if framework.one_machine and any(world.nnodes > 1 for world in worlds):
        return framework.one_machine
    if device.kind is DeviceKind.CPU:
        return ""
    if device.index is not None:
        return "each process takes a device of its own, from the first on, so none can be named."
    fitting = [report for report in reports if report.word != DeviceKind.CPU]
    if device.kind not in (DeviceKind.GPU, DeviceKind.ANY):
        fitting = [report for report in fitting if report.word == device.kind]
    found = next((report for report in fitting if report.present), None)
    if found is None:
        why = " ".join(f"{report.word}: {report.reason}" for report in fitting)
        return "" if device.kind is DeviceKind.ANY else f"there is no such device here. {why}".strip()
    if found.word == DeviceKind.MPS:
        return "a Mac has one GPU, and every process needs one of its own."
    if nproc > found.count:
        return f"{nproc} processes need a device each, and there {'is' if found.count == 1 else 'are'} {found.count}."
    return ""


def left_out(reasons: Refusals) -> list[str]:
    return [f"{name} {device} not run with several processes: {why}" for (name, device), why in reasons.items()]


def refuse_many_cells(meeting: Meeting | None, plans: Sequence[Plan], repeats: int) -> None:
    if meeting is not None and len(plans) * repeats > 1:
        raise UsageError(
            f"With --nnodes, each machine must run the same one cell, and these are {counted(len(plans), 'cell')}"
            f"{f' with {repeats} repeats' if repeats > 1 else ''}.",
            hint="Name one framework and one device: --framework torch --device cpu.",
        )


def possible_cells(
    world: World | UnsetType, cells: Sequence[tuple[str, Device]], *, named: bool, say: Say
) -> list[tuple[str, Device]]:
    """Return the frameworks and devices on which these processes can train, and say why the others are left out."""
    devices: dict[str, list[Device]] = {}
    for name, device in cells:
        devices.setdefault(name, []).append(device)
    refused = refuse_devices([world], devices, named=named)
    for line in left_out(refused):
        say(f"• {line}")
    return [(name, device) for name, device in cells if (name, str(device)) not in refused]


def raise_failure(failure: Failed | None) -> None:
    """Tell why the processes of a machine failed that has no run to say it in."""
    if failure is not None and failure.kind is FailureKind.INTERRUPTED:
        raise KeyboardInterrupt
    if failure is not None:
        raise NodeFailedError(failure.message, hint=failure.hint)
