"""Lineup: trainings of one workload for every framework, device and repeat, one after another.

Each member has a folder of its own below the lineup's, so that all of them, or one of them, can be resumed.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from metalmark.backends.catalog import find, installed
from metalmark.errors import FormatError, NotInstalledError
from metalmark.machine.durable import write_struct
from metalmark.model.plan import Device
from metalmark.model.run import Failed, FailureKind, Identifier, new_id, now_utc
from metalmark.model.training import Ending, TrainingRun
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.expand import require
from metalmark.runner.probing import absences, choose_devices
from metalmark.training import folder as training_folder
from metalmark.training.derived import ending
from metalmark.training.folder import LINEUP, Changes, Member, Request

SCHEMA = 1
EVERY = "all"
SAME_FOR_ALL_REPEATS = {FailureKind.UNSUPPORTED, FailureKind.OUT_OF_MEMORY}
"""Failures that another seed does not change."""

Say = Callable[[str], None]
TrainMember = Callable[[Member], TrainingRun]
"""Trains a member, shown and stored, until it ends or is stopped."""
KeepRun = Callable[[TrainingRun, Path], None]
"""Stores a run that has no session, and its folder."""


class Lineup(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    id: Identifier
    created_at: str
    members: tuple[str, ...]
    """Names of the folders below this one, in the order in which they are trained. Each job.json has its cell and
    repeat."""


def choose_cells(
    request: Request, info: WorkloadInfo, frameworks: Sequence[str] | None, devices: Sequence[str], say: Say
) -> list[tuple[str, Device]]:
    """Return the frameworks and devices to train on, from words as a user types them; None: the request's framework."""
    if frameworks is None:
        names = [request.plan.framework]
    elif EVERY in frameworks:
        names = [framework.name for framework in installed() if framework.name in info.frameworks]
    else:
        names = [find(word).name for word in frameworks]
        require([info], names)
    if EVERY in devices:
        say(f"Looking for devices: {', '.join(names)} ...")
    choice = choose_devices(names, devices)
    for note in choice.notes:
        say(f"• {note}")
    cells = [(name, device) for name, found in choice.devices.items() for device in found]
    if not cells:
        raise NotInstalledError("No framework here has a device for it.", hint="metalmark list devices")
    return cells


def plan_lineup(request: Request, cells: Sequence[tuple[str, Device]], *, repeats: int = 1) -> list[Request]:
    """Return a request for every cell and repeat: every cell once, then every cell again with the next seed."""
    sweep = new_id()
    return [
        msgspec.structs.replace(
            request,
            id=new_id(),
            plan=msgspec.structs.replace(
                request.plan, framework=framework, device=device, seed=request.plan.seed + repeat
            ),
            sweep=sweep,
            cell=cell,
            repeat=repeat,
        )
        for repeat in range(repeats)
        for cell, (framework, device) in enumerate(cells)
    ]


def new_lineup(requests: Sequence[Request], folder: Path, say: Say) -> list[Member]:
    """Write the folders of all members, after asking the frameworks which of them can be trained here.

    A cell that can't be has one member, whose run says why: it is not repeated.
    """
    missing = absences([request.plan for request in requests])
    members = []
    for request, why in zip(requests, missing, strict=True):
        if why and request.repeat:
            continue
        plan, run = request.plan, training_folder.new_run(request)
        repeat = f"-repeat{request.repeat + 1}" if request.repeat else ""
        member_folder = training_folder.new_folder(folder / f"{plan.framework}-{plan.device}{repeat}".replace(":", "-"))
        if why:
            run = _failed(run, why)
            say(f"{plan.framework} on {plan.device} can't be trained: {why.message}")
        training_folder.write_request(member_folder, request)
        training_folder.write_record(member_folder, run)
        members.append(Member(request, run, member_folder))
    # It is written last: a folder without it is not a lineup yet.
    lineup = Lineup(id=requests[0].sweep, created_at=now_utc(), members=tuple(one.folder.name for one in members))
    write_struct(folder / LINEUP, lineup)
    return members


