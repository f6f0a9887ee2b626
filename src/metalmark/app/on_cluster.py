"""ClusterPlace: cells that run on the nodes of a cluster. This command keeps every run the moment it comes back."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from metalmark.app import choices
from metalmark.app.choices import Choice
from metalmark.app.place import ALL, ANY, Spread, without_cells
from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.cluster.abilities import Abilities, installed_on
from metalmark.cluster.address import parse_address, require_ray
from metalmark.cluster.engine import Cluster, ClusterNode
from metalmark.cluster.messages import (
    BenchJob,
    DoctorJob,
    DoctorReply,
    EventReply,
    FileJob,
    LookJob,
    NodeJob,
    NodeReply,
    RunReply,
    SaidReply,
)
from metalmark.cluster.scheduler import CellRepeat, CellTask, Need, Scheduler
from metalmark.errors import ClusterError, UsageError, counted, did_you_mean
from metalmark.model.codec import AnyRun, decode
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityMark
from metalmark.model.plan import CellTarget, Device, Plan, Sweep
from metalmark.model.run import Failed, FailureKind, Software, Telemetry, new_id, now_utc
from metalmark.model.workload import WorkloadInfo
from metalmark.results.machine_titles import machine_title, titles_apart
from metalmark.runner.ctrl_c import noted_ctrl_c
from metalmark.runner.events import Ended, Listener, tell_all
from metalmark.runner.expand import require
from metalmark.runner.probing import EVERYWHERE, DeviceChoice
from metalmark.runner.sweeping import was_interrupted
from metalmark.runner.values import parse_device, split_list
from metalmark.track.launch import Say

RESUMABLE = {"bench", "tune"}
MOST_FILE_BYTES = 256 << 20
"""Of all files of the user's own that travel to a node."""


@contextmanager
def open_cluster(on: str, nodes: str, *, say: Say) -> "Iterator[ClusterPlace]":
    address = parse_address(on)
    require_ray()
    say(f"Connecting to {address} ...")
    with Cluster(address, say=say) as cluster:
        yield ClusterPlace(cluster, nodes, say=say)


