"""What one framework computes with a small GPT-2 checkpoint, as JSON: run in a process of its own, since Keras keeps
the backend it was imported with. `python gpt_figures.py FRAMEWORK FOLDER`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Scalar
from metalmark.workloads.catalog import load

SEQUENCES, LENGTH, VOCABULARY = 2, 7, 50
TOKENS = (np.arange(SEQUENCES * LENGTH, dtype=np.int32).reshape(SEQUENCES, LENGTH) * 5 + 3) % VOCABULARY
STEPS = 4


def params_of(folder: str, **changes: Scalar) -> dict[str, Scalar]:
    return {"batch_size": SEQUENCES, "seq_len": LENGTH, "size": "nano", "weights": folder, **changes}


def in_torch(folder: str) -> dict[str, Any]:
    import torch

    tokens = torch.from_numpy(TOKENS)
    models = {phase: load("gpt").recipe("torch", params_of(folder, phase=phase)).model.eval() for phase in PHASES}
    with torch.no_grad():
        found = {phase: models[phase](tokens).numpy() for phase in ("full", "prefill")}
        # The prompt first: of a decoding model's cache only the last place is written by one token.
        models["decode"](tokens)
        found["decode"] = models["decode"](tokens[:, -1:]).numpy()
        try:
            from transformers import GPT2LMHeadModel
        except ImportError:
            return found
        found["transformers"] = GPT2LMHeadModel.from_pretrained(folder).eval()(tokens.long()).logits.numpy()
    return found


def in_keras(folder: str) -> dict[str, Any]:
    models = {phase: load("gpt").recipe("keras", params_of(folder, phase=phase)).model for phase in PHASES}
    found = {phase: called(models[phase], TOKENS) for phase in ("full", "prefill")}
    for mine, theirs in zip(models["decode"].weights, models["prefill"].weights, strict=True):
        mine.assign(theirs)
    found["decode"] = called(models["decode"], TOKENS[:, -1:])
    return found


def called(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Call a Keras model in one compiled piece: JAX would compile each operation by itself."""
    import keras

    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return np.asarray(tf.function(lambda values: model(values, training=False))(tokens))
    import jax

    forward = jax.jit(lambda trainable, others, values: model.stateless_call(trainable, others, values, training=False))
    states = (
        [variable.value for variable in group] for group in (model.trainable_variables, model.non_trainable_variables)
    )
    logits, others = forward(*states, tokens)
    for variable, value in zip(model.non_trainable_variables, others, strict=True):
        variable.assign(value)
    return np.asarray(logits)


def in_mlx(folder: str) -> dict[str, Any]:
    from mlx import core as mx

    tokens = mx.array(TOKENS)
    models = {phase: load("gpt").recipe("mlx", params_of(folder, phase=phase)).model for phase in PHASES}
    found = {phase: np.array(models[phase](tokens)) for phase in ("full", "prefill")}
    models["decode"](tokens)
    found["decode"] = np.array(models["decode"](tokens[:, -1:]))
    return found


def trained(framework: str, folder: str, **changes: Scalar) -> dict[str, Any]:
    """Return the losses of a few steps on one batch, and how many parameters there are and are trained."""
    workload = load("gpt")
    plan = Plan(
        workload="gpt",
        params=params_of(folder, **changes),
        mode=Mode.TRAINING,
        framework=framework,
        device=Device(kind=DeviceKind.CPU),
    )
    arrays = (TOKENS, (TOKENS * 7 + 1) % VOCABULARY)
    with import_module(f"metalmark.training.{framework}").TRAINING.open(plan, workload) as trainer:
        losses = trainer.read([trainer.train_batch(arrays) for _ in range(STEPS)])
        return {"losses": losses, "counts": [trainer.parameters, trainer.trainable_parameters]}


PHASES = ("full", "prefill", "decode")
LOGITS = {"torch": in_torch, "keras": in_keras, "mlx": in_mlx}

if __name__ == "__main__":
    framework, folder = sys.argv[1:]
    figures = {name: logits.tolist() for name, logits in LOGITS[FRAMEWORKS[framework].family](folder).items()}
    figures["training"] = trained(framework, folder)
    if framework != "jax":  # it runs the same layers as TensorFlow, and takes seconds to compile a step
        figures["lora"] = trained(framework, folder, lora=2)
    sys.stdout.write(json.dumps(figures) + "\n")
