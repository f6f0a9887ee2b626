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
from metalmark.cli.train import option_flags
from metalmark.cli.training_progress import make_display
from metalmark.data.catalog import ACCEPTED, REAL, SYNTHETIC
from metalmark.errors import NotInstalledError, StoreError, UsageError
from metalmark.plan import Budget, Mode, Plan, Settings
from metalmark.record import FailureKind
from metalmark.report.terminal import print_table, wide_console
from metalmark.report.training_table import training_table
from metalmark.runner.describe import describe
from metalmark.runner.expand import combine, require
from metalmark.runner.local import localise, localise_params
from metalmark.runner.values import parse_device
from metalmark.store.place import store_path
from metalmark.sweep import new_id, now_utc
from metalmark.training.job import JOB, LAST, RECORD, Request, read_record, read_request
from metalmark.training.launch import curve, train
from metalmark.training.record import Ending, Goal, TrainingRecord
from metalmark.workload import WorkloadInfo

EPOCHS = 5
FOREVER_S = 1e9
Job = tuple[Request, TrainingRecord, Path]


class Train:
    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet, self._as_json = quiet, as_json

    def new(self, name: str, params: dict[str, str], out: str | None, options: dict[str, Any]) -> Job:
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
        folder = _new_folder(out, request)
        return request, TrainingRecord(id=request.id, started_at=now_utc(), plan=plan, goal=goal), folder

    def stored(self, word: str | None, epochs: int | None) -> Job:
        """The training of that folder as it can go on: what its last checkpoint holds."""
        folder = Path(word).expanduser().resolve() if word else _last_folder()
        request, record = read_request(folder), read_record(folder)
        if epochs is not None:
            request = msgspec.structs.replace(request, goal=msgspec.structs.replace(request.goal, epochs=epochs))
        done = curve(folder)
        self._say(f"Training {request.id}: {len(done)} of {request.goal.epochs} epochs are done.")
        return request, msgspec.structs.replace(record, epochs=done), folder

    def run(self, request: Request, record: TrainingRecord, folder: Path) -> int:
        with make_display(quiet=self._quiet) as display:
            record = train(request, record, folder, listeners=[display])
        if self._as_json:
            click.echo(msgspec.json.encode(record).decode())
        elif record.epochs:
            console = wide_console()
            print_table(training_table(record, columns=console.width), console)
        failure = record.failure
        if record.ending is Ending.INTERRUPTED:
            self._say("Stopped by Ctrl-C.")
        elif failure is not None:
            click.echo(f"metalmark: {failure.message}", err=True)
            if failure.hint:
                click.echo(f"  {failure.hint}", err=True)
        if record.epochs or failure is None:
            self._say(f"Written to {folder}.")
        if failure is None:
            return 0
        if failure.kind is FailureKind.UNSUPPORTED and not record.epochs:
            _clear(folder)
        if record.ending is Ending.INTERRUPTED:
            click.echo(f"resume with: metalmark train --resume={shlex.quote(str(folder))}", err=True)
            return 130
        return 2 if failure.kind is FailureKind.UNSUPPORTED else 1

    def _say(self, text: str) -> None:
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
        if "," in word or word == "all":
            raise UsageError("One framework at a time.", hint="metalmark train WORKLOAD --framework torch")
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


def _new_folder(out: str | None, request: Request) -> Path:
    name = request.plan.workload.replace(":", "-").removesuffix(".py")
    folder = Path(out).expanduser() if out else trainings_folder() / f"{name}-{request.id}"
    if (folder / LAST).exists():
        raise UsageError(
            f"{folder} holds a training already.",
            hint=f"Go on with it: metalmark train --resume={shlex.quote(str(folder))}; or give another --out.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} can't be made: {error.strerror}.", hint="Give another --out DIR.") from error
    return folder.resolve()


def _clear(folder: Path) -> None:
    """Bad input is no training: nothing of it is left to go on with."""
    for name in (JOB, RECORD):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # the user's own folder may hold other things
        folder.rmdir()


def _last_folder() -> Path:
    found = sorted(trainings_folder().glob(f"*/{JOB}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError("There is no training to go on with.", hint="Give its folder: metalmark train --resume=DIR")
    return found[-1].parent
