"""`train --device cpu,gpu` and `--framework torch,mlx`: several trainings one after another, then one table."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from metalmark.backends.catalog import find, installed
from metalmark.cli.benching import BROKEN
from metalmark.cli.training import Job, Train, begun, clear, new_folder
from metalmark.errors import NotInstalledError
from metalmark.model.plan import Device
from metalmark.model.run import Failed, FailureKind
from metalmark.model.sweep import new_id, now_utc
from metalmark.model.training import Ending, TrainingRun
from metalmark.model.workload import WorkloadInfo
from metalmark.report.terminal import wide_console
from metalmark.report.training_sides import print_sides
from metalmark.runner.absence import absences
from metalmark.runner.devices import choose_devices
from metalmark.runner.expand import require
from metalmark.runner.values import split_list
from metalmark.training.derived import ending
from metalmark.training.job import Request, write_record, write_request
from metalmark.training.lineup import LINEUP, Lineup, read_lineup, write_lineup

EVERY = "all"


def asks_for_several(options: dict[str, Any]) -> bool:
    words = [options["device"], options["framework"] or ""]
    return any("," in word or word == EVERY for word in words)


class SideBySide:
    """Nothing is trained before all are known to be possible, or why not."""

    def __init__(self, train: Train, *, as_json: bool) -> None:
        self._train, self._as_json = train, as_json

    def new(self, name: str, params: dict[str, str], out: str | None, options: dict[str, Any]) -> tuple[Path, Lineup]:
        words = split_list(options["device"], what="--device")
        frameworks = split_list(options["framework"], what="--framework") if options["framework"] else [None]
        # Everything but framework and device is the same for all; bad words are answered before any device is asked.
        first = {**options, "device": "any", "framework": None if frameworks[0] == EVERY else frameworks[0]}
        request, info = self._train.request(name, params, first)
        choices = self._choices(frameworks, words, request, info)
        requests = [_for(request, framework, device) for framework, device in choices]
        missing = absences([request.plan for request in requests])
        lineup = Lineup(id=new_id(), created_at=now_utc(), members=tuple(_folder_name(one) for one in requests))
        folder = new_folder(out, request.plan.workload, lineup.id)
        for one, member, why in zip(requests, lineup.members, missing, strict=True):
            place = new_folder(str(folder / member), one.plan.workload, one.id)
            write_request(place, one)
            write_record(place, _absent(one, why) if why else begun(one))
            if why:
                self._train.say(f"{one.plan.framework} on {one.plan.device} can't be trained: {why.message}")
        # The last: a folder without it is no line-up yet.
        write_lineup(folder, lineup)
        return folder, lineup

    def run(self, folder: Path, lineup: Lineup, epochs: int | None = None) -> int:
        with suppress(OSError):  # one that can only be read is shown all the same
            write_lineup(folder, lineup)  # it is the last training now, for a plain --resume
        jobs = [self._train.stored(folder / member, epochs, silently=True) for member in lineup.members]
        records = [record for _, record, _ in jobs]
        for _, record, place in jobs:
            if not record.sessions:
                self._train.index(place)(record)
        stopped = False
        possible = [] if all(map(_unsupported, records)) else jobs
        for number, job in enumerate(possible):
            records[number] = self._one(job, lineup, number)
            stopped = records[number].ending is Ending.INTERRUPTED
            if stopped:
                break
        if not any(record.epochs for record in records) and all(_unsupported(record) for record in records):
            return self._nothing(folder, records)
        if self._as_json:
            click.echo(msgspec.json.encode(records).decode())
        else:
            print_sides(records, wide_console())
        self._train.say(f"Written to {folder}.")
        if stopped:
            self._train.say("Stopped by Ctrl-C; what ended is kept.")
            click.echo(f"resume with: metalmark train --resume={shlex.quote(str(folder))}", err=True)
            return 130
        trained = any(record.epochs for record in records)
        broken = any(record.failure is not None and record.failure.kind in BROKEN for record in records)
        return 1 if broken or not trained else 0

    def _one(self, job: Job, lineup: Lineup, number: int) -> TrainingRun:
        request, record, folder = job
        plan, done = request.plan, ending(record.epochs, request.goal)
        name = f"[{number + 1} of {len(lineup.members)}] {plan.framework} on {plan.device}"
        failure = record.failure
        if failure is not None and failure.kind is not FailureKind.INTERRUPTED:
            self._train.say(f"{name}: {failure.kind.value}.")
            return record
        if done is not None and record.ending is done:
            self._train.say(f"{name}: {done.value}.")
            return record
        self._train.say(f"{name}:")
        try:
            return self._train.session(request, record, folder)
        except KeyboardInterrupt:  # between two sessions, or while one begins
            return msgspec.structs.replace(record, ending=Ending.INTERRUPTED)

    def _nothing(self, folder: Path, records: list[TrainingRun]) -> int:
        """None of them can be trained here: bad input, of which nothing is left."""
        said: dict[tuple[str, str], list[TrainingRun]] = {}
        for record in records:
            if record.failure is not None:
                said.setdefault((record.failure.message, record.failure.hint), []).append(record)
        for (message, hint), group in said.items():
            who = ", ".join(f"{record.plan.framework} {record.plan.device}" for record in group)
            click.echo(f"metalmark: {who}: {message}", err=True)
            if hint:
                click.echo(f"  {hint}", err=True)
        for member, record in zip(read_lineup(folder).members, records, strict=True):
            clear(folder / member, record)
        (folder / LINEUP).unlink(missing_ok=True)
        with suppress(OSError):  # the user's own folder may hold other things
            folder.rmdir()
        return 2

    def _choices(
        self, frameworks: list[Any], words: list[str], request: Request, info: WorkloadInfo
    ) -> list[tuple[str, Device]]:
        if frameworks == [None]:
            names = [request.plan.framework]
        elif EVERY in frameworks:
            names = [framework.name for framework in installed() if framework.name in info.frameworks]
        else:
            names = [find(word).name for word in frameworks]
            require([info], names)
        if EVERY in words:
            self._train.say(f"Looking for devices: {', '.join(names)} ...")
        choice = choose_devices(names, words)
        for note in choice.notes:
            self._train.say(f"• {note}")
        pairs = [(name, device) for name, devices in choice.devices.items() for device in devices]
        if not pairs:
            raise NotInstalledError("No framework here has a device for it.", hint="metalmark list devices")
        return pairs


def _for(request: Request, framework: str, device: Device) -> Request:
    plan = msgspec.structs.replace(request.plan, framework=framework, device=device)
    return msgspec.structs.replace(request, id=new_id(), plan=plan)


def _folder_name(request: Request) -> str:
    return f"{request.plan.framework}-{request.plan.device}".replace(":", "-")


def _absent(request: Request, why: Failed) -> TrainingRun:
    return msgspec.structs.replace(begun(request), ending=Ending.FAILED, failure=why)


def _unsupported(record: TrainingRun) -> bool:
    return record.failure is not None and record.failure.kind is FailureKind.UNSUPPORTED
