"""Runs the core of the tests on other Pythons of this machine: python3 tools/pythons.py [PYTHON ...]

Each gets an environment of its own under build/pythons, with Metalmark, JAX and MLX. There is no PyTorch and no
TensorFlow in it: their builds are large, and the tests of `make test` cover them on one Python.
Without arguments, those that are on PATH are taken.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from install import ROOT, StageError, answer, pip_install, run_stage, say

NAMES = ("python3.12", "python3.13")
EXTRAS = "dev,web,parquet,jax,mlx"
QUICK = "@tools/quick.txt"
WITH_FRAMEWORKS = ("tests/contract/test_backends.py", "tests/training/test_trainers.py", "tests/backends/test_mlx.py")
"""Tests that skip each framework that is missing, with the reason."""
VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


def environment(python: str, version: str) -> Path:
    """Return the folder of an environment with this Python, made or brought up to date."""
    folder = ROOT / "build" / "pythons" / version
    log = new_log(folder, "install")
    if answer(folder / "bin" / "python", VERSION) != version:
        run_stage(f"Python {version}: making its environment", [python, "-m", "venv", "--clear", str(folder)], log)
    command = [*pip_install(folder / "bin" / "python"), "-e", f"{ROOT}[{EXTRAS}]"]
    run_stage(f"Python {version}: installing Metalmark, JAX and MLX", command, log)
    return folder


def new_log(folder: Path, title: str) -> Path:
    """Return an empty file beside the environment, which is emptied whenever it is made anew."""
    log = folder.with_name(f"{folder.name}-{title.replace(' ', '-')}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    return log


def run_tests(folder: Path, title: str, arguments: tuple[str, ...]) -> tuple[bool, str]:
    """Return whether these tests pass, and pytest's own last line with the names of those that failed."""
    log = new_log(folder, title)
    # Both cores, and a file's tests in one process, as make test runs them.
    pytest = [str(folder / "bin" / "python"), "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    try:
        run_stage(f"Python {folder.name}: {title}", [*pytest, *arguments], log, OMP_NUM_THREADS="1")
        passed = True
    except StageError:
        passed = False
    return passed, summary(log.read_text(errors="replace"), str(log.relative_to(ROOT)))


def summary(output: str, log: str) -> str:
    """Return pytest's last line, and the lines that name what failed."""
    lines = output.splitlines()
    last = next((line.strip("= ") for line in reversed(lines) if re.search(r"\d+ (passed|failed|error)", line)), "")
    failures = [f"    {line}" for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return "\n".join([last or f"pytest did not end; see {log}", *failures])


def main(arguments: list[str]) -> int:
    versions = {python: answer(python, VERSION) for python in arguments or NAMES}
    for python in arguments:
        if versions[python] is None:
            say(f"{python} does not run. Name a Python by its command or its path.")
            return 2
    found = {version: python for python, version in versions.items() if version is not None}
    if not found:
        say(f"None of {', '.join(NAMES)} runs here. Name others: make pythons PYTHONS=/path/to/python3.12")
        return 2
    results: list[tuple[bool, str]] = []
    for version, python in found.items():
        try:
            folder = environment(python, version)
        except StageError as failure:
            results.append((False, f"Python {version}: {failure.title} failed\n{failure.said}"))
            continue
        for title, chosen in (("tests without a framework", (QUICK,)), ("tests of JAX and MLX", WITH_FRAMEWORKS)):
            passed, told = run_tests(folder, title, chosen)
            results.append((passed, f"Python {version}: {title}: {told}"))
    for _, told in results:
        print(told)
    return 0 if all(passed for passed, _ in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
