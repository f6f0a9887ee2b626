"""The callbacks in the libraries themselves: one process per library, which shows many fits, the examples among them.

A fit that goes wrong is the last thing in each: what nobody catches ends the script, and its run.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from metalmark.model.watch import Pass, Stretch, WatchedRun, WatchEnding
from tests.conftest import ROOT
from tests.kit.conftest import Script
from tests.kit.test_running import kept

PAUSE_S = 0.01

KERAS = f"""
import os, runpy, sys, time
import keras
import numpy as np
import metalmark as mm

class Slow(keras.utils.PyDataset):
    def __init__(self, fails=99, length=4):
        super().__init__()
        self.fails, self.length = fails, length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if number >= self.fails:
            raise ValueError("no such file")
        time.sleep({PAUSE_S})
        inputs = np.random.default_rng(number).random((8, 4), np.float32)
        return inputs, (inputs.sum(1) > 2).astype(np.int32)

class Matrix(keras.metrics.Metric):
    def update_state(self, *_, **__):
        pass
    def result(self):
        return keras.ops.ones((2, 2))

def made(metrics=("accuracy",), kind=keras.Sequential, **options):
    keras.utils.set_random_seed(0)
    model = kind([keras.Input((4,)), keras.layers.Dense(2)], name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=list(metrics), **options)
    return model

