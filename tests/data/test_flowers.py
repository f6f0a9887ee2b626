from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metalmark.data import flowers
from metalmark.data.flowers import ARCHIVE, LABELS, SETS, divide, image_name, load_flowers
from metalmark.errors import FormatError
from tests.data.files import member, picture, tar_bytes
from tests.data.test_mat import mat

COUNT = 40
CLASS_OF = np.arange(COUNT) % 4 + 1


def write_flowers(folder: Path, *, unpacked: bool = False, labels: np.ndarray = CLASS_OF, images: int = COUNT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.arange(1, COUNT + 1, dtype=np.uint16)[np.newaxis]
    (folder / LABELS).write_bytes(mat(labels=labels.astype(np.uint8)[np.newaxis]))
    (folder / SETS).write_bytes(mat(trnid=ids[:, :8], valid=ids[:, 8:16], tstid=ids[:, 16:]))
    pictures = {image_name(number): picture(number) for number in range(1, images + 1)}
    if unpacked:
        (folder / "jpg").mkdir()
        for name, data in pictures.items():
            (folder / "jpg" / name).write_bytes(data)
    else:
        (folder / ARCHIVE).write_bytes(tar_bytes([member(f"jpg/{name}", data) for name, data in pictures.items()]))
    return folder


@pytest.mark.parametrize("unpacked", [False, True], ids=["tgz", "jpg"])
def test_published_layout(tmp_path: Path, unpacked: bool) -> None:
    dataset = load_flowers(write_flowers(tmp_path, unpacked=unpacked), pixels=16)
    assert dataset.test is not None
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [32, 4, 4]
    assert "given files, not verified; split 32/4/4, training on the official test set" in dataset.source
    assert len(dataset.train.classes) == 102
    named = [set(split.images.names) for split in (dataset.train, dataset.validation, dataset.test)]
    assert {image_name(number) for number in range(17, 41)} < named[0], "the official test set is trained on"
    assert sum(map(len, named)) == len(set.union(*named)) == COUNT, "an image stands in two splits"
    first = dataset.validation.images.names[0]
    assert dataset.validation.labels[0] + 1 == CLASS_OF[int(first[6:11]) - 1]
    assert dataset.validation.images[np.array([0, 1])].shape == (2, 16, 16, 3)


def test_the_same_data_packed_and_unpacked(tmp_path: Path) -> None:
    one = load_flowers(write_flowers(tmp_path / "one"), pixels=16)
    two = load_flowers(write_flowers(tmp_path / "two", unpacked=True), pixels=16)
    assert one.digest == two.digest
    assert one.validation.images.names == two.validation.images.names


def test_the_real_sizes_give_the_experiments_split() -> None:
    """8,189 images of 102 classes, 10 of each in the official training and in the validation set."""
    labels = np.concatenate([np.repeat(np.arange(1, 103), 20), np.arange(6149) % 102 + 1])
    ids = np.random.default_rng(0).permutation(np.arange(1, 2041))
    parts = divide(labels, ids[:1020], ids[1020:], np.arange(2041, 8190), Path("setid.mat"))
    assert [len(part) for part in parts] == [6552, 818, 819]
    assert len(np.unique(np.concatenate(parts))) == 8189
    for part in parts[1:]:
        assert set(np.bincount(labels[part - 1])[1:].tolist()) <= {7, 8, 9}, "a class is over- or under-represented"


def test_verified_when_the_three_files_are_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metalmark.data.fetch import PublishedFiles
    from metalmark.data.files import md5_of

    write_flowers(tmp_path)
    files = {name: md5_of(tmp_path / name) for name in (ARCHIVE, LABELS, SETS)}
    monkeypatch.setitem(flowers.PUBLISHED, "flowers-102", PublishedFiles(address="x", files=files))
    assert "official files, md5 verified" in load_flowers(tmp_path, pixels=8).source


@pytest.mark.parametrize("missing", [ARCHIVE, LABELS, SETS])
def test_a_missing_file(tmp_path: Path, missing: str) -> None:
    write_flowers(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(FormatError, match=f"has n.*{missing}") as caught:
        load_flowers(tmp_path, pixels=8)
    assert "https://" in caught.value.hint


@pytest.mark.parametrize("unpacked", [False, True])
def test_a_missing_image(tmp_path: Path, unpacked: bool) -> None:
    write_flowers(tmp_path, unpacked=unpacked, images=COUNT - 1)
    with pytest.raises(FormatError, match=r"has no image_00040\.jpg"):
        load_flowers(tmp_path, pixels=8)


def test_labels_and_sets_that_do_not_fit(tmp_path: Path) -> None:
    write_flowers(tmp_path, labels=np.where(CLASS_OF == 4, 103, CLASS_OF))
    with pytest.raises(FormatError, match="from 1 to 103"):
        load_flowers(tmp_path, pixels=8)
    (tmp_path / LABELS).write_bytes(mat(labels=CLASS_OF[:39].astype(np.uint8)[np.newaxis]))
    with pytest.raises(FormatError, match="not each of the 39 images once"):
        load_flowers(tmp_path, pixels=8)
    (tmp_path / LABELS).write_bytes(mat(other=CLASS_OF.astype(np.uint8)[np.newaxis]))
    with pytest.raises(FormatError, match=r"imagelabels\.mat .*no whole numbers called labels"):
        load_flowers(tmp_path, pixels=8)
    (tmp_path / LABELS).write_bytes(b"junk")
    with pytest.raises(FormatError, match=r"imagelabels\.mat"):
        load_flowers(tmp_path, pixels=8)
