"""Every command's help ends with its own entry of help.toml, and no entry is of a command that is not there."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import click
from click.testing import CliRunner

import metalmark.cli
from metalmark.cli import VERBS, group

TEXTS = tomllib.loads(Path(metalmark.cli.__file__).with_name("help.toml").read_text())


def test_each_command_has_its_examples() -> None:
    paths = []
    for name, (module, _) in VERBS.items():
        command = import_module(f"metalmark.cli.{module}").command
        inner = command.commands if isinstance(command, click.Group) else ()
        paths += [name, *(f"{name} {each}" for each in inner)]
    assert set(TEXTS) == {"metalmark", *paths}
    for path in paths:
        shown = CliRunner().invoke(group, [*path.split(), "--help"], prog_name="metalmark").output
        assert f"metalmark {path.split()[0]}" in TEXTS[path], "an example to type"
        for line in TEXTS[path].splitlines():
            assert line.strip() in shown, f"{path}: {line}"
