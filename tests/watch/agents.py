"""Scripts in a process of their own with the agent in it, and what the agent told of them."""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import processes

TWICE = """
import contextlib, io, json

from metalmark.watch.agent_package import agent_module

def run():
    with open("script.py") as file, contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(file.read(), "script.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()

lines, troubles = [], []
recorder = agent_module("recorder").Recorder(lines.append)
undo = agent_module("install").hook_into(recorder, troubles.append)
watched = run()
undo()
recorder.read_losses()
recorder.flush(ended=True)
steps = recorder.steps
unwatched = run()
assert recorder.steps == steps
with open("told.json", "w") as file:
    json.dump({"printed": [watched, unwatched], "troubles": troubles, "lines": lines}, file)
"""


class Told(NamedTuple):
    """What one process told, all its lines together."""

    code: str
    printed: list[str]
    steps: int
    rows: list[list[float]]
    """Of each step or group of steps: when it began, how long it took, how long it waited, how many it was."""
    losses: dict[int, float]
    passes: list[list[Any]]
    totals: dict[str, Any]

    @property
    def loops(self) -> list[tuple[str, int]]:
        """Each pass through a loader: of which loop, and how many steps."""
        return [(loop, count) for loop, _, count, *_ in self.passes]

    def syncs(self, call: str, text: str) -> int:
        """Return how often the host waited in a call on the only line of the script with this text."""
        (line,) = [number for number, line in enumerate(self.code.splitlines(), 1) if text in line]
        places = {(where, name): count for where, name, count, _ in self.totals["syncs"]}
        return int(places.get((f"script.py:{line}", call), 0))


def needs(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def run_script(folder: Path, code: str, **environment: str) -> Told:
    """Run a script twice in one process, watched and then not. It must print the same each time, to the last digit."""
    code = textwrap.dedent(code)
    (folder / "script.py").write_text(code)
    (folder / "twice.py").write_text(TWICE)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "KERAS_HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(folder / "twice.py")]
    done = processes.run(command, folder=folder, **quiet, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "told.json").read_text())
    assert found["troubles"] == []
    assert found["printed"][0] == found["printed"][1]
    told = found["lines"]
    return Told(
        code=code,
        printed=found["printed"][0].split(),
        steps=told[-1]["totals"]["steps"],
        rows=[row for line in told for row in line["steps"]],
        losses={step: value for line in told for step, _, value in line["losses"]},
        passes=[each for line in told for each in line["passes"]],
        totals=told[-1]["totals"],
    )
