"""ceiling-matmul and ceiling-copy: the most a device can do, as a chain of matrix products and a copy.

They run through the same worker, clock and proof as everything else, so that a share of the ceiling compares like with
like.
"""

import numpy as np

from metalmark.model.plan import Mode
from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads import builders

MATMUL, COPY = "ceiling-matmul", "ceiling-copy"
PRODUCTS = 8
"""Products per step: so many that what is cast or launched once is small against them."""
MEGA = 1_000_000
FLOAT_BYTES = 4
SCALE = 1.5


def matmul_batch(params: Params, rng: np.random.Generator) -> Batch:
    rows = params["batch_size"]
    return Batch(inputs=(rng.standard_normal((rows, params["width"]), np.float32),), targets=np.zeros(rows, np.int32))


def copy_batch(params: Params, rng: np.random.Generator) -> Batch:
    return Batch(inputs=(rng.random((1, params["megafloats"] * MEGA), np.float32),), targets=np.zeros(1, np.int32))


def matmul_flops(params: Params) -> float:
    return PRODUCTS * 2.0 * int(params["width"]) ** 2


def copied_bytes(params: Params) -> float:
    """Return the bytes of a step: each number is read once and written once."""
    return 2.0 * FLOAT_BYTES * int(params["megafloats"]) * MEGA


matmul = Workload(
    name=MATMUL,
    title="a chain of square matrix products: the most arithmetic per second",
    params=(
        Param("batch_size", 768, "rows", minimum=1),
        Param("width", 768, "columns", minimum=1),
    ),
    build=builders(__name__, function="matmul"),
    batch=matmul_batch,
    flops=matmul_flops,
    modes=(Mode.INFERENCE,),
)
copy = Workload(
    name=COPY,
    title="one large array read and written: the most bytes per second",
    params=(
        Param("batch_size", 1, "arrays", minimum=1, maximum=1),
        Param("megafloats", 16, "millions of numbers", minimum=1),
    ),
    build=builders(__name__, function="copy"),
    batch=copy_batch,
    modes=(Mode.INFERENCE,),
)
