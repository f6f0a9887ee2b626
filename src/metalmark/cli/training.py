"""What `train` does once its words are parsed: describe, choose a folder, train, print."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from metalmark.backends.catalog import find, installed
from metalmark.cli.lists import parse_telemetry, settings_product
from metalmark.cli.tracking import Tracking
from metalmark.cli.train import option_flags
from metalmark.cli.training_live import TrainStatus
from metalmark.cli.training_progress import make_display
from metalmark.data.catalog import ACCEPTED, REAL, SYNTHETIC
from metalmark.errors import NotInstalledError, StoreError, UsageError
from metalmark.model.plan import Budget, Mode, Plan, Settings
from metalmark.model.run import FailureKind
from metalmark.model.sweep import new_id, now_utc
from metalmark.model.training import Ending, Goal, TrainingRun
from metalmark.model.workload import WorkloadInfo
from metalmark.report.terminal import print_table, wide_console
from metalmark.report.training_table import training_table
from metalmark.runner.describe import describe
from metalmark.runner.expand import combine, require
from metalmark.runner.local import expanded, localise, localise_params
from metalmark.runner.values import parse_device
from metalmark.store.place import store_path
from metalmark.store.trainings import TrainingStore, indexing
from metalmark.training.derived import flags
from metalmark.training.job import JOB, LAST, RECORD, Request, read_record, read_request
from metalmark.training.launch import Listener, curve, train
from metalmark.training.lineup import LINEUP, lineup_of

EPOCHS = 5
FOREVER_S = 1e9
Job = tuple[Request, TrainingRun, Path]


class Train:
    def __init__(self, *, quiet: bool, as_json: bool, tracking: Tracking | None = None) -> None:
        self._quiet, self._as_json, self._tracking = quiet, as_json, tracking

    def new(self, name: str, params: dict[str, str], out: str | None, options: dict[str, Any]) -> Job:
        request, _ = self.request(name, params, options)
        folder = new_folder(out, request.plan.workload, request.id)
        return request, begun(request), folder

    def request(self, name: str, params: dict[str, str], options: dict[str, Any]) -> tuple[Request, WorkloadInfo]:
        settings = _settings(options)
        hz = parse_telemetry(options["telemetry"])
        goal = Goal(
            epochs=options["epochs"] or EPOCHS,
            target_accuracy=_share(options["target_accuracy"]),
            patience=options["patience"],
            workers=options["workers"],
        )
        device = parse_device(options["device"])
        info, source = describe(name)
        params, paths = localise_params([info], params)
        (values, *others) = combine([info], params, option_flags())[info.name]
        if others:
            raise UsageError("train takes one value for each parameter.", hint="`metalmark bench` takes lists.")
        data, data_paths = localise(options["data"], fixed=[REAL, SYNTHETIC, *ACCEPTED], what="--data")
        plan = Plan(
            workload=info.name,
            params=values,
            mode=Mode.TRAINING,
            framework=_framework(options["framework"], info),
            device=device,
            settings=settings,
            budget=Budget(timeout_s=FOREVER_S, stall_s=options["stall"]),
            seed=options["seed"],
            data=data,
            workload_digest=info.digest,
        )
        request = Request(
            id=new_id(),
            plan=plan,
            goal=goal,
            paths={**paths, **data_paths, **({info.name: source} if source else {})},
            hz=hz,
        )
        return request, info

    def stored(self, folder: Path, epochs: int | None, *, silently: bool = False) -> Job:
        """The training of that folder as it can go on: what its last checkpoint holds."""
        request, record = read_request(folder), read_record(folder)
        if epochs is not None:
            request = msgspec.structs.replace(request, goal=msgspec.structs.replace(request.goal, epochs=epochs))
        done = curve(folder)
        if not silently:
            self.say(f"Training {request.id}: {len(done)} of {request.goal.epochs} epochs are done.")
        return request, msgspec.structs.replace(record, epochs=done), folder

    def session(self, request: Request, record: TrainingRun, folder: Path) -> TrainingRun:
        """Train, shown and listed, until it ends or is stopped."""
        with make_display(quiet=self._quiet) as display, TrainStatus(store_path(), request) as status:
            tracked = self._tracking.training(folder, request) if self._tracking is not None else []
            heard_by: list[Listener] = [display, self.index(folder), status, *tracked]
            return train(request, record, folder, listeners=heard_by, on_sampler=status.sampling)

    def index(self, folder: Path) -> Listener:
        """Who keeps `metalmark runs list` up to date."""
        return indexing(store_path(), folder, lineup=lineup_of(folder), say=self.say)

    def run(self, request: Request, record: TrainingRun, folder: Path) -> int:
        record = self.session(request, record, folder)
        if self._as_json:
            click.echo(msgspec.json.encode(record).decode())
        elif record.epochs:
            console = wide_console()
            print_table(training_table(record, columns=console.width), console)
        for flag in flags(record):
            self.say(f"{flag.name}: {flag.evidence}.")
        failure = record.failure
        if record.ending is Ending.INTERRUPTED:
            self.say("Stopped by Ctrl-C.")
        elif failure is not None:
            click.echo(f"metalmark: {failure.message}", err=True)
            if failure.hint:
                click.echo(f"  {failure.hint}", err=True)
        if record.epochs or failure is None:
            self.say(f"Written to {folder}.")
        if failure is None:
            return 0
        if failure.kind is FailureKind.UNSUPPORTED and not record.epochs:
            clear(folder, record)
        if record.ending is Ending.INTERRUPTED:
            click.echo(f"resume with: metalmark train --resume={shlex.quote(str(folder))}", err=True)
            return 130
        return 2 if failure.kind is FailureKind.UNSUPPORTED else 1

    def say(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)


def _settings(options: dict[str, Any]) -> Settings:
    (settings, *others) = settings_product({**options, "graph": "off"})
    if others:
        raise UsageError("train takes one value for each setting.", hint="`metalmark bench` takes lists.")
    return settings


def _share(value: float | None) -> float | None:
    """Both ways people write it: 0.86 and 86."""
    if value is None:
        return None
    if not 0 < value <= 100:
        raise UsageError(
            f"--target-accuracy is a share (0.86) or a percentage (86), not {value:g}.",
            hint="It is of the validation samples: --target-accuracy 86",
        )
    return value if value <= 1 else value / 100


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


def trainings_folder() -> Path:
    """Beside the store's own file."""
    return store_path().parent / "trainings"


