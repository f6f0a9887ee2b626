"""What every test shares: a store of its own, and the command as a user runs it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metalmark import cli as command_line
from metalmark.cli import group
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan
from metalmark.workloads.catalog import load
from tests import processes
from tests.processes import ROOT, metalmark

__all__ = ["ROOT"]

Cli = Callable[..., subprocess.CompletedProcess[str]]
Verb = Callable[..., Result]


# Whoever runs the tests in a narrow window and exports its width must not get other tables.
os.environ.pop("COLUMNS", None)
# The suite starts hundreds of processes; each would compile all that it imports of the checkout once more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Where the suite was started in the background, a shell has switched Ctrl-C off for it and for all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIRST = (
    "test_docs.py", "test_readme.py", "test_suite.py", "test_commands.py", "test_scripts.py", "test_frameworks.py",
    "test_tuner.py", "test_train.py", "test_cluster.py", "test_writers.py", "test_training.py", "test_measuring.py",
    "test_keras.py", "test_snippet.py", "test_backends.py", "test_trainers.py",
    "test_bench.py", "test_vision.py", "test_gpt.py", "test_kinds.py", "test_trackers.py", "test_documents.py",
    "test_core.py", "test_callbacks.py", "test_feeds.py", "test_examples.py", "test_bert.py", "test_app.py",
    "test_carry.py", "test_gate.py", "test_bert_checkpoint.py", "test_simulated.py", "test_troubles.py",
    "test_bundles.py", "test_validity.py", "test_launch.py", "test_own_files.py", "test_faults.py", "test_local.py",
    "test_torch.py", "test_threads.py", "test_contributing.py", "test_architecture.py",
)  # fmt: skip
"""Files that take a hundredth of the suite's time or more, the longest first: started last, one would keep a core busy
and leave the other idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(FIRST)))


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


@pytest.fixture
def cli(store_file: Path) -> Cli:
    """Runs `metalmark ARGS` in a process of its own, in the repository, with a store of its own."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return processes.run(metalmark(*arguments), **{"METALMARK_STORE": str(store_file), **environment})

    return run


@pytest.fixture
def inside(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs as `cli` does, but in this process, which is much sooner: for words that are answered at once."""
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    monkeypatch.chdir(ROOT)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = ["metalmark", *map(str, arguments)]
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        before, sys.argv = sys.argv, words  # by hand: pytest can't undo it where `sys` is the pretend Mac's
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = command_line._exit_code()
        finally:
            sys.argv = before
        assert isinstance(code, int)
        stdout, stderr = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(words, code, stdout, stderr)

    return run


@pytest.fixture
def verb(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Runs `metalmark ARGS` in this process, which is much sooner; an error meant for the user is raised."""
    monkeypatch.setenv("METALMARK_STORE", str(store_file))

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(group, [*map(str, arguments)], standalone_mode=False, catch_exceptions=False)

    return call


@pytest.fixture
def fake_plan() -> Callable[..., Plan]:
    """A plan for the software device, short by default."""

    def make(mode: Mode = Mode.TRAINING, budget: Budget | None = None, **params: object) -> Plan:
        defaults = {param.name: param.default for param in load("fake").params}
        return Plan(
            workload="fake",
            params={**defaults, **params},  # type: ignore[dict-item]
            mode=mode,
            framework="fake",
            device=Device(kind=DeviceKind.GPU),
            budget=budget or Budget(steps=20, seconds=0.2),
        )

    return make