class Raises(keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error
    def on_epoch_end(self, epoch, logs=None):
        raise self.error

data = {{"x": Slow(), "epochs": 2, "verbose": 0, "validation_data": Slow(length=3)}}
alone = made().fit(**data).history
watched = mm.keras_callback()
model = made()
function = lambda: getattr(model.train_function, "__qualname__", "ours")
assert model.fit(**data, callbacks=[watched]).history == alone, "the callback changes what is learned"
assert "Keras" not in str(watched) and "train 8 steps" in str(watched), str(watched)
assert function() != "ours"
model.evaluate(Slow(), callbacks=[watched], verbose=0)
assert len(watched.runs) == 1, "evaluation alone is no fit"
model.fit(**{{**data, "epochs": 3}}, initial_epoch=2, callbacks=[watched])
assert len(watched.runs) == 2

asynchronous = keras.callbacks.CallbackList([watched])._async_train
assert asynchronous == (keras.backend.backend() != "tensorflow"), "Keras would wait for the device"

several = made(metrics=[Matrix(name="matrix")], steps_per_execution=2)
several.fit(**{{**data, "epochs": 1}}, callbacks=[mm.keras_callback("together")])

watched = mm.keras_callback("data that fails")
try:
    model.fit(Slow(fails=2), verbose=0, shuffle=False, callbacks=[watched])
except Exception as error:
    assert watched.result.ended == "failed", "the data's error is not known at once"
assert function() != "ours"
model.fit(Slow(), verbose=0)

try:
    with mm.keras_callback("around") as watched:
        model.fit(Slow(), verbose=0, callbacks=[watched, Raises(OSError("disk full"))])
except OSError:
    assert watched.result.ended == "failed" and function() != "ours"
left = mm.keras_callback("left")
try:
    model.fit(Slow(), verbose=0, callbacks=[left, Raises(OSError("disk full"))])
except OSError:
    pass
assert left.result is None and function() == "ours"
model.fit(Slow(), verbose=0)  # without the callback, through what it left behind
assert left.run.result is None
if keras.backend.backend() == "tensorflow":
    import tensorflow

    class Older(keras.Sequential):
        def make_train_function(self, force=False):  # as Keras did: given a plain iterator, it would keep one batch
            self.train_function = tensorflow.function(lambda iterator: self.train_step(next(iterator)))

    older = made(kind=Older).fit(**data, callbacks=[mm.keras_callback("older")]).history
    assert older == alone, (older, alone)
    sys.argv = ["keras_callback.py", "--epochs", "1", "--produce-ms", "1"]
    runpy.run_path({str(ROOT / "examples" / "keras_callback.py")!r}, run_name="__main__")
else:
    model.fit(Slow(), verbose=0, callbacks=[mm.keras_callback("next")])
assert left.result.ended == "failed", "the next fit in this thread ends it"
print("to the end", flush=True)
last = mm.keras_callback("stopped")
model.fit(Slow(), verbose=0, callbacks=[Raises(KeyboardInterrupt()), last])
"""


def named(runs: list[WatchedRun], name: str) -> WatchedRun:
    (run,) = [one for one in runs if one.name == name]
    return run


def is_apart(one: Stretch | Pass) -> bool:
    return isinstance(one, Stretch) or one.loop == "validation"


def steps(run: WatchedRun, loop: str = "train") -> int:
    return sum(stretch.steps for stretch in run.stretches[loop])


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_keras(script: Script, store_file: Path, backend: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = script(KERAS, needs="keras", KERAS_BACKEND=backend)
    assert done.stdout.splitlines()[-1:] == ["to the end"], done.stderr
    assert done.returncode != 0
    runs = kept(store_file)
    first, resumed = (run for run in runs if run.name == "net")
    assert [(one.loop, one.steps) for one in first.passes] == [("train", 4), ("validation", 3)] * 2
    assert [one.waited_s >= one.steps * PAUSE_S for one in first.passes if one.waited_s is not None] == [True] * 4
    assert {curve.name: curve.steps for curve in first.curves} == {
        "loss": tuple(range(1, 9)),
        "accuracy": tuple(range(1, 9)),
        "val_accuracy": (4, 8),
        "val_loss": (4, 8),
    }
    assert first.params == {"epochs": 2, "steps_per_epoch": 4, "optimizer": "SGD", "backend": backend}
    assert "keras" in first.software.versions
    assert (first.ended, first.error, first.notes) == (WatchEnding.COMPLETED, "", ())
    # As the optimiser counts: a fit that goes on goes on there too.
    assert [curve.steps for curve in resumed.curves] == [(9, 10, 11, 12)] * 2 + [(12,)] * 2
    together = named(runs, "together")
    assert (steps(together), steps(together, "validation")) == (4, 3)
    # Inside of a compiled loop over several batches no clock can be read.
    assert (together.input_wait_share() is None) == (backend == "tensorflow")
    assert [curve.name for curve in together.curves] == ["loss", "val_loss"]
    assert together.notes[0].startswith("matrix was not logged")
    failed = named(runs, "data that fails")
    assert (failed.ended, steps(failed)) == (WatchEnding.FAILED, 2)
    assert "no such file" in failed.error
    around = named(runs, "around")
    assert (around.ended, around.error, steps(around)) == (WatchEnding.FAILED, "OSError: disk full", 4)
    left = named(runs, "left")
    assert (left.ended, steps(left)) == (WatchEnding.FAILED, 4), "the fit without it is not its own"
    if backend == "tensorflow":
        examples = [run for run in runs if run.name.startswith("keras, ")]
        assert [(run.ended, steps(run)) for run in examples] == [(WatchEnding.COMPLETED, 20)] * 2
        older = named(runs, "older")
        assert (steps(older), older.input_wait_share()) == (8, None)
        assert older.input_wait_share("validation") is not None
    stopped = named(runs, "stopped")
    assert (stopped.ended, stopped.error) == (WatchEnding.INTERRUPTED, "KeyboardInterrupt: ")


TRANSFORMERS = f"""
import runpy, sys, time
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
import metalmark as mm

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, number):
        time.sleep({PAUSE_S})
        return {{"input_ids": torch.arange(4) + number, "labels": number % 2}}

class Raises(TrainerCallback):
    def __init__(self, error):
        self.error = error
    def on_step_end(self, *_, **__):
        raise self.error

def trainer(*callbacks, accumulate=1, epochs=2, **options):
    torch.manual_seed(0)
    size = {{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}}
    model = BertForSequenceClassification(BertConfig(vocab_size=16, max_position_embeddings=4, **size))
    arguments = TrainingArguments(
        "out", num_train_epochs=epochs, per_device_train_batch_size=2, gradient_accumulation_steps=accumulate,
        logging_steps=1, report_to=[], disable_tqdm=True, **{{"save_strategy": "no", **options}},
    )
    return Trainer(model, arguments, train_dataset=Slow(), eval_dataset=Slow(), callbacks=list(callbacks))

