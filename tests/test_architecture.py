"""Dependencies point one way, frameworks stay in the files that are named for them, a name means one thing, and the
command line holds no logic."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import run

SOURCE = Path(__file__).parents[1] / "src" / "metalmark"

ROOMS = (
    "errors", "downloads", "scrub", "model", "stats", "data", "machine", "telemetry", "workloads", "feeds", "backends",
    "runner", "training", "store", "doctor", "parity", "results", "watch", "explain", "tune", "cluster",
    "report", "track", "display", "app", "web", "kit", "cli", "__main__",
)  # fmt: skip
"""From the ground up: a room imports only from those before it, so there is no cycle between rooms."""
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "jaxlib", "mlx", "transformers", "lightning", "pytorch_lightning"}
HOMES = {
    "torch": {
        "torch",
        "torch_capture",
        "torch_compiler",
        "torch_devices",
        "torch_recipe",
        "torch_settings",
        "torch_world",
        "on_torch",
    },
    "transformers": {"on_torch", "transformers_callback"},
    "lightning": {"lightning_callback"},
    "pytorch_lightning": {"lightning_callback"},
    "tensorflow": {"tensorflow", "tensorflow_world", "on_tensorflow"},
    "keras": {"tensorflow", "tensorflow_world", "jax", "keras_common", "on_keras", "keras_callback"},
    "jax": {"jax", "jax_world", "on_jax"},
    "jaxlib": {"jax"},
    "mlx": {"mlx", "mlx_world", "on_mlx"},
}

FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}

CLI = sorted((SOURCE / "cli").glob("*.py"))
CLI_ROOMS = {"app", "report", "display", "errors", "cli"}
"""A verb parses, calls a use case and prints."""
CLI_ALSO = {
    "backends.catalog": "shell completion: names, without loading a use case",
    "backends.environment": "shell completion: names, without loading a use case",
    "workloads.catalog": "shell completion: names, without loading a use case",
    "doctor.catalog": "doctor --explain looks a check up by its name",
    "doctor.recognise": "doctor --for is a function of its text",
    "doctor.collect": "env reads what needs no process",
    "doctor.environment": "env reads what needs no process",
    "model.plan": "shell completion: devices, dtypes and modes by name",
    "store.row": "shell completion: the type of what a use case returns",
    "model.codec": "schema prints the schema of the codec",
    "results.derived": "train prints the flags of what it trained",
    "scrub": "what others wrote is printed as text",
    "track.queue": "the queue of trackers is track's own; no use case stands between",
    "track.launch": "the queue of trackers is track's own; no use case stands between",
    "track.waiting": "the queue of trackers is track's own; no use case stands between",
    "web.app": "serve starts the page, which is a client of the use cases too",
}
MOST_CLI_LINES = 2200


def imports(path: Path, *, at_the_top: bool = False) -> Iterator[str]:
    """The modules that a file imports; `at_the_top`: those that importing the file imports."""
    nodes = _at_the_top(TREES[path].body) if at_the_top else ast.walk(TREES[path])
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} has a relative import"
            if node.module in ("metalmark", "metalmark.app"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _at_the_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _at_the_top(getattr(node, inner, []))


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_one_way(path: Path) -> None:
    here = part(path)
    if here == "__init__":
        return
    for module in imports(path):
        if module.startswith("metalmark.") and module != "metalmark.__version__":
            there = module.split(".")[1]
            assert ROOMS.index(there) <= ROOMS.index(here), f"{here} may not import {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_frameworks_stay_at_home(path: Path) -> None:
    for module in imports(path):
        name = module.split(".")[0]
        if name in FRAMEWORKS:
            assert path.stem in HOMES[name], f"{name} is imported in {path.name}"


def test_nothing_is_chosen_by_a_ladder_of_frameworks() -> None:
    """`if framework == "torch": ... elif framework == "mlx": ...` forgets the next one: ask its own file."""
    for path, tree in TREES.items():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            compared = [node for node in ast.walk(function) if isinstance(node, ast.Compare)]
            names = {
                value.value
                for node in compared
                for value in (node.left, *node.comparators)
                if isinstance(value, ast.Constant) and value.value in FRAMEWORKS
            }
            assert len(names) < 2, f"{path.relative_to(SOURCE)}: {function.name} tells {sorted(names)} apart by name"


def test_every_room_is_in_the_order() -> None:
    assert {part(path) for path in FILES} - {"__init__"} == set(ROOMS)


def test_a_class_has_a_name_of_its_own() -> None:
    """Outside of workloads/, where each framework's file has the same few."""
    homes: dict[str, list[str]] = {}
    for path, tree in TREES.items():
        if part(path) != "workloads":
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_the_command_line_parses_calls_and_prints() -> None:
    used = set()
    for path in CLI:
        for module in imports(path):
            _, _, name = module.partition("metalmark.")
            if name and name.split(".")[0] not in CLI_ROOMS and name != "__version__":
                assert name in CLI_ALSO or _only_for_types(path, module), f"{path.name} imports {module}"
                used.add(name)
        for module in imports(path, at_the_top=True):
            # Else `metalmark --help` and every wrong option would take as long as a use case takes to import.
            if module.startswith("metalmark."):
                assert module.split(".")[1] in ("cli", "errors"), f"{path.name} imports {module} at the top"
    assert set(CLI_ALSO) <= used, "an exception that nothing needs any more"
    assert sum(len(path.read_text().splitlines()) for path in CLI) <= MOST_CLI_LINES


