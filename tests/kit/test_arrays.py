"""Devices, batch moves, NumPy and waiting: the same four calls in every framework."""

from __future__ import annotations

import pytest

from tests.kit.conftest import Script

MAKE = {
    "torch": """import torch; make, half = torch.tensor, lambda x: torch.tensor(x, dtype=torch.bfloat16)
best = lambda: str(torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu")""",
    "tensorflow": """import tensorflow as tf; make, half = tf.constant, lambda x: tf.constant(x, tf.bfloat16)
best = lambda: "gpu" if tf.test.gpu_device_name() else "cpu"
traced = lambda: tf.function(lambda x: mm.to_numpy(x))(tf.ones(2))""",
    "jax": """import jax, jax.numpy as jnp; make, half = jnp.asarray, lambda x: jnp.asarray(x, jnp.bfloat16)
# Others import it by the way: to wait for it must not take a GPU's memory.
started = jax._src.xla_bridge.backends_are_initialized
mm.synchronize()
assert not started()
jnp.ones(2)
mm.synchronize()
assert started()
best = jax.default_backend
traced = lambda: jax.jit(lambda x: mm.to_numpy(x))(jnp.ones(2))""",
    "mlx": """import mlx.core as mx; make, half = mx.array, lambda x: mx.array(x, mx.bfloat16)
best = lambda: mx.default_device().type.name""",
}
"""Each with what the framework itself calls its best device."""

BATCH = """
import sys
import metalmark as mm
assert not {"torch", "tensorflow", "jax", "mlx", "numpy"} & set(sys.modules)
import collections, dataclasses, numpy, traceback
from typing import NamedTuple
traced = None
MAKE

class Point(NamedTuple):
    x: object
    name: str

@dataclasses.dataclass(frozen=True)
class Sample:
    image: object
    label: object = dataclasses.field(default=None, init=False)

device = mm.device()
assert device.type == best() and device.why and device.framework == "NAME", repr(device)
batch = {
    "list": [make([1.0]), 3, None],
    "tuple": (Point(make([2.0]), "two"), "text"),
    "sample": Sample(make([3.0])),
    "array": numpy.arange(3, dtype=numpy.float32),
    "words": numpy.array(["a"]),
    "ordered": collections.defaultdict(list, a=half([1.5])),
}
moved = mm.to_device(batch, device)
back = mm.to_numpy(moved)
assert type(moved["array"]) is type(make([1.0])), type(moved["array"])
assert type(batch["array"]) is numpy.ndarray and type(batch["list"][0]) is type(make([1.0]))
assert back["list"][0].tolist() == [1.0] and back["list"][1:] == [3, None]
point, text = back["tuple"]
assert isinstance(point, Point) and point.x.tolist() == [2.0] and point.name == "two" and text == "text"
assert isinstance(back["sample"], Sample) and back["sample"].image.tolist() == [3.0]
assert back["array"].tolist() == [0.0, 1.0, 2.0] and back["words"].tolist() == ["a"]
assert back["ordered"].default_factory is list and back["ordered"]["a"].dtype == numpy.float32
assert mm.to_numpy(half([1.5, -2.0])).tolist() == [1.5, -2.0]
assert mm.to_numpy(2.5) == 2.5 and mm.to_numpy(make(2.5)).shape == ()
mm.synchronize()
mm.synchronize(moved)
with mm.Stopwatch() as watch:
    watch.until(make([1.0]) + 1)
assert len(watch.laps_s) == 1 and watch.elapsed_s > 0

with mm.run("sums", hz=None) as run:
    total = make(0.0)
    for number in run.watch(range(1, 5)):
        total += make(float(number))
        run.log(total=total, number=number)
assert run.result.curve("total").values == (1.0, 3.0, 6.0, 10.0), run.result.curves
assert run.result.curve("number").steps == (1, 2, 3, 4)
assert "NAME" in run.result.software.versions
timing = mm.measure(lambda: make([1.0]) + 1, steps=20, min_blocks=10)
assert sum(block.steps for block in timing.blocks) == 20 and timing.interval and timing.median_s > 0, timing
if traced is not None:  # an array that is traced has no value yet
    try:
        traced()
    except BaseException as error:
        said = "".join(traceback.format_exception(error))
        assert "has no value yet" in said, said
        # TensorFlow raises our exception anew, without its note.
        assert "NAME" == "tensorflow" or "Return it" in said, said
    else:
        raise AssertionError("a traced array has a value")
print("done")
"""


