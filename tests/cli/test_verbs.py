"""The small verbs, help and completion."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metalmark.cli import UNWRITABLE, VERBS, group, main
from tests.conftest import Cli
from tests.processes import metalmark


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS), ["runs", "list"], ["runs", "export"]])
def test_help_has_examples(inside: Cli, verb: list[str]) -> None:
    run = inside(*verb, "--help")
    assert run.returncode == 0
    assert "Example" in run.stdout
    assert "metalmark" in run.stdout


def test_version(cli: Cli) -> None:
    import metalmark

    assert metalmark.__version__ in cli("--version").stdout


def test_schema_is_json(inside: Cli) -> None:
    assert "Completed" in json.loads(inside("schema").stdout)["$defs"]


def test_list_workloads_and_frameworks(cli: Cli) -> None:
    text = cli("list", "workloads").stdout
    assert "mnist-mlp" in text
    assert "--pixels 256" in text
    assert "fake" not in text
    frameworks = json.loads(cli("list", "frameworks", "--json").stdout)
    assert [entry["name"] for entry in frameworks] == ["torch", "tensorflow", "jax", "mlx"]
    assert all(entry["limits"] for entry in frameworks)


def test_a_framework_whose_description_is_damaged_is_listed_all_the_same(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "jax-9.9.dist-info").mkdir()
    (tmp_path / "jax-9.9.dist-info" / "RECORD").write_text("")
    run = cli("list", "frameworks", "--json", PYTHONPATH=str(tmp_path))
    assert run.returncode == 0, run.stderr
    versions = {entry["name"]: entry["version"] for entry in json.loads(run.stdout)}
    assert versions["jax"] == "installed, version unknown"


def test_list_devices_says_why_each_is_absent(cli: Cli) -> None:
    run = cli("list", "devices", "--json")
    entries = json.loads(run.stdout)
    assert {entry["framework"] for entry in entries} == {"torch", "tensorflow", "jax", "mlx"}
    assert all(entry["reason"] for entry in entries if not entry["present"])
    assert any(entry["present"] and entry["device"] == "cpu" for entry in entries)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: Cli, shell: str) -> None:
    assert "_METALMARK_COMPLETE" in cli("completion", shell).stdout


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
SENTENCE = (
    "metalmark: the output could not be written: No space left on device. Free some space, or send it somewhere else.\n"
)


def to_full_disk(arguments: list[str], *, errors: int | None, unbuffered: str) -> subprocess.CompletedProcess[str]:
    with FULL.open("w") as full:
        return subprocess.run(
            metalmark(*arguments),
            stdout=full,
            stderr=subprocess.PIPE if errors is None else full,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
        )


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["list", "workloads"],
        ["list", "workloads", "--json"],
        ["schema"],
        ["env"],
        ["completion", "bash"],
        ["doctor", "--explain", "swap"],
    ],
    ids=" ".join,
)
def test_a_full_disk_is_a_sentence_and_a_code_of_its_own(arguments: list[str], unbuffered: str) -> None:
    run = to_full_disk(arguments, errors=None, unbuffered=unbuffered)
    assert run.stderr == SENTENCE
    assert run.returncode == UNWRITABLE == os.EX_IOERR


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [["schema"], ["no-such-verb"]], ids=" ".join)
def test_a_full_disk_under_both_outputs_still_has_its_code(arguments: list[str], unbuffered: str) -> None:
    assert to_full_disk(arguments, errors=1, unbuffered=unbuffered).returncode == UNWRITABLE


PRINTS_AT_THE_END = """
import sys
from metalmark import cli

def quietly(**_):
    sys.stdout.write("kept in the buffer")

cli.group.main = quietly
cli.main()
"""


@needs_full
def test_what_is_left_in_the_buffer_fails_with_the_same_sentence() -> None:
    with FULL.open("w") as full:
        run = subprocess.run(
            [sys.executable, "-c", PRINTS_AT_THE_END],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            text=True,
            check=False,
        )
    assert (run.returncode, run.stderr) == (UNWRITABLE, SENTENCE)


def test_another_fault_of_the_system_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(group, "main", fail)
    with pytest.raises(PermissionError):
        main()


def test_a_reader_that_went_away_hears_no_complaint() -> None:
    with subprocess.Popen(
        metalmark("schema"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": ""}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_completion_knows_workloads() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from metalmark.cli import group; group.main(prog_name='metalmark')"],
        env={
            **os.environ,
            "_METALMARK_COMPLETE": "bash_complete",
            "COMP_WORDS": "metalmark bench mni",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "mnist-mlp" in run.stdout