watched = mm.transformers_callback()
each = trainer(watched, accumulate=4, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=2)
each.train()
assert "train 4 steps" in str(watched), str(watched)
each.evaluate()
assert len(watched.runs) == 1, "evaluation alone is no training"
each.train(resume_from_checkpoint="out/checkpoint-2")
assert len(watched.runs) == 2
sys.argv = ["transformers_trainer.py", "--epochs", "1", "--accumulate", "2", "--out", "example"]
runpy.run_path({str(ROOT / "examples" / "transformers_trainer.py")!r}, run_name="__main__")
try:
    with mm.transformers_callback("around") as watched:
        trainer(watched, Raises(OSError("disk full"))).train()
except OSError:
    assert watched.result.ended == "failed"
print("to the end", flush=True)
trainer(mm.transformers_callback("stopped"), Raises(KeyboardInterrupt())).train()
"""


def test_transformers(script: Script, store_file: Path) -> None:
    if find_spec("torch") is None or find_spec("accelerate") is None:
        pytest.skip("the Trainer takes torch and accelerate")
    done = script(TRANSFORMERS, needs="transformers")
    assert done.stdout.splitlines()[-1:] == ["to the end"], done.stderr
    runs = kept(store_file)
    first, resumed = (run for run in runs if run.name == "BertForSequenceClassification")
    # Six batches in an epoch, four of them in its first step and two in its second; evaluation is apart.
    assert (steps(first), steps(first, "validation")) == (4, 4 * 2)
    passes = [one for one in first.passes if one.loop == "train"]
    assert [one.steps for one in passes] == [2, 2]
    # Twelve samples in an epoch; accelerate fetches one batch ahead, so the first step waits for more than its own.
    for one in passes:
        assert one.waited_s is not None
        assert one.waited_s >= 12 * PAUSE_S
    assert all(stretch.waited_s is None for stretch in first.stretches["validation"])
    # A step ends before its evaluation begins, and the next one's batch is waited for only after that.
    spans = [
        (one.at_s, one.at_s + one.elapsed_s) for one in (*first.stretches["train"], *first.passes) if is_apart(one)
    ]
    spans.sort()
    assert len(spans) == 4 + 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert {curve.name: curve.steps for curve in first.curves} == {
        "loss": (1, 2, 3, 4),
        "grad_norm": (1, 2, 3, 4),
        "learning_rate": (1, 2, 3, 4),
        "eval_loss": (1, 2, 3, 4),
        "train_loss": (4,),
    }
    assert (first.params["batch_size"], first.params["gradient_accumulation_steps"]) == (2, 4)
    assert "max_steps" not in first.params
    assert str(first.params["optim"]).startswith("adamw")
    assert "transformers" in first.software.versions
    loss = resumed.curve("loss")
    assert loss is not None
    assert loss.steps == (3, 4)
    assert steps(named(runs, "praise or blame")) == 16
    around, stopped = named(runs, "around"), named(runs, "stopped")
    assert (around.ended, around.error) == (WatchEnding.FAILED, "OSError: disk full")
    assert (stopped.ended, stopped.error) == (WatchEnding.INTERRUPTED, "KeyboardInterrupt: ")


LIGHTNING = f"""
import pickle, time
import torch
import lightning.pytorch as pl
from torch.utils.data import DataLoader, Dataset
import metalmark as mm

class Slow(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, number):
        time.sleep({PAUSE_S})
        return torch.full((4,), number / 12), number % 2

class Net(pl.LightningModule):
    def __init__(self, rate=0.1, error=None):
        super().__init__()
        self.save_hyperparameters("rate")
        self.error, self.layer = error, torch.nn.Linear(4, 2)

    def training_step(self, batch, number):
        if self.error is not None and number == 2:
            raise self.error
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if number == 1:
            self.log("seldom", 1.0 + self.current_epoch)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.rate)

class Saves(pl.Callback):
    def on_train_batch_end(self, *_):
        time.sleep(0.03)  # as saving does, and nobody should call that waiting

def trainer(*callbacks, epochs=2, pl=pl, **options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return pl.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=list(callbacks), **quiet, **options)

