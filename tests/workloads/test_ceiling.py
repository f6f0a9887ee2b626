"""Ceilings on every framework: the arithmetic that is counted is the arithmetic that is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Settings
from metalmark.workloads import ceiling
from metalmark.workloads.catalog import load, names, shown_names

RUN = """
import json, sys
import numpy as np
from metalmark.workloads.catalog import load
found = {}
cells = {"ceiling-matmul": {"batch_size": 4, "width": 6}, "ceiling-copy": {"batch_size": 1, "megafloats": 1}}
for name, params in cells.items():
    workload = load(name)
    model = workload.recipe(sys.argv[1], params).model
    (numbers,) = workload.batch(params, np.random.default_rng(0)).inputs
    if sys.argv[1] == "torch":
        import torch
        output = model(torch.from_numpy(numbers)).detach().numpy()
        weights = [p.detach().numpy().T for p in model.parameters()]
    elif sys.argv[1] == "keras":
        output, weights = np.asarray(model(numbers)), [np.asarray(w) for w in model.weights]
    else:
        from mlx import core as mx
        from mlx.utils import tree_flatten
        output = np.array(model(mx.array(numbers)))
        weights = [np.array(w).T for _, w in tree_flatten(model.parameters())]
    expected = numbers
    for weight in weights:
        expected = expected @ weight if weight.ndim == 2 else expected * weight
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-6)
    found[name] = [len(weights), list(output.shape)]
print(json.dumps(found))
"""


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_every_framework_does_what_is_counted(framework: str) -> None:
    found = FRAMEWORKS[framework]
    if found.missing():
        pytest.skip(f"{framework} is not installed")
    run = subprocess.run(
        [sys.executable, "-c", RUN, found.family],
        env={**os.environ, **found.environment(Settings())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    shapes = json.loads(run.stdout.splitlines()[-1])
    assert shapes == {"ceiling-matmul": [ceiling.PRODUCTS, [4, 6]], "ceiling-copy": [1, [1, ceiling.MEGA]]}


def test_the_counts() -> None:
    assert ceiling.matmul_flops({"batch_size": 4, "width": 6}) * 4 == ceiling.PRODUCTS * 2 * 4 * 6 * 6
    assert ceiling.copied_bytes({"megafloats": 3}) == 24_000_000


def test_batches_differ() -> None:
    rng = np.random.default_rng(0)
    workload, params = load("ceiling-copy"), {"batch_size": 1, "megafloats": 1}
    first, second = workload.batch(params, rng), workload.batch(params, rng)
    assert not np.array_equal(first.inputs[0], second.inputs[0])


def test_they_are_in_no_list() -> None:
    assert {"ceiling-matmul", "ceiling-copy"} <= set(names())
    assert not {"ceiling-matmul", "ceiling-copy", "fake"} & set(shown_names())