@pytest.mark.parametrize("name", MAKE)
def test_the_same_calls_in_every_framework(script: Script, name: str) -> None:
    done = script(BATCH.replace("MAKE", MAKE[name]).replace("NAME", name), needs=name)
    assert done.stdout == "done\n", done.stderr


def test_pytorchs_own_kinds(script: Script) -> None:
    done = script(
        """
        import numpy, torch
        import metalmark as mm
        from torch.nn.utils.rnn import PackedSequence, pack_sequence
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        assert torch.device(mm.device()) == (found or torch.device("cpu"))
        weight = torch.nn.Linear(2, 2).weight
        assert mm.to_numpy(weight).shape == (2, 2) and weight.requires_grad
        assert mm.to_numpy(torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
        assert mm.to_numpy(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
        packed = mm.to_device(pack_sequence([torch.ones(3), torch.ones(2)]), "cpu")
        assert isinstance(packed, PackedSequence) and packed.data.shape == (5,)
        backwards = numpy.arange(3.0)[::-1]
        backwards.flags.writeable = False
        assert mm.to_device(backwards, "cpu").tolist() == [2, 1, 0]
        assert mm.to_device(numpy.array([1, 2], ">i4"), torch.device("cpu")).tolist() == [1, 2]
        largest = mm.to_device(torch.tensor([3, 5]).max(0), "cpu")
        assert largest.values.item() == 5
        class Mine(torch.Tensor):
            pass
        assert mm.to_numpy(torch.ones(2).as_subclass(Mine)).tolist() == [1, 1]
        for wrong in (lambda: mm.to_numpy(torch.nn.Linear(1, 1)), lambda: mm.device("theano")):
            try:
                wrong()
            except mm_errors.UsageError as error:
                print(error.message)
        """.replace("import metalmark as mm", "import metalmark as mm, metalmark.errors as mm_errors"),
        needs="torch",
    )
    assert done.stdout == "A Linear is no array.\nThere is no framework 'theano'.\n", done.stderr


def test_what_counts_as_a_number_of_pytorchs(script: Script) -> None:
    done = script(
        """
        import torch
        import metalmark as mm
        from metalmark.errors import UsageError
        loss = (torch.ones(3, requires_grad=True) * 2).sum()
        numbers = [loss, torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor(3), torch.tensor(True), torch.ones(1, 1)]
        with mm.run("kinds", hz=None) as run:
            for number in run.watch(numbers):
                run.log(value=number)
            for wrong in (torch.ones(2, 2), torch.tensor(1j), torch.nn.Linear(1, 1)):
                try:
                    run.log(value=wrong)
                except UsageError as error:
                    print(error.message)
        print(run.result.curve("value").values)
        """,
        needs="torch",
    )
    assert done.stdout.splitlines() == [
        "log() takes numbers; this array has 4 elements.",
        "log() takes real numbers; this is a complex one.",
        "log() takes numbers; this is a Linear.",
        "(6.0, 1.5, 3.0, 1.0, 1.0)",
    ], done.stderr


def test_no_framework_is_imported_to_choose_one(script: Script) -> None:
    done = script(
        """
        import sys
        import metalmark as mm
        try:
            mm.device()
        except Exception as error:
            print(type(error).__name__, error.hint)
        with mm.run("plain", hz=None) as run:
            for number in run.watch([1, 2]):
                run.log(number=number)
        mm.synchronize()
        print(sorted({"torch", "tensorflow", "jax", "mlx"} & set(sys.modules)))
        """
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("UsageError Import one first"), done.stderr
    assert second == "[]"
