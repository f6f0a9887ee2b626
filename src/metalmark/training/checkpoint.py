"""A training's whole state in one safetensors file, written whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from metalmark.errors import FormatError, NotInstalledError
from metalmark.machine.durable import flush_to_drive
from metalmark.model.codec import refuse_newer
from metalmark.model.training import Epoch
from metalmark.training.base import State

SCHEMA = 1
KEY = "metalmark"


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What the file's metadata says of its arrays. The curve is in it: it can't disagree with the weights."""

    schema: int = SCHEMA
    training: str
    framework: str
    data_digest: str
    epochs: tuple[Epoch, ...]


def save(path: Path, checkpoint: Checkpoint, state: State) -> None:
    save_file = _package("save_file")
    beside = path.with_name(path.name + ".part")
    arrays = {name: np.asarray(array, order="C") for name, array in state.items()}
    save_file(arrays, beside, metadata={KEY: msgspec.json.encode(checkpoint).decode()})
    with beside.open("rb") as file:
        flush_to_drive(file.fileno())
    beside.replace(path)


def share(path: Path, other: Path) -> None:
    """The same file under another name, which later writes of `path` do not touch."""
    beside = other.with_name(other.name + ".part")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:  # a file system without links
        shutil.copyfile(path, beside)
    beside.replace(other)


def load(path: Path) -> tuple[Checkpoint, State]:
    safe_open = _package("safe_open")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY, "")
            checkpoint = msgspec.json.decode(text, type=Checkpoint)
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except Exception as error:  # safetensors raises kinds of its own, which change with its versions
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise FormatError(
            f"{path.name} is damaged or no checkpoint of Metalmark: {why}",
            hint="Delete it to begin again; best.safetensors, if there, holds an earlier epoch.",
        ) from error
    refuse_newer(checkpoint.schema, SCHEMA, path.name)
    return checkpoint, state


def _package(name: str):  # type: ignore[no-untyped-def]
    try:
        import safetensors
        from safetensors.numpy import save_file
    except ImportError as error:
        raise NotInstalledError(
            "Checkpoints need the package safetensors, which is not installed.", hint="pip install safetensors"
        ) from error
    return {"save_file": save_file, "safe_open": safetensors.safe_open}[name]
