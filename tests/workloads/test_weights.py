"""Weights: found, fetched and matched, or a message that says which file, which array and what to do."""

from __future__ import annotations

import hashlib
import pickle
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import numpy as np
import pytest

from metalmark import downloads
from metalmark.data.fetch import cache_folder
from metalmark.downloads import listening
from metalmark.errors import FormatError, WeightsError
from metalmark.model.plan import Budget
from metalmark.model.run import Failed
from metalmark.runner.launch import run_cell
from metalmark.workloads import mobilenet_v2, resnet50, vgg16, weights
from tests.workloads.torch_files import SavedTensor, state_pickle, write_legacy, write_zip
from tests.workloads.vision_checks import plan

save_file = pytest.importorskip("safetensors.numpy").save_file
BACKBONE = mobilenet_v2.BACKBONE
BODY = b"these bytes stand for weights"
NAME = f"mobilenet_v2-{hashlib.sha256(BODY).hexdigest()[:8]}.pth"


def test_without_a_home_folder_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (downloads.CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    for word in ("imagenet", "~/net.pth"):
        with pytest.raises(WeightsError, match="home folder is not known") as caught:
            weights.find(word, "mobilenet_v2")
        assert downloads.CACHE_VARIABLE in caught.value.message
    assert weights._shown(tmp_path / "net.pth") == str(tmp_path / "net.pth")
    with pytest.raises(FormatError, match="home folder is not known") as told:
        cache_folder()
    assert downloads.CACHE_VARIABLE in told.value.hint


def good() -> dict[str, np.ndarray]:
    return {**BACKBONE.arrays("none"), "classifier.1.weight": np.zeros((1000, 1280), np.float32)}


def saved(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    save_file(arrays, path)
    return path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """What is published, on this machine; the cache is empty, and the name is right for BODY."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = getattr(self.server, "body", b"")
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.body = BODY  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv(downloads.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "BASE_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setitem(weights.PUBLISHED, "mobilenet_v2", NAME)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_none_is_none() -> None:
    assert weights.find("none", "resnet50") is None


def test_random_weights_are_the_same_every_time() -> None:
    first, second = BACKBONE.arrays("none"), BACKBONE.arrays("none")
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    arrays = {name: array + 1 for name, array in good().items()}
    found = BACKBONE.arrays(str(saved(tmp_path / "mine.safetensors", arrays)))
    assert list(found) == list(BACKBONE.shapes())
    assert all(np.array_equal(array, arrays[name]) for name, array in found.items())


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    path = saved(tmp_path / "half.safetensors", {name: array.astype(np.float16) for name, array in good().items()})
    assert {array.dtype for array in BACKBONE.arrays(str(path)).values()} == {np.dtype(np.float32)}


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    arrays = good()
    del arrays["features.3.conv.1.0.weight"]
    with pytest.raises(WeightsError, match=r"few\.safetensors has no array features\.3\.conv\.1\.0\.weight, of shape"):
        BACKBONE.arrays(str(saved(tmp_path / "few.safetensors", arrays)))


def test_a_wrong_shape_is_told_with_the_right_one(tmp_path: Path) -> None:
    arrays = {**good(), "features.0.0.weight": np.zeros((32, 3, 5, 5), np.float32)}
    wanted = (
        r"wide\.safetensors: the array features\.0\.0\.weight has the shape \(32, 3, 5, 5\), but needs \(32, 3, 3, 3\)"
    )
    with pytest.raises(WeightsError, match=wanted):
        BACKBONE.arrays(str(saved(tmp_path / "wide.safetensors", arrays)))


def test_another_networks_file_says_what_it_holds(tmp_path: Path) -> None:
    path = saved(tmp_path / "other.safetensors", {"encoder.weight": np.zeros(3, np.float32)})
    with pytest.raises(WeightsError, match=r"no array conv1\.weight.* encoder\.weight"):
        resnet50.BACKBONE.arrays(str(path))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("length", [0, 7, 1000])
def test_a_truncated_file(tmp_path: Path, suffix: str, length: int) -> None:
    whole = saved(tmp_path / "whole.safetensors", good()).read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(whole[:length])
    with pytest.raises(WeightsError, match=rf"cut{suffix} can't be read"):
        BACKBONE.arrays(str(path))


@pytest.mark.parametrize(
    ("word", "said"), [("nowhere.safetensors", "is no file here"), (".", "is a folder"), ("imagnet", "is no file here")]
)
def test_a_path_that_is_no_file(word: str, said: str) -> None:
    with pytest.raises(WeightsError, match=f"{said}. Give none, imagenet, or"):
        weights.find(word, "resnet50")


def test_a_kind_of_file_we_do_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.h5"
    path.write_bytes(b"\x89HDF")
    with pytest.raises(WeightsError, match=r"weights\.h5: weights are read from \.safetensors"):
        vgg16.BACKBONE.arrays(str(path))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 + 1",)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(WeightsError, match=r"asks for builtins\.eval"):
        weights.read_pth(path)


NUMBERS = np.arange(6, dtype="<f4")
HUGE = 1 << 62


def written(form: str, folder: Path, tensor: SavedTensor) -> Path:
    if form == "zip":
        return write_zip(folder / "net.pth", {"w": tensor}, {"0": NUMBERS.tobytes()})
    return write_legacy(folder / "net.pth", {"w": tensor}, {"0": (6, NUMBERS.tobytes())})


@pytest.mark.parametrize("form", ["zip", "legacy"])
@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (SavedTensor(offset=1), "past its storage"),
        (SavedTensor(offset=-1), "past its storage"),
        (SavedTensor(stride=(-3, 1)), "past its storage"),
        (SavedTensor(stride=(-HUGE, HUGE), offset=5), "past its storage"),
        (SavedTensor(stride=(HUGE, -HUGE)), "past its storage"),
        (SavedTensor(size=(2, 2), stride=(HUGE, HUGE), offset=-HUGE), "past its storage"),
        (SavedTensor(size=(10**12,), stride=(0,)), "more than 16777216 elements"),
        (SavedTensor(size=(10**6, 10**6), stride=(0, 0)), "more than 16777216 elements"),
        (SavedTensor(size=(10**400,), stride=(0,)), "more than 16777216 elements"),
        (SavedTensor(size=(-2, 3)), "not a whole number"),
        (SavedTensor(size=(2.0, 3)), "not a whole number"),
        (SavedTensor(size=6, stride=1), "not described"),
        (SavedTensor(size={}, stride=[]), "not described"),
        (SavedTensor(size=(2, 3), stride=(1,)), "not described"),
        (SavedTensor(elements=10**15), "long as the file says|shorter than the file says"),
        (SavedTensor(elements=-1), "not described"),
        (SavedTensor(storage="QuantizedStorage"), "which weights do not need"),
    ],
)
def test_a_tensor_outside_of_its_storage_is_refused(tmp_path: Path, form: str, tensor: SavedTensor, said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        weights.read_pth(written(form, tmp_path, tensor))


@pytest.mark.parametrize("form", ["zip", "legacy"])
@pytest.mark.parametrize(
    ("tensor", "held"),
    [
        (SavedTensor(), [[0, 1, 2], [3, 4, 5]]),
        (SavedTensor(size=(3, 2), stride=(1, 3)), [[0, 3], [1, 4], [2, 5]]),
        (SavedTensor(size=(2, 2), stride=(0, 1), offset=4), [[4, 5], [4, 5]]),
        (SavedTensor(size=(3,), stride=(-2,), offset=4), [4, 2, 0]),
        (SavedTensor(size=(1, 2), stride=(HUGE, 1), offset=4), [[4, 5]]),
        (SavedTensor(size=(0, 3), stride=(HUGE, HUGE), offset=HUGE), []),
        (SavedTensor(size=(), stride=(), offset=5), 5),
    ],
)
def test_a_tensor_within_its_storage_is_read(tmp_path: Path, form: str, tensor: SavedTensor, held: object) -> None:
    assert weights.read_pth(written(form, tmp_path, tensor))["w"].tolist() == held


def test_a_file_that_asks_for_more_memory_than_it_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", state_pickle({"w": SavedTensor()}))
        archive.writestr("archive/data/0", bytes(1 << 20))
    with pytest.raises(WeightsError, match="archive/data/0 is larger than the file"):
        weights.read_pth(path)
    # It says: remember this object as number four billion.
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    with pytest.raises(WeightsError, match="counts objects that it does not have"):
        weights.read_pth(path)


def test_a_pickle_that_changes_what_it_made_is_refused(tmp_path: Path) -> None:
    """A view of a tensor as the storage of another, and a storage that is changed after it was checked."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n("
    view = rebuild + storage + b"K\x00K\x01\x85K\x01\x85tR"
    changed = rebuild + storage + b"}X\x05\x00\x00\x00countM\xff\xffsbK\x00M\xff\xff\x85K\x01\x85tR"
    for made in (rebuild + view + b"K\x00K\x06\x85K\x01\x85tR", changed):
        with zipfile.ZipFile(tmp_path / "net.pth", "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02}X\x01\x00\x00\x00w" + made + b"s.")
            archive.writestr("archive/data/0", NUMBERS.tobytes())
        with pytest.raises(WeightsError, match=r"not described as PyTorch does it|changes a storage"):
            weights.read_pth(tmp_path / "net.pth")


def test_imagenet_is_downloaded_once_and_checked(server: ThreadingHTTPServer) -> None:
    path = weights.find("imagenet", "mobilenet_v2")
    assert path == weights.folder() / NAME
    assert path.read_bytes() == BODY
    server.body = b""  # type: ignore[attr-defined]
    assert weights.find("imagenet", "mobilenet_v2") == path
    assert [each.name for each in weights.folder().iterdir()] == [NAME]


def test_what_came_is_not_what_was_published(server: ThreadingHTTPServer) -> None:
    server.body = b"a login page"  # type: ignore[attr-defined]
    with pytest.raises(WeightsError, match=r"not the published file: its SHA-256 begins with \w{8}, not with \w{8}\."):
        weights.find("imagenet", "mobilenet_v2")
    assert not list(weights.folder().iterdir())


@pytest.mark.usefixtures("server")
def test_a_damaged_file_in_the_cache() -> None:
    path = weights.find("imagenet", "mobilenet_v2")
    assert path is not None
    path.write_bytes(BODY[:-1])
    with pytest.raises(WeightsError, match=rf"{NAME} is damaged: its SHA-256 .* Delete it and run again"):
        weights.find("imagenet", "mobilenet_v2")


@pytest.mark.usefixtures("server")
def test_offline_says_what_to_bring_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BASE_URL", "http://127.0.0.1:9/")
    with pytest.raises(WeightsError) as raised:
        weights.find("imagenet", "mobilenet_v2")
    for part in (
        NAME,
        "Connection refused",
        f"http://127.0.0.1:9/{NAME}",
        f"$METALMARK_CACHE/weights/{NAME}",
        "--weights PATH",
    ):
        assert part in raised.value.message


def test_not_published_any_more(server: ThreadingHTTPServer) -> None:
    server.body = b""  # type: ignore[attr-defined]
    with pytest.raises(WeightsError, match="can't be downloaded: the server answered 404"):
        weights.find("imagenet", "mobilenet_v2")


def test_no_users_name_in_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(downloads.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights._shown(tmp_path / "cache" / "a.pth") == "$HOME/cache/a.pth"


def test_the_names_on_the_list_carry_their_hash() -> None:
    assert set(weights.PUBLISHED) == {b.name for b in (resnet50.BACKBONE, mobilenet_v2.BACKBONE, vgg16.BACKBONE)}
    assert all(len(Path(name).stem.rpartition("-")[2]) == 8 for name in weights.PUBLISHED.values())


def hub_names(layers: dict[str, str]) -> dict[str, str]:
    """A layer of transformers holds a convolution and its normalisation; ours has names for both."""
    pairs = {}
    parts = ("weight", "bias", "running_mean", "running_var")
    for theirs, ours in layers.items():
        conv, norm = ours.split(" ")
        pairs[f"{theirs}.convolution.weight"] = f"{conv}.weight"
        pairs |= {f"{theirs}.normalization.{part}": f"{norm}.{part}" for part in parts}
    return pairs


def test_the_hubs_resnet_has_every_array() -> None:
    layers = {"resnet.embedder.embedder": "conv1 bn1"}
    for stage, depth in enumerate((3, 4, 6, 3)):
        for block in range(depth):
            there, here = f"resnet.encoder.stages.{stage}.layers.{block}", f"layer{stage + 1}.{block}"
            layers |= {f"{there}.layer.{k}": f"{here}.conv{k + 1} {here}.bn{k + 1}" for k in range(3)}
            if block == 0:
                layers[f"{there}.shortcut"] = f"{here}.downsample.0 {here}.downsample.1"
    for theirs, ours in hub_names(layers).items():
        assert resnet50.rename(theirs) == resnet50.rename(theirs.removeprefix("resnet.")) == ours
    assert set(hub_names(layers).values()) == set(resnet50.BACKBONE.shapes())
    assert resnet50.rename("classifier.1.weight") == "classifier.1.weight"


def test_the_hubs_mobilenet_has_every_array() -> None:
    layers = {
        "mobilenet_v2.conv_stem.first_conv": "features.0.0 features.0.1",
        "mobilenet_v2.conv_stem.conv_3x3": "features.1.conv.0.0 features.1.conv.0.1",
        "mobilenet_v2.conv_stem.reduce_1x1": "features.1.conv.1 features.1.conv.2",
        "mobilenet_v2.conv_1x1": "features.18.0 features.18.1",
    }
    for block in range(16):
        there, here = f"mobilenet_v2.layer.{block}", f"features.{block + 2}.conv"
        layers[f"{there}.expand_1x1"] = f"{here}.0.0 {here}.0.1"
        layers[f"{there}.conv_3x3"] = f"{here}.1.0 {here}.1.1"
        layers[f"{there}.reduce_1x1"] = f"{here}.2 {here}.3"
    for theirs, ours in hub_names(layers).items():
        assert mobilenet_v2.rename(theirs) == ours
    assert set(hub_names(layers).values()) == set(BACKBONE.shapes())


def test_hub_files_are_loaded(tmp_path: Path) -> None:
    arrays = good()
    arrays["mobilenet_v2.conv_1x1.convolution.weight"] = arrays.pop("features.18.0.weight")
    assert BACKBONE.arrays(str(saved(tmp_path / "model.safetensors", arrays)))


def test_a_cell_without_its_weights_fails_with_the_reason() -> None:
    cell = plan("mobilenet-cifar10", "torch", weights="nowhere.pth")
    outcome = run_cell(msgspec.structs.replace(cell, budget=Budget(steps=1, seconds=0.2))).outcome
    assert isinstance(outcome, Failed)
    assert "nowhere.pth: this is no file here" in outcome.message


def test_a_download_tells_how_far_it_is(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    body = BODY * 1000
    server.body = body  # type: ignore[attr-defined]
    monkeypatch.setitem(weights.PUBLISHED, "mobilenet_v2", f"mobilenet_v2-{hashlib.sha256(body).hexdigest()[:8]}.pth")
    monkeypatch.setattr(downloads, "CHUNK_BYTES", 1000)
    shares: list[float | None] = []
    with listening(shares.append):
        weights.find("imagenet", "mobilenet_v2")
    assert len(shares) >= 29
    assert shares == sorted(shares, key=lambda share: share or 0.0)
    assert shares[-1] == 1.0
