"""Where a network's weights come from: nowhere, the published file in the user's cache, or a file of the user's own.

Every message says all there is to say in one line: it crosses to the command's process as a failed cell.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from metalmark.downloads import Meter
from metalmark.errors import NotInstalledError, WeightsError
from metalmark.workloads import pth

VARIABLE = "METALMARK_CACHE"
NONE, IMAGENET = "none", "imagenet"
BASE_URL = "https://download.pytorch.org/models/"
PUBLISHED = {
    "resnet50": "resnet50-0676ba61.pth",
    "mobilenet_v2": "mobilenet_v2-b0353104.pth",
    "vgg16": "vgg16-397923af.pth",
}
"""torchvision's files; the name of each ends in the beginning of its SHA-256."""
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 20


def find(word: str, architecture: str) -> Path | None:
    """The file that `--weights` names; None for none. Downloads what `imagenet` stands for, once, checked."""
    if word == NONE:
        return None
    if word == IMAGENET:
        return _published(PUBLISHED[architecture])
    with _known_home(word):
        path = Path(word).expanduser()
    if path.is_file():
        return path
    what = "is a folder" if path.is_dir() else "is no file here"
    raise WeightsError(
        f"--weights {path.name or word}: this {what}. Give none, imagenet, or a .safetensors or .pth file."
    )


def load(path: Path, shapes: Mapping[str, tuple[int, ...]], rename: Callable[[str], str]) -> dict[str, np.ndarray]:
    """The arrays of these names from a file, each of the shape it must have; others, such as a top, are left."""
    found = {rename(name): array for name, array in _read(path).items()}
    for name, shape in shapes.items():
        if name not in found:
            others = ", ".join(sorted(set(found) - set(shapes))[:3]) or "nothing else"
            raise WeightsError(f"{path.name} has no array {name}, of shape {shape}. What it has beside: {others}.")
        if found[name].shape != shape:
            raise WeightsError(f"{path.name}: the array {name} has the shape {found[name].shape}, but needs {shape}.")
    return {name: np.ascontiguousarray(found[name], np.float32) for name in shapes}


def folder() -> Path:
    """METALMARK_CACHE/weights, or weights under the user's cache folder."""
    given = os.environ.get(VARIABLE)
    with _known_home(given or "imagenet"):
        if not given:
            import platformdirs

            given = platformdirs.user_cache_dir("metalmark", appauthor=False)
        return Path(given).expanduser() / "weights"


@contextmanager
def _known_home(word: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise WeightsError(
            f"{word}: this user's home folder is not known. Give --weights a whole path, or name a folder for "
            f"downloads with {VARIABLE}."
        ) from error


def _published(name: str) -> Path:
    path = folder() / name
    url = BASE_URL + name
    if not path.exists():
        _download(url, path)
    elif wrong := _mismatch(path, name):
        raise WeightsError(f"{_shown(path)} is damaged: {wrong}. Delete it and run again, or put {url} there whole.")
    return path


def _download(url: str, path: Path) -> None:
    # Imported here: it takes a while, and only a download needs it.
    from pooch import HTTPDownloader  # type: ignore[import-untyped]

    # Two workers may download at once: each writes a file of its own, and the last to finish wins with the same bytes.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        HTTPDownloader(chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S, progressbar=Meter())(url, str(part), None)
        wrong = _mismatch(part, path.name)
        if wrong:
            raise WeightsError(f"{url} came, but it is not the published file: {wrong}. {_by_hand(url, path)}")
        part.replace(path)
    except OSError as error:  # the errors of requests are of this kind too
        raise WeightsError(f"{path.name} can't be downloaded: {_reason(error)}. {_by_hand(url, path)}") from error
    finally:
        part.unlink(missing_ok=True)


def _by_hand(url: str, path: Path) -> str:
    return f"Bring {url} from elsewhere to {_shown(path)}, or name a file with --weights PATH."


def _reason(error: BaseException) -> str:
    """The innermost cause: requests wraps the one useful line in three others."""
    while error.__context__ is not None:
        error = error.__context__
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:120]


def _mismatch(path: Path, name: str) -> str:
    """How the file's hash differs from the one in its published name; empty if it does not."""
    wanted = Path(name).stem.rpartition("-")[2]
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if got.startswith(wanted) else f"its SHA-256 begins with {got[: len(wanted)]}, not with {wanted}"


def _shown(path: Path) -> str:
    """As a shell takes it, without the user's name: messages are stored with the records, less their paths."""
    if os.environ.get(VARIABLE):
        return f"${VARIABLE}/weights/{path.name}"
    try:
        return f"$HOME/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # it is not in the home folder, or no home folder is known
        return str(path)


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".pth", ".pt", ".bin"):
        return pth.read(path)
    raise WeightsError(f"{path.name}: weights are read from .safetensors, .pth, .pt or .bin files, not from this kind.")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise NotInstalledError(f"{path.name} needs the package safetensors: pip install safetensors") from error
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path.name} can't be read as safetensors; it may be cut short: {error}") from error
