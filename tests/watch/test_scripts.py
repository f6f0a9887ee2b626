"""`metalmark watch` on training loops that others wrote and ship in their packages, none of which is changed.

Each case is a script of a few lines that calls such a loop, with rows and a network that take a set time, by sleeping.
Its copy by hand calls the same loop with clocks in it. Shares of time are compared, not times: a machine that is busy
makes both longer.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from metalmark.model.watch import WatchedRun
from metalmark.store.store import Store
from tests import processes
from tests.watch.agents import needs

POINTS = 5.0

CLOCKS = """
import functools
import json
import time

waits, ends, losses = [0.0], [], []

def slow(owner, name, seconds, clocked=False):
    original = getattr(owner, name)

    @functools.wraps(original)
    def slowed(*arguments, **options):
        begin = time.perf_counter()
        time.sleep(seconds)
        result = original(*arguments, **options)
        if clocked:
            waits[-1] += time.perf_counter() - begin
        return result

    setattr(owner, name, slowed)

def stepped(loss):
    ends.append(time.perf_counter())
    losses.append(float(loss))
    waits.append(0.0)

def told():
    # What came before the end of the first step is the start of everything.
    share = 100 * sum(waits[1 : len(ends)]) / (ends[-1] - ends[0])
    print("HAND", json.dumps({"steps": len(ends), "losses": losses, "share": share}))