def _only_for_types(path: Path, module: str) -> bool:
    guarded = [node for node in TREES[path].body if isinstance(node, ast.If)]
    inside = [node for block in guarded for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    everywhere = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.ImportFrom)]
    count = [sum(node.module == module for node in nodes) for nodes in (inside, everywhere)]
    return count[0] == count[1]


PARENT = """
import sys
sys.argv = ["metalmark", *{arguments!r}]
from metalmark.cli import main
try:
    main()
finally:
    print(sorted(set(sys.modules) & {forbidden!r}), file=sys.stderr)
"""


def parent(arguments: list[str], store_file: Path, *also: str) -> subprocess.CompletedProcess[str]:
    """The command, whose last line on stderr says which of the frameworks, and of these modules, it imported itself."""
    code = PARENT.format(arguments=arguments, forbidden=FRAMEWORKS | {*also})
    return run([sys.executable, "-c", code], METALMARK_STORE=str(store_file))


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
        # tests/cli/test_doctor.py looks at `doctor`, which asks every framework.
        ["bench", "mnist-mlp", "-f", "torch", "-d", "cpu", "--steps", "10", "--seconds", "0.2", "-q"],
        ["train", "mnist-mlp", "-f", "torch", "-d", "cpu", "--epochs", "1", "--batch-size", "6000", "-q"],
    ],
    ids=" ".join,
)
def test_the_parent_imports_no_framework(arguments: list[str], tmp_path: Path) -> None:
    # What only reads the store, or nothing at all, is there at once: NumPy takes longer to import than all the rest.
    quick = arguments in (["--help"], ["bench", "--help"], ["train", "--help"], ["runs", "list"])
    done = parent(arguments, tmp_path / "s.sqlite3", *(["numpy"] if quick else []))
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_the_public_surface_is_what_it_says() -> None:
    import metalmark

    nouns = ["Batch", "Data", "Param", "Recipe", "Stopwatch", "Task", "Workload", "__version__"]
    use_cases = ["bench", "compare", "doctor", "explain", "parity", "report", "runs", "train", "tune"]
    kit = ["device", "loader", "measure", "run", "synchronize", "to_device", "to_numpy"]
    kit += ["keras_callback", "lightning_callback", "transformers_callback"]
    assert metalmark.__all__ == [*nouns, *sorted(use_cases + kit)]
    for name in metalmark.__all__:
        assert getattr(metalmark, name) is not None
    assert all(callable(getattr(metalmark, name)) for name in (*use_cases, *kit))
    with pytest.raises(AttributeError, match="no attribute"):
        metalmark.nonsense  # noqa: B018
