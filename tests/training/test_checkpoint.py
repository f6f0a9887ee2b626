"""A checkpoint is there whole or not at all, and says so when it is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from metalmark.errors import FormatError
from metalmark.training.folder import Checkpoint, load_checkpoint, save_checkpoint, share_file

WHAT = Checkpoint(training="training0", framework="torch", data_digest="d", epochs=())
STATE = {
    "model.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "optimizer.step": np.array(7, np.int64),
    "random.cpu": np.arange(5, dtype=np.uint8),
    "optimizer.transposed": np.arange(6.0).reshape(2, 3).T,
}


def test_arrays_come_back_bit_for_bit(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last", WHAT, STATE)
    what, state = load_checkpoint(tmp_path / "last")
    assert what == WHAT
    assert state.keys() == STATE.keys()
    for name, array in STATE.items():
        assert (state[name].dtype, state[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(state[name], array)


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last"
    save_checkpoint(path, WHAT, STATE)

    def half(_: object, file: Path, **__: object) -> None:
        file.write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(safetensors.numpy, "save_file", half)
    with pytest.raises(OSError, match="full"):
        save_checkpoint(path, WHAT, {})
    assert load_checkpoint(path)[1].keys() == STATE.keys()


def test_a_shared_file_stays_when_the_first_is_written_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "best", WHAT, STATE)
    share_file(tmp_path / "best", tmp_path / "last")
    save_checkpoint(tmp_path / "last", WHAT, {"model.other": np.zeros(1)})
    assert load_checkpoint(tmp_path / "best")[1].keys() == STATE.keys()


@pytest.mark.parametrize("damage", ["cut", "rubbish", "foreign"])
def test_damaged_files_are_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, WHAT, STATE)
    whole = path.read_bytes()
    if damage == "foreign":
        safetensors.numpy.save_file({"a": np.zeros(1)}, path)
    else:
        path.write_bytes(whole[:-9] if damage == "cut" else b"rubbish" * 9)
    with pytest.raises(FormatError, match=r"last\.safetensors is damaged or no checkpoint"):
        load_checkpoint(path)