"""


class Case(NamedTuple):
    needs: tuple[str, ...]
    steps: int
    script: str
    plain: str
    """What comes before the script as it is watched."""
    hand: str
    """What comes before it in the copy with clocks."""


PLAIN_LOOP = Case(
    needs=("torch", "accelerate"),
    steps=3 * 12,
    script="""
        import torch
        from accelerate.test_utils.scripts import test_script as theirs

        slow(theirs.RegressionDataset, "__getitem__", 0.005, CLOCKED)
        slow(theirs.RegressionModel, "forward", 0.010)
        change(theirs)
        theirs.mock_training(48, 4, torch.Generator())
    """,
    plain="""
        CLOCKED = False

        def change(theirs):
            pass
    """,
    hand="""
        import inspect

        CLOCKED = True

        def change(theirs):
            source, line = inspect.getsource(theirs.mock_training), "            optimizer.step()\\n"
            assert source.count(line) == 1
            theirs.stepped = stepped
            exec(source.replace(line, line + "            stepped(loss)\\n"), vars(theirs))
    """,
)

TRAINER = Case(
    needs=("torch", "transformers", "accelerate"),
    steps=2 * 15,
    script="""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 60

            def __getitem__(self, index):
                words = torch.arange(index, index + 8) % 32
                return {"input_ids": words, "labels": words}

        slow(Rows, "__getitem__", 0.005, CLOCKED)
        slow(GPT2LMHeadModel, "forward", 0.010)
        set_seed(1)
        network = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
        kept = dict(save_strategy="no", report_to="none", disable_tqdm=True)
        settings = TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=2, use_cpu=True, **kept)
        trainer = Trainer(model=network, args=settings, train_dataset=Rows())
        change(trainer)
        trainer.train()
    """,
    plain="""
        CLOCKED = False

        def change(trainer):
            pass
    """,
    hand="""
        CLOCKED = True

        def change(trainer):
            from torch.optim.optimizer import register_optimizer_step_post_hook

            last, training_step = [], trainer.training_step

            def keep(*arguments, **options):
                last[:] = [training_step(*arguments, **options)]
                return last[0]

            trainer.training_step = keep
            register_optimizer_step_post_hook(lambda *_: stepped(last[0]))
    """,
)

LIGHTNING = Case(
    needs=("torch", "lightning"),
    steps=2 * 20,
    script="""
        import logging

        import lightning
        from lightning.pytorch.demos import boring_classes as theirs

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        slow(theirs.RandomDataset, "__getitem__", 0.020, CLOCKED)
        slow(theirs.BoringModel, "loss", 0.010)
        lightning.seed_everything(1, verbose=False)
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=2, limit_train_batches=20, limit_val_batches=0, callbacks=CALLBACKS, **quiet
        )
        trainer.fit(theirs.BoringModel())
    """,
    plain="""
        CLOCKED, CALLBACKS = False, []
    """,
    hand="""
        import lightning

        class Clock(lightning.Callback):
            def on_train_batch_end(self, trainer, module, outputs, *_):
                stepped(outputs["loss"])

        CLOCKED, CALLBACKS = True, [Clock()]
    """,
)

KERAS = Case(
    needs=("keras", "jax", "absl"),
    steps=2 * 20,
    script="""
        import keras
        from keras.src.trainers import trainer_test as theirs

        class Work(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                time.sleep(0.010)

            def on_train_batch_end(self, batch, logs=None):
                after(logs)

        slow(theirs.TestPyDataset, "__getitem__", 0.020, CLOCKED)
        network = theirs.ExampleModel(units=3)
        network.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=True)
        network.fit(theirs.TestPyDataset(), epochs=2, verbose=0, callbacks=[Work()])
    """,
    plain="""
        CLOCKED = False

        def after(logs):
            pass
    """,
    hand="""
        CLOCKED = True

        def after(logs):
            stepped(logs["loss"])
    """,
)

MLX = Case(
    needs=("mlx", "mlx_lm", "transformers"),
    steps=40,
    script="""
        import mlx.core as mx
        import mlx.nn as nn
        import mlx.optimizers as optim
        import numpy as np
        from mlx_lm.tuner.trainer import TrainingArgs, train

        class Rows(list):
            def __getitem__(self, index):
                return super().__getitem__(index)

        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.output = nn.Embedding(16, 8), nn.Linear(8, 16)

            def __call__(self, x):
                return self.output(self.embedding(x))

        slow(Rows, "__getitem__", 0.005, CLOCKED)
        mx.random.seed(1)
        np.random.seed(1)
        network = Network()
        mx.eval(network.parameters())
        slow(mx, "eval", 0.010)
        rows = Rows(([1 + index % 7, 2, 3, 4], 0) for index in range(64))
        settings = TrainingArgs(batch_size=4, iters=40, steps_per_report=1, max_seq_length=33, steps_per_save=100)
        train(network, optim.Adam(1e-2), rows, args=settings, training_callback=CALLBACK)
    """,
    plain="""
        CLOCKED, CALLBACK = False, None
    """,
    hand="""
        from mlx_lm.tuner.callbacks import TrainingCallback

        class Clock(TrainingCallback):
            def on_train_loss_report(self, info):
                stepped(info["train_loss"])

        CLOCKED, CALLBACK = True, Clock()
    """,
)
CASES = {"torch": PLAIN_LOOP, "transformers": TRAINER, "lightning": LIGHTNING, "keras": KERAS, "mlx": MLX}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_loop_of_others(tmp_path: Path, store_file: Path, case: Case) -> None:
    needs(*case.needs)
    parts = [textwrap.dedent(part) for part in (case.plain, case.hand, case.script)]
    (tmp_path / "train.py").write_text(CLOCKS + parts[0] + parts[2])
    (tmp_path / "by_hand.py").write_text(CLOCKS + parts[1] + parts[2] + "told()\n")
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "METALMARK_STORE": str(store_file),
    }  # fmt: skip
    run, _ = watched(tmp_path, store_file, "train.py", quiet)
    # The copy is watched, too: its two shares are of the same seconds, however busy the machine is.
    copied, printed = watched(tmp_path, store_file, "by_hand.py", quiet)
    hand = json.loads(printed.rpartition("HAND ")[2])
    assert sum(stretch.steps for stretch in run.stretches["train"]) == hand["steps"] == case.steps
    curve = run.curve("loss")
    assert curve is not None
    assert curve.steps == tuple(range(1, case.steps + 1))
    assert curve.values == pytest.approx(tuple(hand["losses"]), rel=1e-5)
    assert wait_share(copied) == pytest.approx(hand["share"], abs=POINTS)
    assert 20 < wait_share(run) < 80


def watched(folder: Path, store_file: Path, script: str, environment: dict[str, str]) -> tuple[WatchedRun, str]:
    command = processes.metalmark("watch", "--name", script, "--", sys.executable, script)
    done = processes.run(command, folder=folder, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    with Store(store_file) as store:
        (run,) = store.load(row for row in store.rows() if row.id in done.stderr)
    assert isinstance(run, WatchedRun)
    return run, done.stdout


def wait_share(run: WatchedRun) -> float:
    """Return how much of the steps after the first was waiting for input, in percent."""
    assert run.script is not None
    assert run.script.steady is not None
    return 100 * run.script.steady.waited_s / run.script.steady.elapsed_s