def begun(request: Request) -> TrainingRun:
    return TrainingRun(id=request.id, started_at=now_utc(), plan=request.plan, goal=request.goal)


def new_folder(out: str | None, workload: str, identifier: str) -> Path:
    name = workload.replace(":", "-").removesuffix(".py")
    folder = expanded(out) if out else trainings_folder() / f"{name}-{identifier}"
    if (folder / LAST).exists() or (folder / LINEUP).exists():
        raise UsageError(
            f"{folder} holds a training already.",
            hint=f"Go on with it: metalmark train --resume={shlex.quote(str(folder))}; or give another --out.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} can't be made: {error.strerror}.", hint="Give another --out DIR.") from error
    return folder.resolve()


def clear(folder: Path, record: TrainingRun) -> None:
    """Bad input is no training: nothing of it is left to go on with."""
    for name in (JOB, RECORD):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # the user's own folder may hold other things
        folder.rmdir()
    with suppress(StoreError), TrainingStore(store_path()) as store:
        store.forget_trainings([record.id])


def find_folder(word: str | None) -> Path:
    """A folder as given, the folder of a training by its id or name, or the last one's."""
    if not word:
        return _last_folder()
    folder = expanded(word).resolve()
    if not folder.is_dir():
        with TrainingStore(store_path(), readonly=True) as store:
            rows = store.find_trainings(word)
        places = {row.path.parent if row.lineup and len(rows) > 1 else row.path for row in rows}
        if len(places) > 1:
            raise UsageError(f"Several trainings are named {word!r}.", hint="Give the folder of one: --resume=DIR")
        return places.pop() if places else folder
    return folder


def _last_folder() -> Path:
    found = [path for name in (JOB, LINEUP) for path in trainings_folder().glob(f"*/{name}")]
    if not found:
        raise UsageError("There is no training to go on with.", hint="Give its folder: metalmark train --resume=DIR")
    return max(found, key=lambda path: path.stat().st_mtime).parent
