"""Dependencies point one way, and frameworks stay in the files that are named for them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "metalmark"

ROOMS = (
    "errors", "downloads", "scrub", "model", "stats", "data", "machine", "telemetry", "workloads", "feeds", "backends",
    "runner", "training", "store", "doctor", "results", "report", "track", "display", "app", "web", "kit", "cli",
    "__main__",
)  # fmt: skip
"""From the ground up: a room imports only from those before it, so there is no cycle between rooms."""
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "jaxlib", "mlx", "transformers"}
HOMES = {
    "torch": {"torch", "torch_devices", "on_torch"},
    "transformers": {"on_torch"},
    "tensorflow": {"tensorflow", "on_tensorflow"},
    "keras": {"tensorflow", "jax", "keras_common", "on_keras"},
    "jax": {"jax", "on_jax"},
    "jaxlib": {"jax"},
    "mlx": {"mlx", "on_mlx"},
}

FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_one_way(path: Path) -> None:
    here = part(path)
    if here == "__init__":
        return
    for module in imports(path):
        if module.startswith("metalmark."):
            there = module.split(".")[1]
            assert ROOMS.index(there) <= ROOMS.index(here), f"{here} may not import {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_frameworks_stay_at_home(path: Path) -> None:
    for module in imports(path):
        name = module.split(".")[0]
        if name in FRAMEWORKS:
            assert path.stem in HOMES[name], f"{name} is imported in {path.name}"


def test_every_room_is_in_the_order() -> None:
    assert {part(path) for path in FILES} - {"__init__"} == set(ROOMS)


PARENT = """
import sys
sys.argv = ["metalmark", *{arguments!r}]
from metalmark.cli import main
try:
    main()
except SystemExit:
    pass
print(sorted(set(sys.modules) & {forbidden!r}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["bench", "--help"],
        ["train", "--help"],
        ["runs", "list"],
        ["compare", "last", "--by", "framework"],
        ["report"],
        ["list", "workloads"],
        ["list", "frameworks"],
        ["doctor"],
        ["bench", "mnist-mlp", "-f", "torch", "-d", "cpu", "--steps", "10", "-q"],
        ["train", "mnist-mlp", "-f", "torch", "-d", "cpu", "--epochs", "1", "--batch-size", "6000", "-q"],
    ],
    ids=" ".join,
)
def test_the_parent_imports_no_framework(arguments: list[str], tmp_path: Path) -> None:
    code = PARENT.format(arguments=arguments, forbidden=FRAMEWORKS)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "METALMARK_STORE": str(tmp_path / "s.sqlite3")},
    )
    assert run.stderr.strip().splitlines()[-1] == "[]"


def test_the_public_surface_is_what_it_says() -> None:
    import metalmark

    nouns = ["Batch", "Param", "Recipe", "Stopwatch", "Workload", "__version__"]
    verbs = ["device", "loader", "measure", "run", "synchronize", "to_device", "to_numpy"]
    assert metalmark.__all__ == [*nouns, *verbs]
    for name in metalmark.__all__:
        assert getattr(metalmark, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        metalmark.nonsense  # noqa: B018
