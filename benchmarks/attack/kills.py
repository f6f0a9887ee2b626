"""Commands and workers that are killed at random moments: is anything lost, doubled or left behind?

python benchmarks/attack/kills.py [--kills 110] [--seed 1] [--quick]

Sweeps on the software device (three cells, two repeats) and trainings (a small network on PyTorch, eight epochs on 200
pictures) are started, killed after a random time, and resumed, until they are done; then the next begins. What is
killed is the command (kill -9, in one case of ten after its worker was stopped with SIGSTOP; now and then with TERM or
HUP) or its worker (kill -9). The workload is a file of the user's own, whose worker has a child in its group and one
outside of it. After each kill:

- orphans: processes that the command started and that live on after ten seconds
- temporary folders: folders of Metalmark's that are still there after the same time
- live files: after TERM and HUP, which clear up
- lost: runs or epochs that were stored before and are not any more; at the end, cells without their runs
- doubled: a cell's repeat or an epoch that is stored twice
- different: trainings whose losses are not, bit for bit, those of a training that nobody disturbed

--quick: 12 kills, to see that it runs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # type: ignore[import-untyped]  # noqa: E402
from tests.training.files import write_learnable_idx  # noqa: E402

from metalmark.errors import UsageError  # noqa: E402
from metalmark.model.measurement import BenchRun  # noqa: E402
from metalmark.model.run import Failed, FailureKind  # noqa: E402
from metalmark.model.training import TrainingRun  # noqa: E402
from metalmark.store.live import read_all  # noqa: E402
from metalmark.store.store import Store  # noqa: E402
from metalmark.training.folder import read_record  # noqa: E402

KILLS, QUICK_KILLS = 110, 12
TRAINING_SHARE = 0.25
CELLS, REPEATS, EPOCHS = 3, 2, 8
LONGEST_S = 240.0
PATIENCE_S = 10.0
TOKEN = "METALMARK_ATTACK"
HOW = {"command": 55, "stopped, then command": 10, "worker": 20, "TERM": 8, "HUP": 7}
"""What is done, and how often out of 100."""
FILE = """
import subprocess, sys
from metalmark.workloads.{module} import {name}
if any(word.endswith(".worker") for word in sys.orig_argv):
    SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    CHILDREN = [subprocess.Popen(SLEEPER), subprocess.Popen(SLEEPER, start_new_session=True)]
