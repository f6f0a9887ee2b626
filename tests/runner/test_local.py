"""A user's files: found by the worker, and named in a record without where they lie."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from metalmark.errors import UsageError
from metalmark.model.codec import decode_export
from metalmark.model.measurement import Completed
from metalmark.model.plan import Feed, Mode
from metalmark.model.run import Failed
from metalmark.model.workload import Param, WorkloadInfo
from metalmark.runner.values import fingerprint, localise, localise_params
from metalmark.scrub import place
from tests.conftest import Cli

WEIGHTS = Param("weights", "none", choices=("none", "imagenet"), path=True)
INFO = WorkloadInfo(name="w", title="", params=(WEIGHTS,), modes=tuple(Mode), frameworks=("torch",))


def idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder of small IDX files under MNIST's names."""
    folder = tmp_path / "secret" / "digits"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 64), ("t10k", 16)):
        idx(folder / f"{name}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28)))
        idx(folder / f"{name}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    return folder


def test_a_path_becomes_a_name_and_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(b"weights")
    words, paths = localise(f"none,{file}", fixed=["none"], what="--weights")
    none, label = words.split(",")
    assert none == "none"
    assert label == f"net.safetensors@{fingerprint(file)[:12]}"
    assert paths == {label: str(file)}
    given, found = localise_params([INFO], {"weights": str(file)})
    assert given == {"weights": label}
    assert found == paths
    with pytest.raises(UsageError, match="no file or folder"):
        localise("nowhere", fixed=["none"], what="--weights")


def test_other_contents_have_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1")
    first = fingerprint(file), fingerprint(tmp_path)
    file.write_bytes(b"2")
    assert (fingerprint(file), fingerprint(tmp_path)) != first


def test_what_the_finder_leaves_behind_changes_no_digest(tmp_path: Path) -> None:
    folder = tmp_path / ".hidden" / "data"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "one.jpg").write_bytes(b"1")
    first = fingerprint(folder)
    (folder / ".DS_Store").write_bytes(b"where the windows were")
    (folder / "cats" / "._one.jpg").write_bytes(b"attributes")
    (folder / "cats" / "Icon\r").write_bytes(b"")
    (folder / ".Spotlight-V100").mkdir()
    (folder / ".Spotlight-V100" / "index").write_bytes(b"words")
    assert fingerprint(folder) == first
    (folder / "cats" / "Icon").write_bytes(b"a file of the user's")
    assert fingerprint(folder) != first
    assert fingerprint(folder / ".DS_Store") != fingerprint(folder / "cats" / "._one.jpg"), "named, it counts"


def test_a_home_folder_that_is_not_known_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(UsageError, match="home folder is not known") as caught:
        localise("~/net.pth", fixed=["none"], what="--weights")
    assert "whole path" in caught.value.hint


def test_real_data_by_path_and_no_path_in_the_record(cli: Cli, digits: Path) -> None:
    words = ("bench", "mnist-mlp", "-f", "torch", "-d", "cpu", "--steps", "10", "--seconds", "0.2", "--json")
    run = cli(*words, "--data", digits, "--data-from", "resident,pipeline")
    assert run.returncode == 0, run.stderr
    records = decode_export(run.stdout.encode(), source="x")
    assert [record.plan.feed for record in records] == [Feed.RESIDENT, Feed.PIPELINE]
    for record in records:
        assert isinstance(record.outcome, Completed)
        assert record.plan.data.startswith("digits@")
        assert "mnist" in record.outcome.data
    assert "secret" not in run.stdout
    shown = cli("runs", "show", "last")
    assert records[0].plan.data in shown.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", b"not gzip", "train-images-idx3-ubyte.gz"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\x01\0\0\0\x10", mtime=0), "t10k-labels-idx1-ubyte.gz"),
    ],
)
def test_damaged_data_names_the_file(cli: Cli, digits: Path, name: str, content: bytes, message: str) -> None:
    (digits / name).write_bytes(content)
    run = cli("bench", "mnist-mlp", "-f", "torch", "-d", "cpu", "--data", digits, "--steps", "10", "--json")
    assert run.returncode == 1
    (record,) = decode_export(run.stdout.encode(), source="x")
    assert isinstance(record.outcome, Failed)
    assert message in record.outcome.message
    assert "secret" not in run.stdout


def test_no_data_in_silence(cli: Cli, tmp_path: Path) -> None:
    """Asked for real data that can't be had: a cell that says so, never synthetic numbers."""
    run = cli(
        *("bench", "mnist-mlp", "-f", "torch", "-d", "cpu", "--data", "real", "--steps", "5"),
        METALMARK_CACHE=str(tmp_path),
        http_proxy="http://127.0.0.1:9",
        https_proxy="http://127.0.0.1:9",
    )
    assert run.returncode == 1
    assert "unsupported" in run.stdout
    assert "train-images-idx3-ubyte.gz" in run.stdout
    assert "MD5" in run.stdout


def test_places_are_told_from_the_home_folder() -> None:
    assert place(Path.home() / ".cache" / "metalmark") == "~/.cache/metalmark"
    assert place(Path("/somewhere/else")) == "else"
