"""An epoch through `metalmark train`, its trackers on, against a bare hand-written loop on the same batches.

python benchmarks/train_overhead.py [torch tensorflow] [--track mlflow,wandb=offline] [--pairs N] [--quick]

Ours is the command itself, with its process that waits, its telemetry at 5 Hz and the processes that send to the
trackers; `--track ''` is without them. Bare is a fresh process with the same recipe, the same loader and one thread,
and nothing else. On both sides an epoch is what lies between asking for the first batch and the device being idle
after the last step; validation and checkpoints are outside. The first epochs, in which the frameworks trace and the
trackers' own libraries are imported beside the training, once, are the starting ratio; those after that decide. Both
sides must come to the same losses, or they were not the same work.

A machine that others share does the same epoch in 2.3 s and a minute later in 3.2 s, so one process after the other
shows nothing. Both sides of a pair are started together and take turns of a quarter of a second, ours, bare, bare,
ours: all processes of one side are stopped while those of the other run, and an epoch's time is the turns that it had.
Processes differ too, by where their arrays happen to lie: the figure is the pseudo-median (Hodges and Lehmann) of the
pairs' ratios, with half its 95% interval by bootstrap. Pairs are added until that is narrow enough: the width decides
when to stop, never the value. Three lines of `mm.run` on a step of 5 ms are measured last, by kit_overhead.py, and
have its bound. It takes half an hour or more. --quick only shows that everything runs: its figures decide nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

MOST = 1.03
FRAMEWORKS = ("torch", "tensorflow")
WORKLOAD = "mnist-mlp"
SAMPLES, EPOCHS, LEAD = 30_000, 32, 12
"""One to three seconds an epoch, at the workload's own batch size. The trackers' processes import for the LEAD, which
takes up to ten seconds: with fewer epochs a fast machine counted that import as if it came in every epoch."""
LEAST_PAIRS, MOST_PAIRS = 6, 20
HALF_WIDTH = 0.01
TURN_S = 0.25
ALIKE = 1e-3
"""Of the losses: the bare loop's sums may be in another order."""
MARK = "METALMARK_BENCHMARK"
WORKER = "metalmark.training.worker"


