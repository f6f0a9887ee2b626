"""Train and validate a workload: once, or on several frameworks, devices and seeds one after another."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from metalmark.app import choices, goals, worlds
from metalmark.app.choices import Choice
from metalmark.app.results import Runs
from metalmark.app.settings_file import device_for, settings_for
from metalmark.backends.catalog import find, installed
from metalmark.display import make_display
from metalmark.display.status import LiveStatusFile
from metalmark.errors import NotInstalledError, StoreError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.plan import Budget, Loader, Mode, Plan
from metalmark.model.run import new_id
from metalmark.model.settings_file import SettingsFile
from metalmark.model.training import Ending, Goal, TrainingRun
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.describe import describe
from metalmark.runner.events import Ended, Event, Listener, Started
from metalmark.runner.expand import combine, require
from metalmark.runner.values import expanded, localise_params, parse_device, split_list
from metalmark.runner.world import Meeting
from metalmark.store.address import Address, ServerAddress, local_folder, store_address
from metalmark.store.store import Store
from metalmark.track.launch import Say, say_nothing, say_on_stderr
from metalmark.track.tracking import Tracking
from metalmark.training import lineup
from metalmark.training.folder import (
    JOB,
    LINEUP,
    Changes,
    Member,
    Request,
    discard,
    folder_name,
    last_checkpoint,
    new_folder,
    new_run,
    stored_training,
    write_record,
    write_request,
)
from metalmark.training.launch import take_part
from metalmark.training.launch import train as train_session

EPOCHS = 5
FOREVER_S = 1e9
ALL, ANY = "all", "any"


def train(
    workload: str = "",
    *,
    framework: Choice | None = None,
    device: Choice | None = None,
    epochs: int | None = None,
    target: str | None = None,
    target_accuracy: float | None = None,
    monitor: str | None = None,
    patience: int | None = None,
    limit_samples: int | None = None,
    limit_steps: int | None = None,
    checkpoint_every: str | float | None = None,
    repeat: int = 1,
    seed: int = 0,
    dtype: Choice | None = None,
    compile: Choice | None = None,
    compile_mode: Choice | None = None,
    channels_last: Choice | None = None,
    fused: Choice | None = None,
    attention_kernel: Choice | None = None,
    accumulate: Choice | None = None,
    recompute: Choice | None = None,
    conv_search: Choice | None = None,
    environment: Choice | None = None,
    threads: Choice | None = None,
    nproc: int | str | None = None,
    scaling: str | None = None,
    nnodes: int | None = None,
    rdzv: str | None = None,
    node_rank: int | None = None,
    rdzv_timeout: float | None = None,
    data: Choice | None = None,
    target_column: str = "",
    workers: int | None = None,
    parity: bool = False,
    settings: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    stall: float = 600.0,
    telemetry: str | float | None = 5.0,
    track: str | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    raise_interrupt: bool = True,
    params: dict[str, Choice] | None = None,
    **more_params: Choice,
) -> Runs:
    """Train a workload, validating after each epoch, and return its runs with their curves.

    `mm.train("mnist-mlp", framework="torch", epochs=3, repeat=5)`. Several frameworks or devices, and `repeat`, train
    one after another, each in a fresh process and in a folder of its own; repeats take the seeds `seed`, `seed` + 1
    and so on, so that `mm.compare` can tell a difference from luck. It stops at a `target` ("accuracy=86%",
    "val_loss=0.3") or after `patience` epochs without a better one by `monitor` ("val_loss", "f1:max").
    `checkpoint_every` (minutes, or "500steps") writes checkpoints within an epoch. `parity` checks first whether it
    trains the same network as the CPU does in float32 (see `mm.parity`), and marks the run with the verdict. `settings`
    is a file that `mm.tune` made: it decides the framework, the device, every setting, the number of workers and what
    was changed of the parameters. Without it, placement is left to the framework. `nproc` trains with so many processes
    together, which split each batch, or have one each (`scaling="weak"`); `nnodes`, `rdzv` ("host:port") and
    `node_rank` are for several machines, of which the first keeps the training. `resume` goes on with an interrupted
    training: its folder, or "last".
    """
    say = say_on_stderr if progress else say_nothing
    path, tracking = store_address(store), Tracking(track, say=say)
    choices.parse_seconds(stall, what="--stall")
    choices.parse_count(repeat, what="--repeat", most=choices.MOST_REPEATS)
    choices.parse_count(seed, what="--seed", least=0, most=choices.MOST_SEED)
    limits = {"--limit-samples": limit_samples, "--limit-steps": limit_steps}
    for flag, count in ({"--epochs": epochs, "--patience": patience} | limits).items():
        if count is not None:
            choices.parse_count(count, what=flag)
    wanted, watched = goals.parse_target(target, target_accuracy), goals.parse_monitor(monitor)
    interval = goals.parse_interval(checkpoint_every)
    meeting = worlds.parse_meeting(nnodes, rdzv, node_rank, rdzv_timeout)
    if workers is not None:
        choices.parse_count(workers, what="--workers", least=0, most=choices.LEAST_WORKERS)
    if isinstance(path, ServerAddress):
        with Store(path):  # a server that can't be used is no news after hours of training
            pass
    if resume is not None:
        if nproc is not None or scaling is not None or nnodes is not None:
            raise UsageError(
                "--resume goes on with a training, whose processes stay as they are.", hint="Leave --nproc out."
            )
        if settings is not None:
            raise UsageError(
                "--resume goes on with a training, whose settings stay as they are.", hint="Leave --settings out."
            )
        for flag, given_now in ({"--monitor": monitor} | limits).items():
            if given_now is not None:
                raise UsageError(
                    f"{flag} can't change when a training is resumed: its epochs so far were trained and judged "
                    "without it.",
                    hint="With --resume go --epochs, --target, --patience and --checkpoint-every.",
                )
        folder = find_folder(out if resume == "last" else resume, path)
        changes = Changes(epochs=epochs, target=wanted, patience=patience, checkpoint_every=interval)
        members = _stored_members(folder, changes, say)
        if any(member.request.plan.world and member.request.plan.world.nnodes > 1 for member in members):
            raise UsageError(
                "A training on several machines can't be resumed: its checkpoints are on the first machine alone.",
                hint="Begin again, or train on one machine: --nproc 2.",
            )
        if parity and not all(member.request.parity for member in members):
            raise UsageError(
                "This training was begun without --parity, so its epochs so far are unchecked.",
                hint="Resume it without --parity, or begin a new training with it.",
            )
    else:
        names = choices.names_in(workload)
        if len(names) != 1:
            raise UsageError(f"One workload at a time, not {len(names)}.", hint="metalmark train mnist-mlp")
        knobs = {
            "dtype": dtype, "compile": compile, "compile_mode": compile_mode, "channels_last": channels_last,
            "fused": fused, "attention_kernel": attention_kernel, "accumulate": accumulate, "recompute": recompute,
            "conv_search": conv_search, "environment": environment, "threads": threads,
        }  # fmt: skip
        info, source = describe(names[0])
        given, param_paths = localise_params([info], choices.texts({**(params or {}), **more_params}))
        if settings is None:
            (chosen, *others) = choices.settings_product(**knobs)
            if others:
                raise UsageError("train takes one value for each setting.", hint="`metalmark bench` takes lists.")
        else:
            file = settings_for(
                settings, [info], mode=Mode.TRAINING, framework=framework, options={**knobs}, params=given
            )
            framework, device = file.framework, device_for(settings, file, device)
            chosen, workers = file.settings, _workers_for(settings, file, workers, say)
            given = {**given, **choices.texts({**file.params})}
            if chosen.graph:
                say("• train captures no graph, since the last batch of an epoch may be smaller: --graph is not used.")
                chosen = replace(chosen, graph=False)
        goal = Goal(
            epochs=epochs or EPOCHS,
            monitor=watched,
            patience=patience,
            limit_samples=limit_samples,
            limit_steps=limit_steps,
            workers=workers,
        ).aimed_at(wanted)
        hz = choices.parse_telemetry(telemetry)
        frameworks = split_list(choices.listed(framework), what="--framework") if framework is not None else None
        devices = split_list(choices.listed(ANY if device is None else device), what="--device")
        (values, *others_) = combine([info], given, choices.option_flags(train), verb="train")[info.name]
        if others_:
            raise UsageError("train takes one value for each parameter.", hint="`metalmark bench` takes lists.")
        (world, *other_worlds) = worlds.parse_worlds(nproc, nnodes, scaling)
        if other_worlds:
            raise UsageError("train takes one value for --nproc and --scaling.", hint="`metalmark bench` takes lists.")
        worlds.refuse_options([world], modes=[Mode.TRAINING], settings=[chosen], parity=parity, meeting=meeting)
        worlds.refuse_batches([world], {info.name: [values]})
        sources, data_paths = choices.parse_data(data)
        if len(sources) > 1:
            raise UsageError("train takes one value for --data.", hint="`metalmark bench` takes lists.")
        several = repeat > 1 or len(devices) > 1 or ALL in devices or (frameworks or [])[1:] or frameworks == [ALL]
        first = None if frameworks is None or ALL in frameworks else frameworks[0]
        request = Request(
            id=new_id(),
            plan=Plan(
                workload=info.name,
                params=values,
                mode=Mode.TRAINING,
                framework=_framework(first, info),
                # Of several, each is chosen below; bad words are answered before any device is asked for.
                device=parse_device(ANY if several else devices[0]),
                settings=chosen,
                budget=Budget(timeout_s=FOREVER_S, stall_s=stall),
                seed=seed,
                data=sources[0] if sources else info.data,
                target_column=target_column,
                workload_digest=info.digest,
                world=world,
            ),
            goal=goal,
            paths={**param_paths, **data_paths, **({info.name: source} if source else {})},
            hz=hz,
            checkpoint_every=interval,
            parity=new_id() if parity else "",
        )
        place = expanded(os.fspath(out)) if out is not None else None
        if not several:
            alone = {request.plan.framework: [request.plan.device]}
            worlds.refuse_devices([world], alone, named=True)
        elif meeting is not None:
            raise UsageError(
                "With --nnodes, each machine must run the same one training.",
                hint="Name one framework and one device, and leave --repeat out.",
            )
        if meeting is not None:
            worlds.await_meeting(meeting)
            if meeting.node_rank:
                return _take_part(request, meeting, path, progress=progress)
        if several:
            cells = lineup.choose_cells(request, info, frameworks, devices, say)
            cells = worlds.possible_cells(world, cells, named=ALL not in (*devices, *(frameworks or ())), say=say)
            requests = lineup.plan_lineup(request, cells, repeats=repeat)
            folder = new_folder(place or trainings_folder(path) / folder_name(info.name, requests[0].sweep))
            members = lineup.new_lineup(requests, folder, say)
        else:
            folder = new_folder(place or trainings_folder(path) / folder_name(info.name, request.id))
            members = [Member(request, new_run(request), folder)]
    members, passed = _checked(members, path, progress=progress, say=say)
    if passed:
        with tracking:
            runs, stopped = _run(members, path, tracking, progress=progress, say=say, meeting=meeting)
    else:
        runs, stopped = [member.run for member in members], True
    if stopped and raise_interrupt:
        interrupt = KeyboardInterrupt()
        interrupt.add_note(f"What ended is kept; go on with mm.train(resume={str(folder)!r}).")
        raise interrupt
    if not_possible(runs):
        _forget(folder, members, path)
    return Runs(runs, store=path, complete=not stopped, folder=folder)


def _workers_for(settings: str | os.PathLike[str], file: SettingsFile, workers: int | None, say: Say) -> int | None:
    """Return how many threads make batches ahead. Of a loader, that is all that a training has a use for."""
    if file.loader is None:
        return workers
    if workers is not None:
        raise UsageError(
            f"--workers is given, and {os.fspath(settings)} sets it too.", hint="Leave out --workers, or --settings."
        )
    usual = Loader(workers=file.loader.workers)
    unused = [name for name in usual.__struct_fields__ if getattr(usual, name) != getattr(file.loader, name)]
    if unused:
        say(f"• train makes batches by threads of its own, which have no {', '.join(unused)}: not used.")
    return file.loader.workers


def not_possible(runs: Iterable[AnyRun]) -> bool:
    """Whether none of these trainings can run here: bad input, of which nothing is kept."""
    return lineup.impossible([run for run in runs if isinstance(run, TrainingRun)])


def trainings_folder(store: Address) -> Path:
    """Beside the store's own file, or where this machine keeps what belongs to a server's."""
    return local_folder(store) / "trainings"


def _run(
    members: list[Member],
    path: Address,
    tracking: Tracking,
    *,
    progress: bool,
    say: Say,
    meeting: Meeting | None = None,
) -> tuple[list[TrainingRun], bool]:
    def session(member: Member) -> TrainingRun:
        """Train, shown and stored, until it ends or is stopped."""
        request, run, folder = member
        with (
            make_display(request, quiet=not progress) as display,
            LiveStatusFile(path, request) as status,
        ):
            listeners: list[Listener] = [display, _keeper(path, folder, say), status, tracking.listener(folder)]
            return train_session(request, run, folder, listeners=listeners, meeting=meeting)

    if len(members) == 1 and not members[0].run.sweep:
        run = session(members[0])
        return [run], run.ending is Ending.INTERRUPTED
    return lineup.run_members(members, session, lambda run, folder: _keeper(path, folder, say)(Ended(run=run)), say)


def _take_part(request: Request, meeting: Meeting, path: Address, *, progress: bool) -> Runs:
    """Run the processes of a machine that is not the first. Nothing is kept here."""
    with make_display(request, quiet=not progress) as display:
        failure = take_part(request, meeting, listeners=[display])
    worlds.raise_failure(failure)
    return Runs([], store=path, complete=True)


def _checked(members: list[Member], path: Address, *, progress: bool, say: Say) -> tuple[list[Member], bool]:
    """Return the members with the mark of their parity check, where one was asked for; False when Ctrl-C ended it."""
    open_ones = [member for member in members if member.request.parity and member.run.parity is None]
    if not open_ones:
        return members, True
    from metalmark.app.gate import pass_gate  # it imports NumPy, which a plain training does without

    request = open_ones[0].request
    gate = pass_gate(
        [member.request.plan for member in open_ones],
        checks=request.parity, paths=request.paths, store=path, progress=progress, say=say,
    )  # fmt: skip
    marks = {member.request.id: mark for member, mark in zip(open_ones, gate.marks, strict=True)}
    checked = []
    for member in members:
        run = member.run
        if marks.get(run.id) is not None:
            run = replace(run, parity=marks[run.id])
        if not gate.complete:
            run = run if run.failure is not None else replace(run, ending=Ending.INTERRUPTED)
            # What was asked for must be in the folder, or there is nothing to go on with.
            write_request(member.folder, member.request)
            write_record(member.folder, run)
            _keeper(path, member.folder, say)(Ended(run=run))
        checked.append(Member(member.request, run, member.folder))
    return checked, gate.complete


def _keeper(path: Address, folder: Path, say: Say) -> Listener:
    """Keeps the store up to date. A store that fails costs the list a line, never the training."""

    def hear(event: Event) -> None:
        run = event.run if isinstance(event, Started | Ended) else None
        if not isinstance(run, TrainingRun):
            return
        try:
            with Store(path, spools=True) as store:
                store.put_training(run, folder)
        except StoreError as error:
            say(f"metalmark: this training is not in `metalmark runs list`: {error.message}")

    return hear


def _stored_members(folder: Path, changes: Changes, say: Say) -> list[Member]:
    if lineup.is_lineup(folder):
        return lineup.read_members(folder, changes)
    member = stored_training(folder, changes)
    checkpoint = last_checkpoint(folder)
    partial = checkpoint.partial if checkpoint is not None else None
    begun = f", and {len(partial.losses):,} steps of the next" if partial is not None else ""
    total = member.request.goal.epochs
    say(f"Training {member.request.id}: {len(member.run.epochs)} of {total} epochs are done{begun}.")
    return [member]


def _forget(folder: Path, members: list[Member], path: Address) -> None:
    """Bad input is no training: nothing of it is left to go on with."""
    if lineup.is_lineup(folder):
        lineup.discard_lineup(folder, members)
    else:
        discard(folder)
    checks = {member.run.parity.run for member in members if member.run.parity is not None}
    with suppress(StoreError), Store(path) as store:
        store.delete([*checks, *(member.request.id for member in members)])


def _framework(word: str | None, info: WorkloadInfo) -> str:
    if word is not None:
        found = find(word)
        require([info], [found.name])
        return found.name
    for framework in installed():
        if framework.name in info.frameworks:
            return framework.name
    raise NotInstalledError(
        f"No framework that {info.name} has is installed.",
        hint=f'It has: {", ".join(info.frameworks)}. For example: pip install "metalmark[{info.frameworks[0]}]"',
    )


def find_folder(given: str | os.PathLike[str] | None, store: Address) -> Path:
    """A folder as given, the folder of a training by its id or name, or that of the last one."""
    if not given:
        found = [path for name in (JOB, LINEUP) for path in trainings_folder(store).glob(f"*/{name}")]
        if not found:
            raise UsageError(
                "There is no training to go on with.", hint="Give its folder: metalmark train --resume=DIR"
            )
        return max(found, key=lambda path: path.stat().st_mtime).parent
    folder = Path(os.path.realpath(expanded(os.fspath(given))))
    if folder.is_dir():
        return folder
    with Store(store, readonly=True) as opened:
        rows = [row for row in opened.rows_called(os.fspath(given)) if row.path is not None]
    paths = {row.path.parent if row.sweep and len(rows) > 1 else row.path for row in rows if row.path is not None}
    if len(paths) > 1:
        raise UsageError(f"Several trainings are named {given!r}.", hint="Give the folder of one: --resume=DIR")
    return paths.pop() if paths else folder