class ClusterPlace:
    """The nodes of a cluster. `nodes` says which of them run each cell: one of each kind, all of them, or any one."""

    def __init__(self, cluster: Cluster, nodes: str, *, say: Say) -> None:
        self._cluster, self._nodes, self._say = cluster, nodes, say
        self._looked = False
        self._asked: set[str] = set()
        self._able = Abilities(())

    # What there is

    def devices(
        self, infos: Sequence[WorkloadInfo], framework: Choice, device: Choice, *, paths: dict[str, str], say: Say
    ) -> DeviceChoice:
        names = split_list(choices.listed(framework), what="--framework")
        every = "all" in names
        if every:
            offered = [each.name for each in visible()]
            names = [name for name in offered if any(name in info.frameworks for info in infos)]
        else:
            _refuse_unknown(names)
            require(infos, names)
        words = split_list(choices.listed(device), what="--device")
        named = [parse_device(word) for word in words if word != "all"]
        say(f"Asking every node for {', '.join(names)} ...")
        nodes = self._look(names, named if "all" not in words else None, paths)
        choice = DeviceChoice(devices={}, notes=list(self._cluster.refused.values()))
        for name in names:
            having = [node for node in nodes if name in installed_on(node)]
            if having:
                found = _present(name, having) if "all" in words else []
                choice.devices[name] = tuple(dict.fromkeys([*found, *named]))
            elif not every:
                raise ClusterError(
                    f"No node of the cluster has {FRAMEWORKS[name].title}.",
                    hint=f'Install it on one: pip install "metalmark[{name}]"',
                )
            else:
                choice.notes.append(f"{name} not run: no node has it.")
        return choice

    def devices_of_first(
        self, info: WorkloadInfo, framework: Choice | None, device: Choice, *, paths: dict[str, str], say: Say
    ) -> DeviceChoice:
        if framework is not None:
            return self.devices([info], framework, device, paths=paths, say=say)
        for name in info.frameworks:
            with suppress(ClusterError):
                return self.devices([info], name, device, paths=paths, say=say)
        raise ClusterError(
            f"No node of the cluster has a framework that {info.name} is written for.",
            hint=f'Install one on a node: pip install "metalmark[{info.frameworks[0]}]"',
        )

    def spread_present(self, plans: tuple[Plan, ...]) -> Spread:
        return self.spread(plans)

    def spread(self, plans: tuple[Plan, ...]) -> Spread:
        nodes = self._cluster.nodes
        titles = titles_apart(node.machine for node in nodes)
        cells: list[tuple[Plan, CellTarget]] = []
        left_out: dict[str, None] = {}
        able = Abilities(nodes)
        for plan in plans:
            can = [node for node in nodes if able.why_not(plan, node) is None]
            if not can:
                raise ClusterError(
                    f"No node of the cluster can run {plan.label}. {able.reasons(plan)}",
                    hint="`metalmark doctor --on` says what each node has.",
                )
            if self._nodes == ANY:
                targets = [CellTarget()]
            elif self._nodes == ALL:
                targets = [CellTarget(node=node.id, title=node.title) for node in can]
            else:
                kinds = dict.fromkeys(machine_title(node.machine) for node in can)
                targets = [CellTarget(machine=kind, title=titles[kind]) for kind in kinds]
                for kind in titles:
                    if kind not in kinds:
                        what = f"{plan.framework} {plan.device}"
                        left_out[f"{what} not run on {titles[kind]}: no node of that kind has it."] = None
            cells += [(plan, target) for target in targets]
        return Spread(tuple(plan for plan, _ in cells), tuple(target for _, target in cells), tuple(left_out))

    def _look(
        self, frameworks: Sequence[str], devices: Sequence[Device] | None, paths: dict[str, str]
    ) -> list[ClusterNode]:
        """Ask the nodes what they have; of devices that are everywhere nobody needs to be asked."""
        probed = devices is None or any(device.kind not in EVERYWHERE for device in devices)
        names = tuple(frameworks)
        self._looked, self._asked = True, set(names)
        return self._cluster.look(LookJob(frameworks=names, probed=names if probed else ()), files_of(paths))

    def prepare(self, sweep: Sweep) -> None:
        """Ask the nodes for what a sweep needs, where that is not known yet."""
        names = dict.fromkeys(plan.framework for plan in sweep.plans)
        if not self._looked or not set(names) <= self._asked:
            self._look(list(names), [plan.device for plan in sweep.plans], sweep.paths)

    # Running

    def run_sweep(
        self,
        sweep: Sweep,
        *,
        previous: Collection[BenchRun],
        keep: Callable[[BenchRun], None],
        listeners: Sequence[Listener] = (),
        marks: Sequence[ParityMark | None] = (),  # noqa: ARG002  the gate and a cluster do not go together
    ) -> bool:
        settled = [run for run in previous if not was_interrupted(run)]
        bare, tell = without_cells(sweep), tell_all(listeners)

        def job(unit: CellRepeat) -> NodeJob:
            return BenchJob(sweep=bare, plan=sweep.plans[unit.cell], cell=unit.cell, repeat=unit.repeat)

        def take(run: AnyRun, node: ClusterNode) -> None:
            assert isinstance(run, BenchRun)
            node.failed = isinstance(run.outcome, Failed)
            keep(run)
            tell(Ended(run=run, node=node.title))

        scheduler = self._scheduler(sweep, done=_done_cells(sweep, settled), begun=settled)
        complete = self._run(scheduler, job=job, take=take, listeners=listeners)
        for cell, reason in scheduler.given_up.items():
            keep(_lost_run(sweep, cell, reason, self._cluster.nodes))
        self._refuse_rest(scheduler, sweep, complete, verb="bench")
        return complete

    def run_jobs(
        self,
        sweep: Sweep,
        *,
        job: Callable[[int], NodeJob],
        keep: Callable[[Any, str], None],
        listeners: Sequence[Listener],
        verb: str,
        done: Collection[int] = (),
    ) -> bool:
        scheduler = self._scheduler(sweep, done=done)
        complete = self._run(
            scheduler,
            job=lambda unit: job(unit.cell),
            take=lambda run, node: keep(run, node.title),
            listeners=listeners,
        )
        for cell, reason in scheduler.given_up.items():
            raise ClusterError(f"{sweep.plans[cell].label}: {reason}", hint="It was tried three times.")
        self._refuse_rest(scheduler, sweep, complete, verb=verb)
        return complete

    def _scheduler(self, sweep: Sweep, *, done: Collection[int], begun: Sequence[BenchRun] = ()) -> Scheduler:
        """Return what is to be done. `begun`: runs of earlier commands, with which cells go on."""
        self.prepare(sweep)
        self._able = Abilities(self._cluster.nodes)
        runs: dict[int, list[BenchRun]] = {}
        for run in begun:
            runs.setdefault(run.cell, []).append(run)
        tasks = [
            _task(cell, self._able.number(plan), target, runs.get(cell, ()), self._able.titles)
            for cell, (plan, target) in enumerate(zip(sweep.plans, sweep.targets, strict=True))
            if cell not in done
        ]
        return Scheduler(tasks, repeats=sweep.repeats)

    def _run(
        self,
        scheduler: Scheduler,
        *,
        job: Callable[[CellRepeat], NodeJob],
        take: Callable[[AnyRun, ClusterNode], None],
        listeners: Sequence[Listener],
    ) -> bool:
        able, tell = self._able, tell_all(listeners)

        def admit(node: ClusterNode) -> None:
            scheduler.add_node(node.id, machine=machine_title(node.machine), abilities=able.of(node))

        def hear(node: ClusterNode, _: CellRepeat, reply: NodeReply) -> None:
            if isinstance(reply, RunReply):
                take(decode(reply.run, source=f"a run of {node.title}"), node)
            elif isinstance(reply, SaidReply):
                self._say(f"{node.title}: {reply.text}")
            elif isinstance(reply, EventReply):
                for event in (reply.started, reply.paused, reply.progress, reply.tuning):
                    if event is not None:
                        tell(msgspec.structs.replace(event, node=node.title))

        with noted_ctrl_c() as was_pressed:
            return self._cluster.run(
                scheduler, job=lambda _, unit: job(unit), take=hear, admit=admit, was_pressed=was_pressed
            )

    def _refuse_rest(self, scheduler: Scheduler, sweep: Sweep, complete: bool, *, verb: str) -> None:
        if complete and scheduler.open:
            hint = "What ended is stored. Begin again when the nodes are back."
            if verb in RESUMABLE:
                hint = f"What ended is stored. When the nodes are back: metalmark {verb} --resume={sweep.id} --on ..."
            rest = counted(len(scheduler.open), "cell")
            raise ClusterError(f"{rest} could not be run: no node is left that could.", hint=hint)

    def diagnose(self, only: Sequence[str]) -> "list[tuple[ClusterNode, DoctorReply]]":
        """Let the doctor examine every node, all at once."""
        nodes = self._look((), (), {})
        scheduler = Scheduler(CellTask(number, Need(node=node.id)) for number, node in enumerate(nodes))
        found: dict[str, tuple[ClusterNode, DoctorReply]] = {}

        def take(node: ClusterNode, _: CellRepeat, reply: NodeReply) -> None:
            if isinstance(reply, DoctorReply):
                found[node.id] = (node, reply)

        with noted_ctrl_c() as was_pressed:
            complete = self._cluster.run(
                scheduler, job=lambda *_: DoctorJob(only=tuple(only)), take=take, was_pressed=was_pressed,
                admit=lambda node: scheduler.add_node(node.id, machine="", abilities=frozenset({0})),
            )  # fmt: skip
        if not complete:
            raise KeyboardInterrupt
        if scheduler.given_up:
            raise ClusterError(next(iter(scheduler.given_up.values())), hint="It was tried three times.")
        return [found[node.id] for node in nodes if node.id in found]

    @property
    def refused(self) -> list[str]:
        return list(self._cluster.refused.values())


