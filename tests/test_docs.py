"""The README is true: each command in it runs, in order, as a reader would type it."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
BIN = ROOT / ".venv" / "bin"


def environment(store: Path) -> dict[str, str]:
    return {**os.environ, "METALMARK_STORE": str(store), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def run(command: list[str], store: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(store), cwd=cwd, capture_output=True, text=True, check=False, timeout=280
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the checkout, so that what a command writes is not left in the real one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def test_the_readme_has_its_commands() -> None:
    assert "make demo" in COMMANDS
    assert "make test" in COMMANDS
    assert sum(command.startswith("metalmark ") for command in COMMANDS) >= 10


@pytest.mark.timeout(900)
def test_every_metalmark_command_of_the_readme(checkout: Path) -> None:
    if not (BIN / "metalmark").exists():
        pytest.skip("no .venv: run through make test")
    for command in COMMANDS:
        if command.startswith("make "):
            continue
        done = run(shlex.split(command), checkout / "store.sqlite3", checkout)
        # The doctor's exit code is its finding: a busy machine is a warning, 1.
        fine = {0, 1} if command == "metalmark doctor" else {0}
        assert done.returncode in fine, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout or done.stderr, command


@pytest.mark.timeout(600)
def test_make_demo(tmp_path: Path) -> None:
    """The real target with its real frameworks, at its smallest."""
    if not (BIN / "metalmark").exists():
        pytest.skip("no .venv: run through make test")
    page = tmp_path / "pages" / "demo.html"
    # Within another make it would print which folder it is in.
    words = [
        "--no-print-directory",
        "demo",
        "SECONDS=0.1",
        "BATCH=1",
        "MORE=--steps 20 --pixels 32",
        f"REPORT={page}",
        "OPEN=",
    ]
    done = run(["make", *words], tmp_path / "store.sqlite3", ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for framework in ("torch", "tensorflow", "jax", "mlx"):
        assert len(re.findall(rf"\b{framework} +cpu .*loss", done.stdout)) == 2, done.stdout
    assert "not run:" in done.stdout
    assert done.stdout.rstrip().endswith(str(page)), "it ends with where the report is"
    assert "Throughput: conv256" in page.read_text()
    assert "not run:" in page.read_text(), "and says what was not tried, as the command did"
    assert str(tmp_path / "store.sqlite3") in done.stderr


def test_the_workload_pages_say_what_the_catalogue_says() -> None:
    done = subprocess.run(
        [sys.executable, "tools/workload_pages.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_test_that_the_page_for_macs_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "mac.md").read_text())
    assert len(named) >= 40
    for file, function in named:
        assert f"def {function}(" in (ROOT / file).read_text(), f"{file}::{function}"


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "metalmark"


def test_each_hop_of_the_walk_is_there() -> None:
    hops = re.findall(r"^(\d+)\. `([\w/]+\.py)::(\w+)` ", ARCHITECTURE, re.MULTILINE)
    assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1))
    assert 10 <= len(hops) <= 15
    for _, file, function in hops:
        nodes = ast.walk(ast.parse((SOURCE / file).read_text()))
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in nodes), f"{file}::{function}"


def test_the_page_of_the_architecture_has_every_room_in_the_order_of_imports() -> None:
    rooms = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
    found = {
        path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))
    }
    assert set(rooms) == found - {"__init__", "__main__"}
    for number, room in enumerate(rooms):
        place = SOURCE / room
        for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
            imported = set(re.findall(r"^\s*(?:from|import) metalmark\.(\w+)", path.read_text(), re.MULTILINE))
            assert imported <= set(rooms[number:]), f"{path.relative_to(SOURCE)}: {imported - set(rooms[number:])}"
    drawing = ARCHITECTURE.partition("```text")[2].partition("```")[0]
    assert [room for room in rooms if not re.search(rf"\b{room}\b", drawing)] == []


def test_files_that_the_documents_name_are_there() -> None:
    """Code moves; what the pages say of it must move along."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        if page.name in ("decisions.md", "mac.md"):  # what was; and other people's files
            continue
        for name in re.findall(r"`((?:benchmarks|examples|tools|tests|src)/[\w/.]+\.\w+)[`:]", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
        for name in re.findall(r"\bmetalmark\.((?:\w+\.)+\w+)\b", page.read_text()):
            parts = name.split(".")
            if parts[0] in {path.name for path in SOURCE.iterdir() if path.is_dir()}:
                assert any((SOURCE.joinpath(*parts[:n])).with_suffix(".py").exists() for n in (1, 2, 3)), (
                    f"{page.name}: {name}"
                )


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 130
    first_screen = README.splitlines()[:40]
    assert any(line.startswith("![") for line in first_screen)
    assert "make demo" in first_screen
    for picture in (ROOT / "docs").glob("*.png"):
        assert picture.stat().st_size < 200_000, picture.name


def test_ci_runs_the_readmes_own_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


def test_links_of_the_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
