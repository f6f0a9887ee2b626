"""Every command's help ends with its own entry of help.toml, and no entry is of a command that is not there."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import click
from click.testing import CliRunner

import metalmark.cli
from metalmark.cli import VERBS, group

TEXTS = tomllib.loads(Path(metalmark.cli.__file__).with_name("help.toml").read_text())


def help_of(path: str) -> str:
    return CliRunner(env={"COLUMNS": "80"}).invoke(group, [*path.split(), "--help"], prog_name="metalmark").output


def test_each_command_has_its_examples() -> None:
    paths = []
    for name, (module, _) in VERBS.items():
        command = import_module(f"metalmark.cli.{module}").command
        inner = command.commands if isinstance(command, click.Group) else ()
        paths += [name, *(f"{name} {each}" for each in inner)]
    assert set(TEXTS) == {"metalmark", *paths}
    for path in paths:
        shown = help_of(path)
        assert max(map(len, shown.splitlines())) <= 80, path
        assert f"metalmark {path.split()[0]}" in TEXTS[path], "an example to type"
        for line in TEXTS[path].splitlines():
            assert line.strip() in shown, f"{path}: {line}"


def test_no_example_has_a_word_that_zsh_takes_for_a_pattern_of_files() -> None:
    """`8-64*2` without quotes ends a command in zsh: no matches found. `*.bundle` is meant as a pattern."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line.strip() for text in (*TEXTS.values(), *blocks) for line in text.splitlines()]
    commands = [line for line in lines if line.startswith(("metalmark ", "pip ", "python "))]
    assert len(commands) > 60
    for command in commands:
        unquoted = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", command)
        words = [word for word in unquoted.split() if re.search(r"[*?\[]", word)]
        assert words in ([], ["*.bundle"]), command


def test_the_help_names_no_file_that_a_wheel_lacks() -> None:
    for text in TEXTS.values():
        assert not re.search(r"\b(examples|docs|benchmarks|tests)/", text)
