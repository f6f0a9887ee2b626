"""The small verbs, help and completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from metalmark.cli import VERBS
from tests.conftest import Cli


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS), ["runs", "list"], ["runs", "export"]])
def test_help_has_examples(cli: Cli, verb: list[str]) -> None:
    run = cli(*verb, "--help")
    assert run.returncode == 0
    assert "Example" in run.stdout
    assert "metalmark" in run.stdout


def test_version(cli: Cli) -> None:
    import metalmark

    assert metalmark.__version__ in cli("--version").stdout


def test_schema_is_json(cli: Cli) -> None:
    assert "Completed" in json.loads(cli("schema").stdout)["$defs"]


def test_list_workloads_and_frameworks(cli: Cli) -> None:
    text = cli("list", "workloads").stdout
    assert "mnist-mlp" in text
    assert "--pixels 256" in text
    assert "fake" not in text
    frameworks = json.loads(cli("list", "frameworks", "--json").stdout)
    assert [entry["name"] for entry in frameworks] == ["torch", "tensorflow", "jax", "mlx"]
    assert all(entry["limits"] for entry in frameworks)


def test_list_devices_says_why_each_is_absent(cli: Cli) -> None:
    run = cli("list", "devices", "--json")
    entries = json.loads(run.stdout)
    assert {entry["framework"] for entry in entries} == {"torch", "tensorflow", "jax", "mlx"}
    assert all(entry["reason"] for entry in entries if not entry["present"])
    assert any(entry["present"] and entry["device"] == "cpu" for entry in entries)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: Cli, shell: str) -> None:
    assert "_METALMARK_COMPLETE" in cli("completion", shell).stdout


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
