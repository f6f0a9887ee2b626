"""What the processes of a watched script told, line by line, made into the figures of a run."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metalmark.model.watch import (
    CopyGroup,
    Curve,
    Pass,
    Stretch,
    SyncPoint,
    WatchedProcess,
    WatchedScript,
    WatchedSteps,
)
from metalmark.scrub import scrub
from metalmark.watch.pace import LoopPace

TRAIN = "train"
MOST_LOSSES, MOST_PASSES, MOST_PLACES = 8192, 4096, 20
MOST_PROCESSES = 256
PHASES = ("start-up", "training", "validation", "checkpoint")


class LossCurve:
    """Losses by step. Several of one step, as where gradients are accumulated, count by their mean. Beyond
    MOST_LOSSES every second step is left out, again and again."""

    def __init__(self) -> None:
        self._steps, self._at, self._values = array("q"), array("d"), array("d")
        self._every, self._last_step, self._last_count = 1, 0, 0

    def add(self, step: int, at: float, value: float) -> None:
        if self._steps and step == self._last_step:
            self._last_count += 1
            self._values[-1] += (value - self._values[-1]) / self._last_count
            return
        if step % self._every:
            return
        self._last_step, self._last_count = step, 1
        self._steps.append(step)
        self._at.append(at)
        self._values.append(value)
        if len(self._steps) > MOST_LOSSES:
            self._every *= 2
            kept = [place for place, each in enumerate(self._steps) if not each % self._every]
            self._steps = array("q", [self._steps[place] for place in kept])
            self._at = array("d", [self._at[place] for place in kept])
            self._values = array("d", [self._values[place] for place in kept])
            self._last_step = 0

    def curve(self, origin: float) -> Curve | None:
        if not self._steps:
            return None
        return Curve(
            name="loss",
            steps=tuple(self._steps),
            at_s=tuple(each - origin for each in self._at),
            values=tuple(value if math.isfinite(value) else None for value in self._values),
        )


class SeenProcess:
    """One process of a script. `origin`: the moment from which seconds are counted, of time.monotonic()."""

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self.pid = self.parent = 0
        self.rank = self.python = self.error = ""
        self.ended = False
        self.pace, self.losses = LoopPace(), LossCurve()
        self.passes: list[Pass] = []
        self.troubles: list[str] = []
        self.versions: dict[str, str] = {}
        self._imported: list[str] = []
        self._totals: dict[str, Any] = {}
        self._training_s = 0.0
        self.first_step_at_s: float | None = None
        self.left_out_passes = 0

    def take(self, line: Mapping[str, Any]) -> None:
        if "pid" in line:
            self.pid, self.parent = int(line["pid"]), int(line["parent"])
            self.rank, self.python = str(line["rank"]), str(line["python"])
        for at, elapsed_s, waited_s, *count in line.get("steps", ()):
            at_s = max(0.0, at - self._origin)
            self.pace.step(at_s, elapsed_s, waited_s, count[0] if count else 1)
            self._training_s += elapsed_s
            if self.first_step_at_s is None:
                self.first_step_at_s = at_s
        for step, at, value in line.get("losses", ()):
            self.losses.add(step, at, math.nan if value is None else value)
        for loop, at, steps, elapsed_s, waited_s, first_s in line.get("passes", ()):
            if len(self.passes) >= MOST_PASSES:
                self.left_out_passes += 1
                continue
            self.passes.append(
                Pass(
                    loop=loop, at_s=max(0.0, at - self._origin), steps=steps, elapsed_s=max(0.0, elapsed_s),
                    waited_s=waited_s, first_wait_s=first_s,
                )
            )  # fmt: skip
        self._totals = line.get("totals") or self._totals
        self.versions = line.get("versions") or self.versions
        self.error = line.get("error", self.error)
        if "imported" in line:
            self._imported.append(str(line["imported"]))
        if "trouble" in line and len(self.troubles) < MOST_PLACES:
            self.troubles.append(str(line["trouble"]))
        self.ended = self.ended or bool(line.get("ended"))

    @property
    def steps(self) -> int:
        return int(self._totals.get("steps", 0))

    @property
    def frameworks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._imported, *self._totals.get("frameworks", ())]))

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._totals.get("notes", ()))

    @property
    def loader_workers(self) -> int:
        return int(self._totals.get("loader_workers", 0))

    def stretches(self) -> dict[str, tuple[Stretch, ...]]:
        self.pace.waits_known = bool(self._totals.get("waits_known", True))
        stretches = self.pace.stretches()
        return {TRAIN: stretches} if stretches else {}

    def phases(self) -> dict[str, float]:
        found = {"training": self._training_s, **self._totals.get("phases", {})}
        if self.first_step_at_s is not None:
            found["start-up"] = self.first_step_at_s
        if not self.steps:  # without a step, a loop that trains can't be told from one that validates
            found.pop("validation", None)
        return {name: found[name] for name in PHASES if found.get(name, 0.0) > 0}

    def script(self, processes: Sequence[WatchedProcess] = ()) -> WatchedScript:
        totals, steady = self._totals, self._totals.get("steady", {})
        syncs = [
            SyncPoint(where=scrub(where), call=call, count=int(count), seconds=seconds)
            for where, call, count, seconds in totals.get("syncs", ())
        ]
        copies = [
            CopyGroup(up_to_bytes=up_to, count=int(count), total_bytes=int(size), seconds=seconds)
            for up_to, count, size, seconds in sorted(totals.get("copies", ()))
        ]
        steps = self.steps - 1
        return WatchedScript(
            command="",
            frameworks=self.frameworks,
            device=totals.get("device", ""),
            device_name=totals.get("device_name", ""),
            batch_size=totals.get("batch_size"),
            first_step_s=totals.get("first_step_s"),
            steady=_steady(steps, steady) if steps > 0 else None,
            phases=self.phases(),
            syncs=tuple(sorted(syncs, key=lambda each: -each.seconds)[:MOST_PLACES]),
            copies=tuple(copies),
            processes=tuple(processes),
        )


def _steady(steps: int, totals: Mapping[str, float]) -> WatchedSteps:
    backward_s = totals.get("backward_s") or None
    return WatchedSteps(
        steps=steps,
        elapsed_s=totals["elapsed_s"],
        waited_s=totals["waited_s"],
        # Without a backward pass that was seen, neither of the two can be told apart from the rest.
        forward_s=totals["forward_s"] if backward_s is not None and totals["forward_s"] > 0 else None,
        backward_s=backward_s,
        optimizer_s=totals["optimizer_s"] or None,
        sync_s=totals["sync_s"],
        copy_s=totals["copy_s"],
        host_s=totals["host_s"] or None,
    )


def script_of(lines: Iterable[Mapping[str, Any]]) -> WatchedScript:
    """Return what the lines of one process told."""
    process = SeenProcess(0.0)
    for line in lines:
        process.take(line)
    return process.script()


class SeenProcesses:
    """The processes of a script, read from the folder for their lines as it grows."""

    def __init__(self, folder: Path, origin: float) -> None:
        self._folder, self._origin = folder, origin
        self._processes: dict[str, SeenProcess] = {}
        self._read: dict[Path, int] = {}

    def read(self) -> None:
        """Read what was added since the last time. Of the files of one process, only the last one still grows."""
        paths = sorted(self._folder.glob("*.jsonl"), key=lambda path: (_stem(path), _number(path)))
        for place, path in enumerate(paths):
            process = self._process(_stem(path))
            self._read_on(path, process)
            if place + 1 < len(paths) and _stem(paths[place + 1]) == _stem(path):
                path.unlink(missing_ok=True)

    def _process(self, stem: str) -> SeenProcess | None:
        if stem not in self._processes:
            if len(self._processes) >= MOST_PROCESSES:
                return None
            self._processes[stem] = SeenProcess(self._origin)
        return self._processes[stem]

    def _read_on(self, path: Path, process: SeenProcess | None) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        self._read[path] = self._read.get(path, 0) + whole
        for line in data[:whole].splitlines() if process is not None else ():
            try:
                found = msgspec.json.decode(line)
                if isinstance(found, dict):
                    process.take(found)  # type: ignore[union-attr]
            except (msgspec.DecodeError, KeyError, TypeError, ValueError):
                continue  # half a line: its process was killed while it wrote

    def troubles(self) -> list[str]:
        """What went wrong in our own code, inside of the script's processes."""
        found = [trouble for process in self.all for trouble in process.troubles]
        for path in sorted(self._folder.glob("trouble-*.txt")):
            try:
                found += path.read_text(errors="replace").splitlines()
            except OSError:
                continue
        return [scrub(trouble)[:500] for trouble in dict.fromkeys(found)]

    @property
    def all(self) -> list[SeenProcess]:
        return list(self._processes.values())

    def leading(self, pid: int) -> SeenProcess | None:
        """Return the process whose steps are the run's: rank 0, else the one that was started, else the one with most
        steps. `pid`: the one that was started."""

        def order(process: SeenProcess) -> tuple[bool, bool, bool, int]:
            trained = process.steps > 0
            return trained, trained and process.rank == "0", process.pid == pid, process.steps

        return max(self.all, key=order, default=None)

    def described(self, pid: int) -> tuple[WatchedProcess, ...]:
        """Return those that were followed. Processes that did nothing with a framework are not named."""
        leading, found = self.leading(pid), []
        for process in self.all:
            if process.rank and process.frameworks:
                role = f"rank {process.rank}"
            elif process.pid == pid or process is leading:
                role = "main"
            elif process.steps:
                role = "other"
            else:
                continue
            found.append(WatchedProcess(role=role, steps=process.steps, ended=process.ended))
        workers = max((process.loader_workers for process in self.all), default=0)
        found += [WatchedProcess(role="loader worker", steps=0, ended=True)] * workers
        return tuple(found)


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _number(path: Path) -> int:
    middle = path.name.split(".")[1]
    return int(middle) if middle.isdecimal() else 0
