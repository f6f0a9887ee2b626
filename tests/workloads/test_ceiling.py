"""Ceilings: what is counted. That every framework does it is in test_bert_checkpoint.py."""

from __future__ import annotations

import numpy as np

from metalmark.workloads import ceiling
from metalmark.workloads.catalog import load, names, shown_names


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