def files_of(paths: dict[str, str]) -> tuple[FileJob, ...]:
    """Return the files of the user's own, as they travel to a node."""
    files, total = [], 0
    for label, text in paths.items():
        path = Path(text)
        if path.is_dir():
            raise UsageError(
                f"{path.name} is a folder, and only files travel to the nodes of a cluster.",
                hint="Give one file (CSV, NPZ, Parquet or text), or measure on that machine itself.",
            )
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path.name} can't be read: {error.strerror}.", hint="Check the file.") from error
        total += len(data)
        if total > MOST_FILE_BYTES:
            raise UsageError(
                f"The files that would travel to each node are larger than {MOST_FILE_BYTES >> 20} MiB.",
                hint="Take a smaller file, or a data set by name, which each node loads by itself.",
            )
        files.append(FileJob(label=label, name=path.name, digest=hashlib.sha256(data).hexdigest(), data=data))
    return tuple(files)


def _task(cell: int, ability: int, target: CellTarget, begun: Sequence[BenchRun], titles: set[str]) -> CellTask:
    """A cell that was begun goes on with a machine of the same kind; where none is left, it begins anew."""
    need = Need(ability, machine=target.machine, node=target.node)
    machine = machine_title(begun[-1].machine) if begun else ""
    if machine not in titles:
        return CellTask(cell, need)
    first = max(run.repeat for run in begun) + 1
    return CellTask(cell, need._replace(machine=machine) if not need.node else need, first)