train, validation = DataLoader(Slow(), 2), DataLoader(Slow(), 6)
watched = mm.lightning_callback()
each = trainer(watched, Saves(), profiler="simple")
net = Net()
each.fit(net, train, validation)
assert "train 12 steps" in str(watched), str(watched)
assert "start" not in vars(each.profiler), "the profiler is the user's own again"
fetched = [name for name in each.profiler.recorded_durations if name.endswith("train_dataloader_next")]
assert fetched, "the profiler has heard nothing"
each.validate(net, validation, verbose=False)
each.save_checkpoint("net.ckpt")
assert len(watched.runs) == 1
again = mm.lightning_callback("resumed")
trainer(again, epochs=3).fit(Net(), train, validation, ckpt_path="net.ckpt")
trainer(mm.lightning_callback("accumulated"), epochs=1, accumulate_grad_batches=4).fit(Net(), train)

import pytorch_lightning as other  # the same library by another name, with classes of its own

class Other(other.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, number):
        return self.layer(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer(mm.lightning_callback("other"), epochs=1, pl=other).fit(Other(), train)
copy = pickle.loads(pickle.dumps(mm.lightning_callback("sent")))
trainer(copy, epochs=1, limit_train_batches=1).fit(Net(), train)
try:
    trainer(mm.lightning_callback("failed"), epochs=1).fit(Net(error=OSError("disk full")), train)
except OSError:
    print("to the end", flush=True)
trainer(mm.lightning_callback("stopped"), epochs=1).fit(Net(error=KeyboardInterrupt()), train)
"""


def test_lightning(script: Script, store_file: Path) -> None:
    done = script(LIGHTNING, needs="lightning")
    assert done.stdout.splitlines()[-1:] == ["to the end"], done.stderr
    runs = kept(store_file)
    first = named(runs, "Net")
    assert [(one.loop, one.steps) for one in first.passes] == [("train", 6), ("validation", 2)] * 2
    for one in first.passes:
        assert one.waited_s is not None
        assert one.waited_s >= 12 * PAUSE_S
        if one.loop == "train":
            assert one.elapsed_s - one.waited_s >= 6 * 0.03, "saving is taken for waiting"
    every = tuple(range(1, 13))
    assert {curve.name: curve.steps for curve in first.curves} == {
        "loss": every,
        "train_loss_step": every,
        "seldom": (2, 8),
        "val_loss": (6, 12),
        "train_loss_epoch": (6, 12),
    }
    loss, logged = first.curve("loss"), first.curve("train_loss_step")
    assert loss is not None
    assert logged is not None
    assert loss.values == logged.values
    assert first.params == {"precision": "32-true", "accumulate_grad_batches": 1, "max_epochs": 2, "rate": 0.1}
    assert "lightning" in first.software.versions
    resumed = named(runs, "resumed").curve("loss")
    assert resumed is not None
    assert resumed.steps == tuple(range(13, 19))
    # Six batches make two steps, of four and of two.
    accumulated = named(runs, "accumulated")
    assert steps(accumulated) == 2
    loss, logged = accumulated.curve("loss"), accumulated.curve("train_loss_step")
    assert loss is not None
    assert logged is not None
    assert loss.values == pytest.approx(logged.values)
    assert (steps(named(runs, "sent")), steps(named(runs, "other"))) == (1, 6)
    failed, stopped = named(runs, "failed"), named(runs, "stopped")
    assert (failed.ended, failed.error, steps(failed)) == (WatchEnding.FAILED, "OSError: disk full", 2)
    assert (stopped.ended, stopped.error) == (WatchEnding.INTERRUPTED, "KeyboardInterrupt: ")


def test_asking_for_a_name_imports_no_library() -> None:
    import metalmark as mm

    before = set(sys.modules)
    assert all(callable(getattr(mm, f"{name}_callback")) for name in ("keras", "lightning", "transformers"))
    assert not {"keras", "lightning", "transformers"} & (set(sys.modules) - before)


@pytest.mark.parametrize("name", ["keras_callback.py", "transformers_trainer.py"])
def test_the_examples_are_short(name: str) -> None:
    assert len((ROOT / "examples" / name).read_text().splitlines()) < 60
