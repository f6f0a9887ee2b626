"""Place: where the cells of a use case run. Here, or on the nodes of a cluster (`on_cluster.py`)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from metalmark.app import choices
from metalmark.app.choices import Choice
from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityMark
from metalmark.model.plan import CellTarget, Plan, Sweep
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.events import Listener
from metalmark.runner.expand import require
from metalmark.runner.probing import DeviceChoice, absences, choose_devices
from metalmark.runner.sweeping import run_sweep
from metalmark.runner.values import split_list
from metalmark.track.launch import Say

if TYPE_CHECKING:
    from metalmark.cluster.messages import NodeJob

KINDS, ALL, ANY = NODE_CHOICES = ("kinds", "all", "any")


class Spread(NamedTuple):
    """The cells of a sweep: plans, and for each of them the machine that it is for."""

    plans: tuple[Plan, ...]
    targets: tuple[CellTarget, ...] = ()
    """Empty: all are for this machine."""
    left_out: tuple[str, ...] = ()


class Place(Protocol):
    def devices(
        self, infos: Sequence[WorkloadInfo], framework: Choice, device: Choice, *, paths: dict[str, str], say: Say
    ) -> DeviceChoice:
        """Return the devices of each framework that is asked for, and what was left out of `all`."""

    def devices_of_first(
        self, info: WorkloadInfo, framework: Choice | None, device: Choice, *, paths: dict[str, str], say: Say
    ) -> DeviceChoice:
        """Do the same for one workload. Where no framework is named, it is the first that is there."""

    def spread(self, plans: tuple[Plan, ...]) -> Spread:
        """Return the cells: a plan is one, or one for each machine that it is to run on."""

    def spread_present(self, plans: tuple[Plan, ...]) -> Spread:
        """Do the same, and refuse plans whose device is not there."""

    def run_sweep(
        self,
        sweep: Sweep,
        *,
        previous: Collection[BenchRun],
        keep: Callable[[BenchRun], None],
        listeners: Sequence[Listener] = (),
        marks: Sequence[ParityMark | None] = (),
    ) -> bool:
        """Run what is not in `previous` yet; return False when Ctrl-C ended it."""

    def run_jobs(
        self,
        sweep: Sweep,
        *,
        job: Callable[[int], "NodeJob"],
        keep: Callable[[Any, str], None],
        listeners: Sequence[Listener],
        verb: str,
        done: Collection[int] = (),
    ) -> bool:
        """Let nodes do the job of each cell but those that are done, and keep each run with the node that it is of;
        return False when Ctrl-C ended it."""


class Here:
    """This machine."""

    def devices(
        self,
        infos: Sequence[WorkloadInfo],
        framework: Choice,
        device: Choice,
        *,
        paths: dict[str, str],  # noqa: ARG002
        say: Say,
    ) -> DeviceChoice:
        frameworks, every, notes = choices.choose_frameworks(framework)
        if every:
            frameworks = [name for name in frameworks if any(name in info.frameworks for info in infos)]
        else:
            require(infos, frameworks)
        words = split_list(choices.listed(device), what="--device")
        if "all" in words:
            say(f"Looking for devices: {', '.join(frameworks)} ...")
        choice = choose_devices(frameworks, words)
        return DeviceChoice(devices=choice.devices, notes=[*notes, *choice.notes])

    def devices_of_first(
        self,
        info: WorkloadInfo,
        framework: Choice | None,
        device: Choice,
        *,
        paths: dict[str, str],  # noqa: ARG002
        say: Say,  # noqa: ARG002
    ) -> DeviceChoice:
        frameworks = choices.frameworks_for(info, framework)
        return choose_devices(frameworks, split_list(choices.listed(device), what="--device"))

    def spread(self, plans: tuple[Plan, ...]) -> Spread:
        return Spread(plans)

    def spread_present(self, plans: tuple[Plan, ...]) -> Spread:
        absent = next((why for why in absences(plans) if why is not None), None)
        if absent is not None:
            raise UsageError(absent.message, hint=absent.hint or "Use --device cpu.")
        return Spread(plans)

    def run_sweep(
        self,
        sweep: Sweep,
        *,
        previous: Collection[BenchRun],
        keep: Callable[[BenchRun], None],
        listeners: Sequence[Listener] = (),
        marks: Sequence[ParityMark | None] = (),
    ) -> bool:
        return run_sweep(sweep, previous=previous, keep=keep, listeners=listeners, marks=marks)

    def run_jobs(self, sweep: Sweep, **_: Any) -> bool:
        raise AssertionError(f"sweep {sweep.id} is not of a cluster")


HERE = Here()


@contextmanager
def open_place(on: str | None, nodes: str | None, *, say: Say) -> Iterator[Place]:
    """Yield where cells run; `on` is the address of a cluster, `nodes` which of its machines run each cell."""
    if on is None:
        if nodes is not None:
            raise UsageError("--nodes says which nodes of a cluster run each cell.", hint="Add --on ray://HOST:PORT.")
        yield HERE
        return
    if nodes not in (None, *NODE_CHOICES):
        raise UsageError(
            f"--nodes is {', '.join(NODE_CHOICES)}, not {nodes!r}.",
            hint="kinds: one node of each kind of machine; all: every node; any: whichever is free.",
        )
    from metalmark.app.on_cluster import open_cluster

    with open_cluster(on, nodes or KINDS, say=say) as place:
        yield place


def without_cells(sweep: Sweep) -> Sweep:
    """Return what a node needs to know of a sweep: neither its cells nor paths of this machine."""
    return msgspec.structs.replace(sweep, plans=(), targets=(), paths={}, left_out=())


def refuse_other_place(sweep: Sweep, on: str | None) -> None:
    """A sweep goes on where it was begun: its cells are those of these machines."""
    if sweep.targets and on is None:
        raise UsageError(
            f"Sweep {sweep.id} was begun on a cluster, and its cells are for the machines there.",
            hint=f"Add the cluster's address: --resume={sweep.id} --on ray://HOST:PORT",
        )
    if on is not None and not sweep.targets:
        raise UsageError(
            f"Sweep {sweep.id} was begun on this machine, and goes on here.",
            hint=f"Leave --on out: --resume={sweep.id}",
        )
