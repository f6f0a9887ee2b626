"""What is written whole is on the drive, on macOS too, where fsync stops at the drive's own cache."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from metalmark.machine import durable
from metalmark.machine.durable import write_whole
from metalmark.training.folder import Checkpoint, save_checkpoint

FULL = 51


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes which call is made; the descriptor must be open."""
    made: list[str] = []

    def fcntl(descriptor: int, command: int) -> int:
        os.fstat(descriptor)
        assert command == FULL
        made.append("F_FULLFSYNC")
        return 0

    def fsync(descriptor: int) -> None:
        os.fstat(descriptor)
        made.append("fsync")

    monkeypatch.setattr(durable, "fcntl", SimpleNamespace(fcntl=fcntl, F_FULLFSYNC=FULL))
    monkeypatch.setattr(os, "fsync", fsync)
    return made


def on(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(durable, "sys", SimpleNamespace(platform=system))


@pytest.mark.parametrize(("system", "call"), [("darwin", "F_FULLFSYNC"), ("linux", "fsync")])
def test_each_system_is_asked_in_its_own_way(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, call: str
) -> None:
    on(monkeypatch, system)
    write_whole(tmp_path / "file", b"all of it")
    assert calls == [call]
    assert (tmp_path / "file").read_bytes() == b"all of it"
    pytest.importorskip("safetensors")
    made = Checkpoint(training="t", framework="torch", data_digest="d", epochs=())
    save_checkpoint(tmp_path / "last.safetensors", made, {"model.w": np.zeros(2)})
    assert calls == [call, call]


def test_a_file_system_without_it_gets_the_next_best(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unsupported(_descriptor: int, _command: int) -> int:
        raise OSError(45, "Operation not supported")

    on(monkeypatch, "darwin")
    monkeypatch.setattr(durable.fcntl, "fcntl", unsupported)
    write_whole(tmp_path / "file", b"all of it")
    assert calls == ["fsync"]