"""


class Stage:
    """A place for commands, and what was counted there."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.counts: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.token = os.urandom(8).hex()
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.store = folder / "store.sqlite3"
        self.bench_file, self.train_file = folder / "bench_mine.py", folder / "train_mine.py"
        self.bench_file.write_text(FILE.format(module="fake", name="WORKLOAD"))
        self.train_file.write_text(FILE.format(module="perceptron", name="mnist_mlp"))
        self.data = write_learnable_idx(folder / "idx")

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, TOKEN: self.token, "TMPDIR": str(self.temporary), "METALMARK_STORE": str(self.store),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "metalmark", *map(str, arguments)],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(self.folder / "errors.txt").open("ab"), start_new_session=True,
        )  # fmt: skip

    def disturb(self, command: subprocess.Popen[bytes], after_s: float) -> bool:
        """Kill something after that time; False if the command was done before."""
        try:
            command.wait(after_s)
            return False
        except subprocess.TimeoutExpired:
            pass
        (how,) = self.chance.choices(list(HOW), list(HOW.values()))
        workers = [child for child in children(command.pid) if is_worker(child)]
        if how == "worker":
            if not workers:
                how = "command"
            else:
                with suppress(psutil.NoSuchProcess):
                    workers[0].kill()
                command.wait(LONGEST_S)
        if how == "stopped, then command":
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.suspend()
        if how in ("TERM", "HUP"):
            command.send_signal(signal.SIGTERM if how == "TERM" else signal.SIGHUP)
            command.wait(LONGEST_S)
            # That of a command that was killed with kill -9 goes when the next one has begun to measure.
            self.counts["live files left"] += any(status.pid == command.pid for status in read_all(self.store))
        elif how != "worker":
            command.kill()
            command.wait()
        self.kills[how] += 1
        return True

    def look_around(self) -> None:
        """Count what is left once the command has ended."""
        orphans = settled(lambda: len(self.marked()))
        # Those of a framework (torchinductor_USER, its cache) are its own.
        folders = settled(lambda: len(list(self.temporary.glob("metalmark-*"))))
        self.counts["orphans"] += orphans
        self.counts["temporary folders left"] += folders
        if orphans or folders:
            left = [*map(describe, self.marked()), *(path.name for path in self.temporary.glob("metalmark-*"))]
            print(f"left behind: {left}", file=sys.stderr)
        for pid in self.marked():  # of this script's own commands
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self.temporary.glob("metalmark-*"):
            path.rename(self.folder / f"left-{path.name}")

    def marked(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(TOKEN) == self.token and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def bench(self, kills: int) -> None:
        """One sweep in a store of its own, until it is done."""
        self.store = self.folder / f"store-{self.counts['sweeps']}.sqlite3"
        new: tuple[object, ...] = (
            "bench", f"{self.bench_file}:WORKLOAD", "-f", "fake", "--steps", "20", "--batch-size", "1,2,3", "--repeat",
            REPEATS, "-q",
        )  # fmt: skip
        runs: dict[str, BenchRun] = {}
        done = False
        while not done:
            begun = self.has_sweep()
            command = self.start(*(("bench", "--resume=last", "-q") if begun else new))
            quiet = self.kills.total() >= kills
            done = not self.disturb(command, LONGEST_S if quiet else self.chance.uniform(0.05, 3.5))
            self.look_around()
            before, runs = runs, self.stored()
            self.counts["lost"] += len(set(before) - set(runs))
        ended = [run for run in runs.values() if not interrupted(run)]
        places = Counter((run.cell, run.repeat) for run in ended)
        self.counts["doubled"] += sum(count - 1 for count in places.values())
        # A cell whose worker was killed has failed, and is not measured again.
        failed = {run.cell for run in ended if isinstance(run.outcome, Failed)}
        wanted = {(cell, repeat) for cell in range(CELLS) for repeat in range(REPEATS) if cell not in failed}
        self.counts["lost"] += len(wanted - set(places))
        self.counts["sweeps"] += 1

    def has_sweep(self) -> bool:
        if not self.store.exists():
            return False
        try:
            with Store(self.store) as store:
                return bool(store.sweep("last").id)
        except UsageError:
            return False

    def stored(self) -> dict[str, BenchRun]:
        if not self.has_sweep():
            return {}
        with Store(self.store) as store:
            return {run.id: run for run in store.load(store.rows()) if isinstance(run, BenchRun)}

    def train(self, kills: int, reference: TrainingRun | None) -> TrainingRun:
        """One training, until it is done."""
        out = self.folder / f"training-{self.counts['trainings']}"
        new: tuple[object, ...] = (
            "train", f"{self.train_file}:mnist_mlp", "--data", self.data, "-f", "torch", "-d", "cpu", "--threads", 1,
            "--batch-size", 20, "--epochs", EPOCHS, "-o", out, "-q",
        )  # fmt: skip
        epochs: list[object] = []
        done = False
        while not done:
            begun = (out / "record.json").exists()
            command = self.start(*(("train", f"--resume={out}", "-q") if begun else new))
            quiet = reference is None or self.kills.total() >= kills
            done = not self.disturb(command, LONGEST_S if quiet else self.chance.uniform(0.05, 6.0))
            self.look_around()
            if not (out / "record.json").exists():
                # Killed before anything was to be kept; a folder without a record is begun anew elsewhere.
                assert not done, (self.folder / "errors.txt").read_text()[-2000:]
                out = self.folder / f"{out.name}x"
                new = (*new[:-2], out, "-q")
                continue
            now = read_record(out).epochs
            self.counts["lost"] += len(epochs) > len(now)
            epochs = list(now)
        run = read_record(out)
        numbers = [epoch.number for epoch in run.epochs]
        self.counts["doubled"] += len(numbers) - len(set(numbers))
        self.counts["lost"] += len(set(range(1, EPOCHS + 1)) - set(numbers))
        if reference is not None:
            self.counts["different"] += losses(run) != losses(reference)
        self.counts["trainings"] += 1
        return run


def losses(run: TrainingRun) -> list[object]:
    return [(epoch.losses, epoch.validation_loss, epoch.accuracy) for epoch in run.epochs]


def interrupted(run: BenchRun) -> bool:
    return isinstance(run.outcome, Failed) and run.outcome.kind is FailureKind.INTERRUPTED


def children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children())
    except psutil.NoSuchProcess:
        return []


def is_worker(process: psutil.Process) -> bool:
    try:
        return any(word.endswith(".worker") for word in process.cmdline())
    except psutil.Error:
        return False


def describe(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200]
    except psutil.Error:
        return f"{pid} has ended"


def settled(count: Callable[[], int]) -> int:
    """Return the count once it is nothing, or after some patience."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (left := count()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    kills = QUICK_KILLS if given.quick else given.kills
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), random.Random(given.seed))
        reference = stage.train(0, None)
        trained = 0
        while stage.kills.total() < kills:
            before = stage.kills.total()
            if trained < TRAINING_SHARE * before:
                stage.train(kills, reference)
                trained += stage.kills.total() - before
            else:
                stage.bench(kills)
    for how, count in stage.kills.items():
        print(f"kills ({how}): {count}")
    print(f"kills: {stage.kills.total()}")
    print(f"kills of trainings: {trained}")
    for name in ("sweeps", "trainings"):
        print(f"{name}: {stage.counts.pop(name)}")
    for name in ("lost", "doubled", "different", "orphans", "temporary folders left", "live files left"):
        print(f"{name}: {stage.counts[name]}")
    failures = stage.counts.total()
    print(f"failures: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
