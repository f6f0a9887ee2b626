"""Natural mistakes in a user's own file: one sentence each that names the object, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import MetalmarkError, UnsupportedError, UsageError
from metalmark.feeds.leaves import leaves_of
from metalmark.model.nest import flatten, map_leaves
from metalmark.model.workload import Batch, Param, Recipe, Workload
from metalmark.runner.worker import explained
from metalmark.workloads.catalog import load_file
from metalmark.workloads.plain import parse_shape
from tests.own.blocks import plan_of

torch = pytest.importorskip("torch")
nn = torch.nn


def make_batch(params: Any, rng: Any) -> Batch:
    size = params["batch_size"]
    return Batch(inputs=rng.standard_normal((size, 4), np.float32), targets=rng.integers(0, 3, size))


def step(**given: Any) -> None:
    """Build a session from a recipe of the user's, and take its first step."""
    batch = given.pop("batch", make_batch)
    recipe = {"model": nn.Linear(4, 3), "loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.Adam, **given}
    workload = Workload(
        name="mine",
        title="Mine",
        params=(Param("batch_size", 8),),
        build={"torch": lambda _: Recipe(**recipe)},
        batch=batch,
    )
    object.__setattr__(workload, "origin", "/mine/net.py")
    backend = FRAMEWORKS["torch"].backend()
    with (
        backend.open(plan_of(workload, "torch"), workload) as session,
        explained(workload, backend, session.batch_shown),
    ):
        session.step()


def other_optimizer() -> Any:
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def frozen() -> Any:
    return nn.Linear(4, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": nn.Linear}, "Recipe(model=Linear) is a class, not a model."),
        ({"model": {"one": nn.Linear(4, 3), "two": "text"}}, "model['two'] of the recipe is a str"),
        ({"model": nn.Linear(5, 3)}, "A batch has inputs float32 (8, 4), targets int64 (8,)"),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            "The loss is an array of torch.float32 (8,), not one number.",
        ),
        ({"loss": None}, "the model returns none: it returns an array of torch.float32 (8, 3)"),
        ({"optimizer": None}, "The recipe needs an optimiser and has none."),
        ({"optimizer": other_optimizer}, "returned a"),
        ({"optimizer": lambda parameters: len(parameters)}, "returned a int, not a torch optimiser"),
        ({"optimizer": "adam"}, "The recipe needs an optimiser and has a str."),
        ({"model": frozen()}, "has no parameter that requires a gradient"),
        ({"batch": lambda *_: (1, 2)}, "`batch` returned a tuple, not a Batch."),
        ({"batch": lambda *_: Batch(inputs=np.array(["a"]), targets=None)}, "inputs of a batch is a ndarray of <U1"),
        ({"batch": lambda *_: Batch(inputs=[object()], targets=None)}, "inputs[0] of a batch is a object of object"),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], words: str) -> None:
    if given.get("optimizer") is other_optimizer:
        given, words = {"optimizer": other_optimizer()}, "The SGD of the recipe holds no trainable parameter"
    with pytest.raises(MetalmarkError) as raised:
        step(**given)
    assert words in f"{raised.value.message} {raised.value.hint}"
    assert raised.value.hint


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (
            "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, wide): super().__init__()",
            "Net",
            "Net()",
        ),
        ("def make(): return 3", "make", "make() returns a int, not a model."),
        ("value = 3", "value", "holds a int called 'value', neither a Workload nor a model."),
        ("", "net", "holds nothing called 'net'"),
    ],
)
def test_what_is_no_model_is_said(source: str, name: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "own_mistake.py"
    path.write_text(source)
    with pytest.raises(UsageError) as raised:
        load_file(path, name)
    assert words in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("text", ["", "3,x,5", "3,0", "3,-1", "3,2147483648"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        parse_shape(text)
    assert "--input-shape" in f"{raised.value.message} {raised.value.hint}"


def test_shapes_are_read() -> None:
    assert parse_shape("3,224,224") == parse_shape("3x224x224") == parse_shape("(3, 224, 224)") == (3, 224, 224)


def test_a_nest_is_put_together_as_it_was() -> None:
    one, two = np.zeros(2), np.ones(3)
    nest = {"a": (one, None), "b": [two, Batch(inputs=one, targets=two)]}
    leaves, layout = flatten(nest, "x")
    assert layout.names == ("x['a'][0]", "x['b'][0]", "x['b'][1].inputs", "x['b'][1].targets")
    again = layout.rebuild(leaves)
    assert again["a"] == (one, None) or again["a"][0] is one
    assert isinstance(again["b"][1], Batch)
    assert again["b"][1].targets is two
    double: Callable[[Any], Any] = partial(np.multiply, 2)
    assert map_leaves(double, nest)["b"][0].tolist() == [2, 2, 2]
    assert leaves_of(Batch(inputs={"x": torch.ones(2)}))[1].names == ("inputs['x']",)
