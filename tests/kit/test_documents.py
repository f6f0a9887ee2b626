"""docs/library.md is true: its blocks run, in order, in one script."""

from __future__ import annotations

import re

import metalmark
from tests.conftest import ROOT
from tests.kit.conftest import Script

PAGE = (ROOT / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_examples_run(script: Script) -> None:
    done = script("\n".join(BLOCKS), needs="torch")
    assert done.returncode == 0, done.stderr
    assert "because: " in done.stdout
    assert "squares: completed" in done.stdout
    assert "run1" in done.stdout, "where the training is"
    assert "can't tell" in done.stdout, "one process per cell"
    assert "True training" in done.stdout, "`last` is the training"
    assert "report.html True" in done.stdout
    assert done.stdout.splitlines()[-1].split()[1] == "completed"


def test_the_page_names_the_whole_kit() -> None:
    for name in set(metalmark.__all__) - {"Batch", "Data", "Param", "Recipe", "Task", "Workload", "__version__"}:
        assert f"mm.{name}(" in PAGE, name


def test_the_page_imports_nothing_of_the_inside() -> None:
    assert not re.search(r"from metalmark\.|import metalmark\.", PAGE)


def test_the_python_of_the_readme_is_on_the_page_that_runs() -> None:
    """Each line once is enough: what runs on the page runs in the README."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    page = "\n".join(BLOCKS).splitlines()
    assert [line for line in block.splitlines() if line not in page] == []
