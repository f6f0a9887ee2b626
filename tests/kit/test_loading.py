"""What a loader is given, and why."""

from __future__ import annotations

import resource
import sys
import types
from pathlib import Path

import pytest

from metalmark.kit import loading as choice
from tests.kit.conftest import Script


def workers(**changed: object) -> tuple[int, str]:
    usual = {"cores": 6, "method": "fork", "iterable": False, "resident": False, "travels": lambda: ""}
    return choice.workers(**{**usual, **changed})  # type: ignore[arg-type]


def test_workers() -> None:
    assert workers()[0] == 5
    assert workers(cores=64)[0] == choice.MOST_FORKED
    assert workers(cores=64, method="spawn")[0] == choice.MOST_FRESH
    assert workers(cores=1)[0] == 0
    assert workers(iterable=True)[0] == 0
    assert workers(resident=True)[0] == 0
    assert workers(method="spawn", travels=lambda: "it can't") == (0, "it can't")
    assert workers(method="fork", travels=lambda: "it can't")[0] == 5


@pytest.mark.parametrize(
    ("platform", "imported", "unguarded", "method"),
    [
        ("darwin", [], "", "spawn"),
        ("linux", ["torch"], "", "fork"),
        ("linux", ["torch", "jax"], "", "forkserver"),
        ("linux", ["torch", "jax"], "no guard", "fork"),
    ],
)
def test_start_method(platform: str, imported: list[str], unguarded: str, method: str) -> None:
    assert choice.start_method(platform=platform, imported=imported, unguarded=unguarded)[0] == method


def test_a_script_without_its_guard(tmp_path: Path) -> None:
    main = types.ModuleType("__main__")
    assert choice.why_unguarded(main) == ""  # a notebook has no file, and its workers import nothing
    main.__file__ = str(tmp_path / "script.py")
    Path(main.__file__).write_text("train()")
    assert "__name__" in choice.why_unguarded(main)
    Path(main.__file__).write_text("if __name__ == '__main__':\n    train()")
    assert choice.why_unguarded(main) == ""


def test_what_cannot_travel() -> None:
    assert "can't be sent" in choice.why_not_travelling((lambda: 1,))
    assert choice.why_not_travelling(([1, 2], None)) == ""


def test_files_are_raised_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = [256, 5000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: limit.__setitem__(slice(None), to))
    assert choice.enough_files(300) == ""
    assert limit == [300, 5000]
    limit[:] = [64, 64]
    assert "this system allows 64" in choice.enough_files(300)
    assert limit == [64, 64]


LOADERS = """
import torch, torch.utils.data as data
import metalmark as mm

class Squares(data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return index * index

class Endless(data.IterableDataset):
    def __iter__(self):
        return iter(range(4))

def first(number):
    torch.manual_seed(number)

if __name__ == "__main__":
    for method in (None, "spawn"):
        loader = mm.loader(
            Squares(), batch_size=2, num_workers=1, multiprocessing_context=method, worker_init_fn=first, shuffle=False
        )
        print([batch.tolist() for batch in loader], loader.persistent_workers, "start method" in loader.why)
        del loader
    plain = mm.loader(Endless(), batch_size=2)
    print([batch.tolist() for batch in plain], plain.num_workers, plain.why["workers"])
    resident = mm.loader(data.TensorDataset(torch.arange(3)), batch_size=3)
    print(resident.num_workers, resident.pin_memory == torch.cuda.is_available())
    try:
        mm.loader(Squares(), batch_sise=2)
    except TypeError as error:
        print("batch_sise" in str(error))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork is Linux's")
def test_loaders(script: Script) -> None:
    done = script(LOADERS, needs="torch")
    squares = "[[0, 1], [4, 9], [16, 25]]"
    assert done.stdout.splitlines() == [
        f"{squares} True True",
        f"{squares} True False",
        "[[0, 1], [2, 3]] 0 each worker of an IterableDataset would give all its samples again",
        "0 True",
        "True",
    ], done.stderr