def _done_cells(sweep: Sweep, runs: Sequence[BenchRun]) -> set[int]:
    """Return the cells of which no more is to be run: all repeats are there, or one failed."""
    repeats: dict[int, set[int]] = {}
    for run in runs:
        repeats.setdefault(run.cell, set()).add(run.repeat)
    failed = {run.cell for run in runs if isinstance(run.outcome, Failed)}
    return failed | {cell for cell, found in repeats.items() if len(found) >= sweep.repeats}


def _lost_run(sweep: Sweep, cell: int, reason: str, nodes: Sequence[ClusterNode]) -> BenchRun:
    """Return the run of a cell that took three nodes with it, or that three could not begin."""
    plan, target = sweep.plans[cell], sweep.targets[cell]
    fits = [node.machine for node in nodes if machine_title(node.machine) == target.machine or node.id == target.node]
    machines = fits or [node.machine for node in nodes]
    if not machines:
        raise ClusterError(f"{plan.label}: {reason}", hint="No node is left.")
    outcome = Failed(kind=FailureKind.CRASHED, message=f"It was tried three times. {reason}")
    return BenchRun(
        id=new_id(), sweep=sweep.id, cell=cell, repeat=0, started_at=now_utc(), plan=plan, machine=machines[0],
        software=Software(metalmark="", python=""), outcome=outcome, telemetry=Telemetry(hz=None),
    )  # fmt: skip


def _present(framework: str, nodes: Sequence[ClusterNode]) -> list[Device]:
    """Return the devices that any of these nodes has."""
    probes = [node.seen.probes.get(framework) for node in nodes if node.seen is not None]
    reports = [report for probe in probes for report in getattr(probe, "devices", ())]
    return [parse_device(word) for word in dict.fromkeys(report.word for report in reports if report.present)]


def _refuse_unknown(names: Sequence[str]) -> None:
    for name in names:
        if name not in FRAMEWORKS:
            raise UsageError(
                f"There is no framework {name!r}{did_you_mean(name, FRAMEWORKS)}",
                hint=f"Frameworks: {', '.join(f.name for f in visible())}, or all.",
            )