def make_data(folder: Path, samples: int) -> Path:
    from metalmark.data.mnist import FILES, idx_bytes

    rng = np.random.default_rng(0)
    arrays = [
        array
        for count in (samples, 100)
        for array in (rng.integers(0, 256, (count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8))
    ]
    for name, array in zip(FILES, arrays, strict=True):
        (folder / name).write_bytes(idx_bytes(array))
    return folder


class Side:
    """A command and every process it starts, which run in turns; with everything they write in a folder of its own."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.turns: list[tuple[float, float]] = []
        self._mark = str(home)
        marked = {
            MARK: self._mark,
            "METALMARK_STORE": str(home / "store.sqlite3"),
            "XDG_DATA_HOME": str(home / "data"),
            "WANDB_DIR": str(home),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "KERAS_BACKEND": "tensorflow",
            "OMP_NUM_THREADS": "1",
        }
        self._out, self._err = (home / "stdout").open("w+"), (home / "stderr").open("w+")
        self._process = subprocess.Popen(
            command, env={**os.environ, **marked}, stdout=self._out, stderr=self._err, text=True
        )
        self._mine: dict[int, float] = {self._process.pid: 0.0}
        """Each of our processes, and when it was started on the clock of `time.monotonic`."""
        self._others: set[int] = set()
        self.worker_began_s = 0.0

    def begin(self) -> None:
        self._signal(signal.SIGCONT)
        self.turns.append((time.monotonic(), float("inf")))

    def end(self) -> None:
        self._signal(signal.SIGSTOP)
        self.turns[-1] = (self.turns[-1][0], time.monotonic())
        self._find()
        self._signal(signal.SIGSTOP)

    @property
    def running(self) -> bool:
        """Also while trackers' processes that it left still send."""
        self._process.poll()
        return any(_alive(pid) for pid in self._mine)

    def output(self) -> str:
        if self._process.wait():
            self._err.seek(0)
            raise SystemExit(f"{self._process.args}\n{self._err.read()[-2000:]}")
        self._out.seek(0)
        return self._out.read()

    def kill(self) -> None:
        self._find()
        self._signal(signal.SIGKILL)

    def had_s(self, begin_s: float, end_s: float) -> float:
        """How much of this time was its own turn."""
        return sum(max(0.0, min(end_s, off) - max(begin_s, on)) for on, off in self.turns)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._mine:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _find(self) -> None:
        """Those that were started since, known by a variable that every process inherits. Others are asked once."""
        for process in psutil.process_iter():
            if process.pid in self._mine or process.pid in self._others:
                continue
            try:
                if process.environ().get(MARK) != self._mark:
                    self._others.add(process.pid)
                    continue
                # Since the machine's start, which is where the monotonic clock begins too.
                began_s = self._mine[process.pid] = process.create_time() - psutil.boot_time()
                if WORKER in process.cmdline():
                    self.worker_began_s = began_s
            except (psutil.Error, OSError):  # gone meanwhile, or about to become another program
                continue


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


class Trained(NamedTuple):
    epochs_s: list[float]
    losses: list[float]


def pair(name: str, data: Path, options: argparse.Namespace, folder: Path, *, ours_first: bool) -> list[Trained]:
    """Ours and bare, side by side in turns."""
    homes = [folder / "ours", folder / "bare"]
    for home in homes:
        home.mkdir()
    ours = [sys.executable, "-m", "metalmark", "train", WORKLOAD, "--data", str(data), "--framework", name,
            "-d", "cpu", "--threads", "1", "--epochs", str(options.epochs), "-o", str(homes[0] / "out"),
            "-q", "--json", *(["--track", options.track] if options.track else [])]  # fmt: skip
    bare = [sys.executable, __file__, "--bare", name, str(data), str(options.epochs)]
    sides = [Side(command, home) for command, home in zip((ours, bare), homes, strict=True)]
    try:
        for side in sides:
            side.turns.append((time.monotonic(), 0.0))
            side.end()
        order = (0, 1, 1, 0) if ours_first else (1, 0, 0, 1)
        for turn in itertools.count():
            side = sides[order[turn % 4]]
            if side.running:
                side.begin()
                time.sleep(TURN_S)
                side.end()
            elif not any(side.running for side in sides):
                break
    finally:
        for side in sides:
            side.kill()
    record = json.loads(sides[0].output())["epochs"]
    began_s = sides[0].worker_began_s
    found = [
        (began_s + each["begin_s"], began_s + each["begin_s"] + each["input_s"] + each["compute_s"]) for each in record
    ]
    told = json.loads(sides[1].output().splitlines()[-1])
    return [
        Trained([sides[0].had_s(*times) for times in found], [each["train_loss"] for each in record]),
        Trained([sides[1].had_s(*times) for times in told["epochs"]], told["losses"]),
    ]


def run_bare(name: str, data: Path, epochs: int) -> None:
    """The child: as a careful user writes it, and no more."""
    from metalmark.data.catalog import load as load_data
    from metalmark.model.plan import Device, DeviceKind, Mode, Plan
    from metalmark.training import samples
    from metalmark.workloads.catalog import load

    workload, made = load(WORKLOAD), load_data("mnist", str(data), 0)
    params = {param.name: param.default for param in workload.params}
    plan = Plan(
        workload=WORKLOAD, params=params, mode=Mode.TRAINING, framework=name, device=Device(kind=DeviceKind.CPU)
    )
    recipe, epoch = {"torch": bare_torch, "tensorflow": bare_tensorflow}[name](workload, params)
    times, losses = [], []
    for number in range(1, epochs + 1):
        passes = samples.Samples(workload, recipe, plan, made.train, number)
        begin = time.monotonic()
        with samples.open_pass(workload, recipe, plan, made.train, number) as batches:
            kept = epoch(batches)
        times.append((begin, time.monotonic()))
        sizes = [
            len(passes.positions[n : n + passes.batch_size]) for n in range(0, len(passes.positions), passes.batch_size)
        ]
        losses.append(float(np.average(kept(), weights=sizes)))
    print(json.dumps({"epochs": times, "losses": losses}))


Epoch = Callable[[Iterator[Any]], Callable[[], list[float]]]


def bare_torch(workload: Any, params: Any) -> tuple[Any, Epoch]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    recipe = workload.recipe("torch", params)
    model, loss_of = recipe.model.train(), recipe.loss
    optimizer = recipe.optimizer(model.parameters())

    def epoch(batches: Iterator[Any]) -> Callable[[], list[float]]:
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_of(model(torch.from_numpy(x)), torch.from_numpy(y).long())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return lambda: torch.stack(losses).tolist()

    return recipe, epoch


def bare_tensorflow(workload: Any, params: Any) -> tuple[Any, Epoch]:
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    recipe = workload.recipe("keras", params)
    model, optimizer = recipe.model, recipe.optimizer()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(recipe.loss(y, model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def epoch(batches: Iterator[Any]) -> Callable[[], list[float]]:
        losses = [step(tf.constant(x), tf.constant(y)) for x, y in batches]
        losses[-1].numpy()
        return lambda: [float(loss) for loss in losses]

    return recipe, epoch


def compare(name: str, options: argparse.Namespace) -> float:
    from overhead import half_width, pseudo_median

    from metalmark.stats.summary import median

    done: list[list[Trained]] = []
    ratios: list[float] = []
    width = float("inf")
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        data = Path(folder, "data")
        data.mkdir()
        make_data(data, options.samples)
        while len(ratios) < options.pairs and not (len(ratios) >= LEAST_PAIRS and width <= HALF_WIDTH):
            with tempfile.TemporaryDirectory(prefix="metalmark-") as home:
                ours, bare = pair(name, data, options, Path(home), ours_first=bool(len(ratios) % 2))
            if not np.allclose(ours.losses, bare.losses, rtol=ALIKE):
                raise SystemExit(f"{name}: not the same work: losses {ours.losses} and {bare.losses}")
            done.append([ours, bare])
            ratios.append(sum(ours.epochs_s[options.lead :]) / sum(bare.epochs_s[options.lead :]))
            width = half_width([[each] for each in ratios])
            print(f"{name}, pair {len(ratios)}: {ratios[-1]:.4f}, so far {pseudo_median(ratios):.4f} ± {width:.4f}",
                  file=sys.stderr)  # fmt: skip
    starts = [sum(ours.epochs_s[1 : options.lead]) / sum(bare.epochs_s[1 : options.lead]) for ours, bare in done]
    ratio = pseudo_median(ratios)
    print(f"{name}_pairs: {len(ratios)}")
    print(f"{name}_ours_epoch_s: {median([median(ours.epochs_s[options.lead :]) for ours, _ in done]):.3f}")
    print(f"{name}_bare_epoch_s: {median([median(bare.epochs_s[options.lead :]) for _, bare in done]):.3f}")
    print(f"{name}_starting_ratio: {median(starts):.4f}")
    print(f"{name}_half_width: {width:.4f}")
    print(f"{name}_ratio: {ratio:.4f}", flush=True)
    return ratio


def three_lines(rounds: int | None) -> bool:
    """kit_overhead.py in a process of its own; whether it keeps its bound."""
    command = [sys.executable, str(Path(__file__).with_name("kit_overhead.py")), *([str(rounds)] if rounds else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(done.stderr[-2000:])
    for line in done.stdout.splitlines():
        print(f"mm_run_{line}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []])
    parser.add_argument("--track", default="mlflow,wandb=offline", help="as for `metalmark train`; '' for none")
    parser.add_argument("--pairs", type=int, default=MOST_PAIRS, help="at most so many")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--lead", type=int, default=LEAD, help="epochs before those that decide, 2 at least")
    parser.add_argument("--quick", action="store_true", help="one pair with small epochs, and no verdict")
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.samples, options.epochs, options.lead = 1, 640, 3, 2
    if not 2 <= options.lead < options.epochs:
        parser.error("--lead is 2 at least, and less than --epochs")
    print(f"track: {options.track or 'nothing'}", flush=True)
    worst = max(compare(name, options) for name in options.frameworks or FRAMEWORKS)
    kept = three_lines(1 if options.quick else None)
    print(f"worst_ratio: {worst:.4f}")
    return 0 if options.quick or (worst <= MOST and kept) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:2] == ["--bare"]:
        run_bare(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
