"""The examples run as they stand, and the two PyTorch scripts differ by what their names say."""

from __future__ import annotations

import ast
import difflib
import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import metalmark as mm
from metalmark.model.watch import WatchedRun, WatchEnding
from tests import processes
from tests.processes import ROOT

EXAMPLES = ROOT / "examples"
PLAIN, WATCHED = EXAMPLES / "pytorch_mlflow_plain.py", EXAMPLES / "pytorch_mlflow.py"
NOTEBOOK = EXAMPLES / "notebook.ipynb"

# One process for all that import torch and mlflow, since that takes longer than they do.
TOGETHER = """
import json, os, runpy, sys
import mlflow

for script in {scripts!r}:
    sys.argv = [script, "--epochs", "2", "--samples", "192", "--tracking", "sqlite:///runs.db"]
    runpy.run_path(script, run_name="__main__")
client = mlflow.MlflowClient("sqlite:///runs.db")
(experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
for run in client.search_runs([experiment.experiment_id]):
    history = client.get_metric_history(run.info.run_id, "loss")
    print("run:", json.dumps([run.info.status, [metric.value for metric in history]]))
"""


def run(arguments: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    quiet = {"METALMARK_STORE": str(folder / "store.sqlite3"), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    return processes.run([sys.executable, *arguments], folder=folder, **{**quiet, **variables})


def watched(folder: Path) -> list[tuple[str, WatchEnding, int]]:
    loops = [run for run in mm.runs(store=folder / "store.sqlite3") if isinstance(run, WatchedRun)]
    return [(run.name, run.ended, sum(each.steps for each in run.passes)) for run in loops]


@pytest.mark.skipif(not (find_spec("torch") and find_spec("mlflow")), reason="it takes torch and mlflow")
def test_the_two_scripts(tmp_path: Path) -> None:
    code = TOGETHER.format(scripts=[str(PLAIN), str(WATCHED)])
    done = run(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    tracked = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("run:")]
    assert [status for status, _ in tracked] == ["FINISHED", "FINISHED"]
    # Watched or not, the same training, and in MLflow the same curve.
    assert tracked[0][1] == tracked[1][1]
    assert len(tracked[0][1]) == 2
    assert watched(tmp_path) == [("which half is brighter", WatchEnding.COMPLETED, 6)]


@pytest.mark.skipif(not find_spec("torch"), reason="it takes torch")
def test_the_notebook_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real kernel, which has an event loop of its own: tables, a chart, and a watched loop."""
    import nbformat
    from nbclient import NotebookClient

    variables = {"METALMARK_STORE": str(tmp_path / "store.sqlite3"), "IPYTHONDIR": str(tmp_path / "ipython")}
    for name, value in {**variables, "SECONDS": "0.1", "SAMPLES": "256", "EPOCHS": "2", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {cell.source.splitlines()[-1]: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for source in ("runs", "runs.chart()", 'mm.compare(runs, by="batch_size", anyway=True)', "mm.runs(limit=10)"):
        result = shown[source][-1]
        assert result.output_type == "execute_result", source
        assert ("<svg" if "chart" in source else "<table") in result.data["text/html"], source
    progress = json.dumps(shown["runs"])
    assert "4 of 4 runs done" in progress
    said = "".join(output.get("text", "") for outputs in shown.values() for output in outputs)
    assert "8 losses, from " in said
    assert watched(tmp_path) == [("notebook", WatchEnding.COMPLETED, 8)]


@pytest.mark.skipif(not find_spec("tensorflow"), reason="it takes tensorflow")
def test_the_tensorflow_loop(tmp_path: Path) -> None:
    done = run([str(EXAMPLES / "tensorflow_watched.py"), "--steps", "6", "--produce-ms", "2"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert watched(tmp_path) == [
        ("tensorflow, when needed", WatchEnding.COMPLETED, 6),
        ("tensorflow, made ahead", WatchEnding.COMPLETED, 6),
    ]
    assert done.stdout.count("of it waiting for input") == 2


def test_three_lines_make_the_difference() -> None:
    """Besides the text at the top and the import, no line is gone and no more than three are new or changed."""
    before, after = (code_of(path) for path in (PLAIN, WATCHED))
    new: list[str] = []
    for tag, first, last, begin, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            assert last - first <= end - begin, f"lines are gone: {before[first:last]}"
            new += after[begin:end]
    new = [line.strip() for line in new if line.strip()]
    assert new.pop(0) == "import metalmark as mm"
    assert len(new) == 3
    assert ["mm.run(" in new[0], "run.watch(" in new[1], "run.log(" in new[2]] == [True] * 3
    assert sum(line.strip() != "" for line in after) - sum(line.strip() != "" for line in before) <= 3


def code_of(path: Path) -> list[str]:
    """Its lines without the text at the top."""
    text = path.read_text()
    top = ast.parse(text).body[0]
    return text.splitlines()[top.end_lineno :]


def test_the_notebook_is_one_with_its_outputs_cleared() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    for cell in notebook["cells"]:
        assert set(cell) - {"cell_type", "id", "metadata", "source"} <= {"outputs", "execution_count"}
        assert isinstance(cell["source"], list)
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse(textwrap.dedent("".join(cell["source"])))
