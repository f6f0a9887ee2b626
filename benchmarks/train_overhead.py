"""An epoch through `metalmark train`, its trackers on, against a bare hand-written loop on the same batches.

python benchmarks/train_overhead.py [torch tensorflow] [--track mlflow,wandb=offline] [--rounds N] [--quick]

Ours is the command itself, with its process that waits, its telemetry at 5 Hz and the processes that send to the
trackers; `--track ''` is without them. Bare is a fresh process with the same recipe, the same loader and one thread,
and nothing else. On both sides an epoch is what lies between asking for the first batch and the device being idle
after the last step; validation and checkpoints are outside. The first epoch, which traces and compiles, is left out.
The epochs after it, while the trackers' own libraries are imported beside the training, once, are the starting ratio;
those after that decide. Both sides must come to the same losses, or they were not the same work.

A round is four processes, ours, bare, bare, ours (and the other way round in turn), so that a steady drift of the
machine cancels; what the trackers leave running is waited for before the next one begins. A process gives the median of
the same epochs; a round's ratio is ours over bare, and the figure the pseudo-median (Hodges and Lehmann) of the rounds,
with half its 95% interval by bootstrap. Rounds are added until that is narrow enough: the width decides when to stop,
never the value. Three lines of `mm.run` on a step of 5 ms are measured last, by kit_overhead.py, and have its bound.
On an idle machine it takes 20 minutes or more. --quick only shows that everything runs: its figures decide nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

MOST = 1.03
FRAMEWORKS = ("torch", "tensorflow")
WORKLOAD = "mnist-mlp"
SAMPLES, EPOCHS, LEAD = 30_000, 12, 8
"""About two seconds an epoch, at the workload's own batch size. The trackers' processes import for the LEAD."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 10
HALF_WIDTH = 0.008
ALIKE = 1e-3
"""Of the losses: the bare loop's sums may be in another order."""
MARK = "METALMARK_BENCHMARK"
PATIENCE_S = 120.0


def make_data(folder: Path, samples: int) -> Path:
    from metalmark.data.idx import idx_bytes
    from metalmark.data.mnist import FILES

    rng = np.random.default_rng(0)
    arrays = [
        array
        for count in (samples, 100)
        for array in (rng.integers(0, 256, (count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8))
    ]
    for name, array in zip(FILES, arrays, strict=True):
        (folder / name).write_bytes(idx_bytes(array))
    return folder


def ours(name: str, data: Path, epochs: int, track: str, home: Path) -> dict[str, list[float]]:
    out = home / "out"
    command = [sys.executable, "-m", "metalmark", "train", WORKLOAD, "--data", str(data), "--framework", name,
               "-d", "cpu", "--threads", "1", "--epochs", str(epochs), "-o", str(out), "-q", "--json"]  # fmt: skip
    done = call([*command, *(["--track", track] if track else [])], home)
    found = json.loads(done)["epochs"]
    return {
        "epochs_s": [epoch["input_s"] + epoch["compute_s"] for epoch in found],
        "losses": [epoch["train_loss"] for epoch in found],
    }


def bare(name: str, data: Path, epochs: int, _: str, home: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(
        call([sys.executable, __file__, "--bare", name, str(data), str(epochs)], home).splitlines()[-1]
    )
    return found


def call(command: list[str], home: Path) -> str:
    """Run it with everything it writes in a folder of its own, and wait for what it leaves running."""
    marked = {
        MARK: str(home),
        "METALMARK_STORE": str(home / "store.sqlite3"),
        "XDG_DATA_HOME": str(home / "data"),
        "WANDB_DIR": str(home),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env={**os.environ, **marked}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    deadline = time.monotonic() + PATIENCE_S
    while left_running(str(home)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return done.stdout


def left_running(mark: str) -> bool:
    import psutil

    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (psutil.Error, OSError):  # another user's, or gone meanwhile
            continue
    return False


def run_bare(name: str, data: Path, epochs: int) -> None:
    """The child: as a careful user writes it, and no more."""
    from metalmark.data.catalog import load as load_data
    from metalmark.plan import Device, DeviceKind, Mode, Plan
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
        passes = samples.training(workload, recipe, plan, made.train, number)
        begin = time.perf_counter()
        with samples.in_order(passes, 0) as batches:
            kept = epoch(batches)
        times.append(time.perf_counter() - begin)
        sizes = [
            len(passes.positions[n : n + passes.batch_size]) for n in range(0, len(passes.positions), passes.batch_size)
        ]
        losses.append(float(np.average(kept(), weights=sizes)))
    print(json.dumps({"epochs_s": times, "losses": losses}))


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

    from metalmark.stats import median

    sides: dict[Any, list[float]] = {ours: [], bare: []}
    starts: dict[Any, list[float]] = {ours: [], bare: []}
    losses: dict[Any, list[float]] = {}
    ratios: list[float] = []
    width = float("inf")
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        data = Path(folder, "data")
        data.mkdir()
        make_data(data, options.samples)
        while len(ratios) < options.rounds and not (len(ratios) >= LEAST_ROUNDS and width <= HALF_WIDTH):
            order = (ours, bare, bare, ours) if len(ratios) % 2 else (bare, ours, ours, bare)
            for side in order:
                with tempfile.TemporaryDirectory(prefix="metalmark-") as home:
                    found = side(name, data, options.epochs, options.track, Path(home))
                sides[side].append(median(found["epochs_s"][options.lead :]))
                starts[side].append(median(found["epochs_s"][1 : options.lead]))
                losses[side] = found["losses"]
            if not np.allclose(losses[ours], losses[bare], rtol=ALIKE):
                raise SystemExit(f"{name}: not the same work: losses {losses[ours]} and {losses[bare]}")
            ratios.append(sum(sides[ours][-2:]) / sum(sides[bare][-2:]))
            width = half_width([[each] for each in ratios])
            print(f"{name}, round {len(ratios)}: {ratios[-1]:.4f}, so far {pseudo_median(ratios):.4f} ± {width:.4f}",
                  file=sys.stderr)  # fmt: skip
    ratio = pseudo_median(ratios)
    print(f"{name}_rounds: {len(ratios)}")
    print(f"{name}_bare_epoch_s: {median(sides[bare]):.3f}")
    print(f"{name}_ours_epoch_s: {median(sides[ours]):.3f}")
    print(f"{name}_starting_ratio: {sum(starts[ours]) / sum(starts[bare]):.4f}")
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
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS, help="at most so many")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--lead", type=int, default=LEAD, help="epochs before those that decide, 2 at least")
    parser.add_argument("--quick", action="store_true", help="one round of small epochs, and no verdict")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.samples, options.epochs, options.lead = 1, 640, 3, 2
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
