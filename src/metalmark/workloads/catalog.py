"""Name → workload, lazily: built-ins, entry points `metalmark.workloads`, and a user's own `file.py:name`."""

import hashlib
import importlib.util
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from metalmark.errors import UsageError, did_you_mean
from metalmark.model.workload import Workload
from metalmark.workloads.plain import plain_workload

BUILT_IN: dict[str, str] = {
    "mnist-mlp": "metalmark.workloads.perceptron:mnist_mlp",
    "conv256": "metalmark.workloads.conv256:WORKLOAD",
    "bert": "metalmark.workloads.bert:WORKLOAD",
    "gpt": "metalmark.workloads.gpt:WORKLOAD",
    "resnet50-transfer": "metalmark.workloads.resnet50:WORKLOAD",
    "mobilenet-cifar10": "metalmark.workloads.mobilenet_v2:WORKLOAD",
    "vgg16-flowers": "metalmark.workloads.vgg16:WORKLOAD",
    "input-pipeline": "metalmark.workloads.perceptron:input_pipeline",
    "ceiling-matmul": "metalmark.workloads.ceiling:matmul",
    "ceiling-copy": "metalmark.workloads.ceiling:copy",
    "fake": "metalmark.workloads.fake:WORKLOAD",
}
HIDDEN = {"ceiling-matmul", "ceiling-copy", "fake"}
"""Workloads of other verbs and of tests: they run by name, and are in no list."""
GROUP = "metalmark.workloads"


def names() -> list[str]:
    return [*BUILT_IN, *(point.name for point in entry_points(group=GROUP) if point.name not in BUILT_IN)]


def shown_names() -> list[str]:
    return [name for name in names() if name not in HIDDEN]


def is_file(word: str) -> bool:
    """`my_net.py:my_net` rather than a name of the catalogue."""
    path, _, name = word.rpartition(":")
    return path.endswith(".py") and bool(name)


def split(word: str) -> tuple[Path, str]:
    path, _, name = word.rpartition(":")
    return Path(path), name


def load(word: str, *, source: str = "") -> Workload:
    """The workload of that name; for a user's own, `source` is its file and `word` ends in `:name`."""
    if is_file(word):
        path, name = split(word)
        return load_file(Path(source) if source else path, name)
    target = BUILT_IN.get(word)
    if target is None:
        points = {point.name: point.value for point in entry_points(group=GROUP)}
        target = points.get(word)
    if target is None:
        raise unknown(word)
    module, _, attribute = target.partition(":")
    workload = getattr(import_module(module), attribute)
    if not isinstance(workload, Workload):
        raise UsageError(f"The entry point {word!r} is a {type(workload).__name__}, not a Workload.")
    return workload


def load_file(path: Path, name: str) -> Workload:
    """Runs the user's file: in a worker or a describing process only, never in the command's own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path.name} can't be read as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    workload = getattr(module, name, None)
    if workload is not None and not isinstance(workload, Workload):
        workload = plain_workload(workload, name, module) or workload
    if isinstance(workload, Workload):
        object.__setattr__(workload, "origin", str(path))
        return workload
    found = [key for key, value in vars(module).items() if isinstance(value, Workload)]
    what = "nothing" if workload is None else f"a {type(workload).__name__}"
    raise UsageError(
        f"{path.name} holds {what} called {name!r}, neither a Workload nor a model.",
        hint=f"It has: {', '.join(found)}."
        if found
        else "Name a torch.nn.Module, keras.Model or mlx.nn.Module, a function that makes one, or a Workload.",
    )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unknown(word: str) -> UsageError:
    shown = shown_names()
    return UsageError(
        f"There is no workload {word!r}{did_you_mean(word, shown)}",
        hint=f"Workloads: {', '.join(shown)}, or your own file.py:name.",
    )
