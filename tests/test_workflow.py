"""The workflow for hosted runners, the Makefile and pyproject.toml say the same about platforms and Pythons."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from install_plan import NEWEST, OLDEST
from tests.processes import ROOT, metalmark, run

WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def job(name: str) -> str:
    """The lines of one job."""
    found = re.search(rf"^  {name}:\n(.*?)(?=^  \S|\Z)", WORKFLOW, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


def listed(name: str, key: str) -> list[str]:
    """The words of "key: [a, b]" in that job's matrix."""
    (words,) = re.findall(rf"^        {key}: \[(.*)\]$", job(name), re.MULTILINE)
    return [word.strip(' "') for word in words.split(",")]


def claimed_pythons() -> list[str]:
    prefix = "Programming Language :: Python :: "
    return [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]


@pytest.mark.parametrize("name", ["test", "newest"])
def test_it_runs_on_the_macs_that_are_offered_and_on_linux(name: str) -> None:
    assert listed(name, "os") == ["ubuntu-24.04", "macos-15", "macos-26"]
    assert "runs-on: ${{ matrix.os }}" in job(name)
    assert re.search(r"timeout-minutes: \d+", job(name))


def test_the_suite_runs_on_every_python_that_is_claimed() -> None:
    assert listed("test", "python") == claimed_pythons()
    assert claimed_pythons()[0] == f"{OLDEST[0]}.{OLDEST[1]}"
    assert PROJECT["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    assert listed("newest", "python") == [f"{NEWEST[0]}.{NEWEST[1]}"]


def test_it_runs_the_suite_then_the_demo_then_the_doctor() -> None:
    commands = re.findall(r"run: (.*)", job("test"))
    assert [command.split()[:2] for command in commands[:2]] == [["make", "test"], ["make", "demo"]]
    assert commands[2].startswith(".venv/bin/metalmark doctor --bundle doctor.json")
    assert re.findall(r"run: (.*)", job("newest")) == ["make quick"]
    assert "doctor.json" in job("test").partition("upload-artifact")[2]


def test_the_doctor_has_the_option_that_the_workflow_uses() -> None:
    assert "--bundle" in run(metalmark("doctor", "--help")).stdout


def test_every_target_it_calls_exists() -> None:
    targets = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    called = set(re.findall(r"make (\w+)", "\n".join(re.findall(r"run: (.*)", WORKFLOW))))
    assert called == {"test", "demo", "quick"}
    assert called <= targets


def test_it_is_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the trackers, which are not installed")
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    assert set(jobs) == {"test", "newest"}
    for described in jobs.values():
        assert all({"uses", "run"} & set(step) for step in described["steps"])


def test_types_are_checked_for_both_platforms_and_for_the_oldest_and_newest_python() -> None:
    pairs = {(platform, python) for platform in ("darwin", "linux") for python in ("3.11", "3.14")}
    assert {f"{OLDEST[0]}.{OLDEST[1]}", f"{NEWEST[0]}.{NEWEST[1]}"} == {python for _, python in pairs}
    targets = [f"types-{platform}-{python}" for platform, python in pairs]
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(re.findall(r"mypy --platform (\w+) --python-version (\S+)", done.stdout)) == pairs
    check = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(target in check.stdout for target in targets)


def test_what_the_quick_tests_leave_out_exists() -> None:
    """A name that is not there any more would leave nothing out, in silence."""
    for line in (ROOT / "tools" / "quick.txt").read_text().splitlines():
        option, _, name = line.partition("=")
        path, _, function = name.partition("::")
        assert option == ("--deselect" if function else "--ignore")
        assert (ROOT / path).exists(), line
        assert f"def {function}" in (ROOT / path).read_text() if function else True, line
