"""Faults of an accelerator's kernels, each found on the simulated device and named at its layer and quantity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from metalmark.model.parity import Quantity
from tests.simulated.conftest import Simulated

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "mnist-mlp": {
        "none": None,
        "float16-sums": (Quantity.EVAL_OUTPUT, "0"),
        "shifted-labels": (Quantity.LOSS, ""),
        "gradient-scale": (Quantity.GRADIENT, "2.weight"),
        "adam-epsilon": (Quantity.OPTIMIZER, "0.weight"),
    },
    "conv256": {"none": None, "conv-batch-9": (Quantity.EVAL_OUTPUT, "0")},
    "mobilenet-cifar10": {
        "none": None,
        "batch-statistics-in-eval": (Quantity.EVAL_OUTPUT, "backbone.features.0.1"),
        "stale-variance": (Quantity.STATISTIC, "backbone.features.0.1.running_var"),
    },
    "bert": {
        "none": None,
        "norm-epsilon": (Quantity.EVAL_OUTPUT, "model.bert.embeddings.LayerNorm"),
        "no-dropout": (Quantity.DROPOUT, "model.bert.embeddings.dropout"),
    },
    "gpt": {"none": None, "decay-biases": (Quantity.OPTIMIZER, "h.0.ln_1.bias")},
}
# One process for all: what takes long is to import PyTorch. The reference is examined once for each workload.
LOOK = """
import json, sys, tempfile
from contextlib import nullcontext
from pathlib import Path
from metalmark.parity.job import Options
from metalmark.parity.torch import SIDE
from metalmark.runner.worker import leave
from simulated_faults import injected
from tests.parity.in_process import Check
sizes = {
    "mnist-mlp": {"batch_size": 8}, "conv256": {"batch_size": 9, "pixels": 16},
    "mobilenet-cifar10": {"batch_size": 4, "pixels": 32, "train": "all"},
    "bert": {"batch_size": 2, "seq_len": 8, "size": "tiny"}, "gpt": {"batch_size": 2, "seq_len": 8, "size": "nano"},
}
options = Options(draws=2, steps=2, repeats=0, seeds=0)
named = {}
for workload, faults in json.load(sys.stdin).items():
    with tempfile.TemporaryDirectory() as folder:
        check = Check(SIDE, Path(folder), workload, sizes[workload], options=options)
        check.examine_reference()
        for fault in faults:
            with nullcontext() if fault == "none" else injected(fault):
                differences = [row for row in check.compare() if not row.agrees]
            named[f"{workload} {fault}"] = [differences[0].quantity, differences[0].name] if differences else None
print(json.dumps(named))
leave()  # as a worker does: threads of a backward pass were seen to abort a process that takes PyTorch apart
"""


def test_a_fault_is_named_where_it_is(simulated: Simulated) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=ROOT,
        env={**os.environ, **simulated()},
        input=json.dumps({workload: list(faults) for workload, faults in EXPECTED.items()}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    expected = {
        f"{workload} {fault}": None if named is None else list(named)
        for workload, faults in EXPECTED.items()
        for fault, named in faults.items()
    }
    assert json.loads(run.stdout) == expected


def test_the_variable_switches_one_on(simulated: Simulated) -> None:
    """On the simulated device, and nowhere else."""
    code = """
import torch
print([torch.nn.functional.dropout(torch.ones(99, device=device)).min().item() for device in ("cpu", "simulated")])
"""
    environment = {**os.environ, **simulated(fault="no-dropout")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[0.0, 1.0]"