def read_members(folder: Path, changes: Changes | None = None) -> list[Member]:
    """Return the members of a stored lineup as they can go on. Folders of older versions do not say their cell."""
    lineup = read_lineup(folder)
    members = []
    for cell, name in enumerate(lineup.members):
        request, run, member_folder = training_folder.stored_training(folder / name, changes)
        if not request.sweep:
            request = msgspec.structs.replace(request, sweep=lineup.id, cell=cell)
            run = msgspec.structs.replace(run, sweep=lineup.id, cell=cell)
        members.append(Member(request, run, member_folder))
    return members


def run_members(
    members: Sequence[Member], session: TrainMember, keep: KeepRun, say: Say
) -> tuple[list[TrainingRun], bool]:
    """Train the members that have not ended, one after another. Return their runs, and whether Ctrl-C stopped it."""
    for _, run, folder in members:
        if not run.sessions:
            keep(run, folder)
    with suppress(OSError):  # a lineup that can only be read is shown all the same
        # It is the newest now, which is what a plain --resume looks for.
        (members[0].folder.parent / LINEUP).touch()
    runs = [member.run for member in members]
    if impossible(runs):
        return runs, False
    failures: dict[int, Failed] = {}
    for number, member in enumerate(members):
        request, run, folder = member
        again = f", repeat {request.repeat + 1}" if request.repeat else ""
        name = f"[{number + 1} of {len(members)}] {request.plan.framework} on {request.plan.device}{again}"
        known, done = failures.get(request.cell), ending(run.epochs, request.goal)
        if run.failure is not None and run.failure.kind is not FailureKind.INTERRUPTED:
            say(f"{name}: {run.failure.kind.value}.")
        elif done is not None and run.ending is done:
            say(f"{name}: {done.value}.")
        elif known is not None:
            say(f"{name}: {known.kind.value}, as in the repeat before.")
            run = _failed(run, known)
            training_folder.write_record(folder, run)
            keep(run, folder)
        else:
            say(f"{name}:")
            try:
                run = session(member)
            except KeyboardInterrupt:  # between two sessions, or while one begins
                run = msgspec.structs.replace(run, ending=Ending.INTERRUPTED)
        runs[number] = run
        if run.ending is Ending.INTERRUPTED:
            return runs, True
        if run.failure is not None and run.failure.kind in SAME_FOR_ALL_REPEATS:
            failures[request.cell] = run.failure
    return runs, False


def impossible(runs: Sequence[TrainingRun]) -> bool:
    """Return whether none of them can be trained on this machine."""
    return all(
        run.failure is not None and run.failure.kind is FailureKind.UNSUPPORTED and not run.epochs for run in runs
    )


def discard_lineup(folder: Path, members: Sequence[Member]) -> None:
    """Take away a lineup of which nothing could be trained."""
    for member in members:
        training_folder.discard(member.folder)
    (folder / LINEUP).unlink(missing_ok=True)
    training_folder.remove_if_empty(folder)


def is_lineup(folder: Path) -> bool:
    return (folder / LINEUP).exists()


def read_lineup(folder: Path) -> Lineup:
    path, hint = folder / LINEUP, "Each training in it can still be resumed by its own folder."
    lineup = training_folder.read_struct(path, Lineup, newest=SCHEMA, what="trainings side by side", hint=hint)
    if any(name in ("", ".", "..") or "/" in name or "\\" in name for name in lineup.members):
        # The file may come from anywhere; what it names is read and written.
        raise FormatError(f"{path} names a folder outside of its own.", hint="Resume each training by its own folder.")
    return lineup


def _failed(run: TrainingRun, why: Failed) -> TrainingRun:
    return msgspec.structs.replace(run, ending=Ending.FAILED, failure=why)
