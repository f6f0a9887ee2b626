"""What a shell completes, in this process: words that there are, the last word of a list, and runs of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from metalmark.cli import group
from metalmark.store.store import Store
from tests.conftest import Verb
from tests.samples import record, training_run


def completed(*words: str) -> list[str]:
    """What the last word becomes."""
    shell = ShellComplete(group, {}, "metalmark", "_METALMARK_COMPLETE")
    return [item.value for item in shell.get_completions([*words[:-1]], words[-1])]


@pytest.mark.parametrize("verb", ["bench", "train", "ceiling"])
def test_devices_and_dtypes(verb: str) -> None:
    assert completed(verb, "--device", "c") == ["cpu", "cuda"]
    assert completed(verb, "-d", "cpu,") == ["cpu,gpu", "cpu,any", "cpu,mps", "cpu,cuda", "cpu,all"]
    assert completed(verb, "--dtype", "") == ["float32", "tf32", "bfloat16", "float16"]
    assert completed(verb, "--dtype", "float32,b") == ["float32,bfloat16"]
    assert "torch,mlx" in completed(verb, "--framework", "torch,m")


def test_modes_kernels_and_checks() -> None:
    assert completed("bench", "--mode", "i") == ["inference"]
    assert completed("train", "--compile-mode", "r") == ["reduce-overhead"]
    assert completed("parity", "--attention-kernel", "math,f") == ["math,flash"]
    assert completed("bench", "--environment", "OMP_WAIT_POLICY=P") == ["OMP_WAIT_POLICY=PASSIVE"]
    assert completed("doctor", "--explain", "swa") == ["swap"]


def test_runs_by_id_sweep_and_name(store_file: Path, verb: Verb) -> None:
    with Store(store_file) as store:
        measured, trained = record(), training_run()
        store.add(measured)
        store.put_training(trained, store_file.parent / "run1")
        store.name("main", [measured.id])
    # `verb` has set the store that commands read here.
    assert verb("runs", "list").exit_code == 0
    every = {"last", "main", measured.id, measured.sweep, trained.id}
    for words in (
        ["runs", "show"],
        ["runs", "export"],
        ["runs", "delete"],
        ["compare"],
        ["compare", "main"],
        ["report"],
    ):
        assert set(completed(*words, "")) == every, words
    assert completed("runs", "show", measured.id[:3]) == [measured.id]
    assert completed("runs", "unname", "") == ["main"]
    assert completed("bench", "--resume", "") == ["last", measured.sweep]


def test_a_store_that_is_none_completes_nothing_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no-store.sqlite3"
    file.write_text("letters, not runs")
    monkeypatch.setenv("METALMARK_STORE", str(file))
    assert completed("runs", "show", "") == ["last"]
    assert completed("runs", "unname", "") == []
    assert capsys.readouterr() == ("", "")
