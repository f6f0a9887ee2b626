"""`metalmark env`, as a user runs it on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import Cli

LINE = re.compile(r"#.*|ulimit -S -n \d+|export [A-Z_]+=[\d.]+|unset [A-Z_]+")


def test_every_line_is_a_comment_or_a_change(cli: Cli) -> None:
    run = cli("env")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("# ")
    assert all(LINE.fullmatch(line) for line in run.stdout.splitlines())


def test_a_variable_that_hides_faults_is_taken_away(cli: Cli) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    run = cli("env", KMP_DUPLICATE_LIB_OK="TRUE")
    assert "unset KMP_DUPLICATE_LIB_OK" in run.stdout.splitlines()
    shown = subprocess.run(
        [bash, "-c", 'eval "$LINES_TO_SET"; echo "${KMP_DUPLICATE_LIB_OK-gone}"'],
        env={"PATH": "/usr/bin:/bin", "LINES_TO_SET": run.stdout, "KMP_DUPLICATE_LIB_OK": "TRUE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (shown.stdout.strip(), shown.stderr) == ("gone", "")


def test_fish_has_its_own_words(cli: Cli) -> None:
    lines = cli("env", "--shell", "fish", KMP_DUPLICATE_LIB_OK="TRUE").stdout.splitlines()
    assert "set -e KMP_DUPLICATE_LIB_OK" in lines


def test_for_programs(cli: Cli) -> None:
    steps = json.loads(cli("env", "--json", KMP_DUPLICATE_LIB_OK="TRUE").stdout)
    assert {"action": "unset", "name": "KMP_DUPLICATE_LIB_OK"}.items() <= steps[-1].items()


NOBODY = """
import os, pwd, sys

def unknown(uid):
    raise KeyError(uid)

pwd.getpwuid = unknown
for name in ("HOME", "USER", "LOGNAME"):
    os.environ.pop(name, None)
sys.argv = ["metalmark", "env"]
from metalmark.cli import main
main()
"""


def test_a_user_without_a_home_folder() -> None:
    run = subprocess.run([sys.executable, "-c", NOBODY], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("# ")


def test_an_unknown_shell(cli: Cli) -> None:
    run = cli("env", "--shell", "tcsh")
    assert run.returncode == 2
    assert "tcsh" in run.stderr
    assert "Traceback" not in run.stderr
