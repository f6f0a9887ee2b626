from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from metalmark.data.dataset import Dataset
from metalmark.data.folder import decode, load_folder
from metalmark.errors import FormatError
from tests.data.files import picture, write_tree

JPEG, PNG = picture(1), picture(1, form="PNG")


def load(path: Path, pixels: int = 16) -> Dataset:
    return load_folder(path, pixels=pixels)


def names(split) -> set[str]:
    return set(split.images.names)


def test_own_split_takes_a_fifth_of_each_class(tmp_path: Path) -> None:
    dataset = load(write_tree(tmp_path, {"cat": 20, "dog": 10, "eel": 2}))
    assert dataset.source == "folder: class/image, split 80/20 by file name"
    assert dataset.train.classes == dataset.validation.classes == ("cat", "dog", "eel")
    assert np.bincount(dataset.train.labels).tolist() == [16, 8, 1]
    assert np.bincount(dataset.validation.labels).tolist() == [4, 2, 1]
    assert not names(dataset.train) & names(dataset.validation)
    assert len(names(dataset.train) | names(dataset.validation)) == 32


def test_own_split_is_always_the_same_and_follows_the_name(tmp_path: Path) -> None:
    one = load(write_tree(tmp_path / "one", {"cat": 10, "dog": 10}))
    two = load(write_tree(tmp_path / "two", {"cat": 10, "dog": 10}))
    assert names(one.validation) == names(two.validation)
    assert one.digest == two.digest
    # Other pictures under the same names: the same split, other data.
    three = load(write_tree(tmp_path / "three", {"cat": 10, "dog": 10}, first=100))
    assert names(one.validation) == names(three.validation)
    assert one.digest != three.digest


def test_copies_of_an_image_go_together(tmp_path: Path) -> None:
    write_tree(tmp_path, {"cat": 10, "dog": 10})
    for number in range(10):
        (tmp_path / "cat" / f"copy{number}.jpg").write_bytes((tmp_path / "cat" / f"image{number}.jpg").read_bytes())
        (tmp_path / "dog" / f"also{number}.jpg").write_bytes((tmp_path / "cat" / f"image{number}.jpg").read_bytes())
    dataset = load(tmp_path)
    contents = [{(tmp_path / name).read_bytes() for name in names(s)} for s in (dataset.train, dataset.validation)]
    assert not contents[0] & contents[1]
    assert len(dataset.train) + len(dataset.validation) == 40
    assert set(dataset.validation.labels.tolist()) == {0, 1}


@pytest.mark.parametrize("held_out", ["valid", "val", "validation", "test"])
def test_published_split(tmp_path: Path, held_out: str) -> None:
    write_tree(tmp_path / "train", {"1": 3, "10": 3, "2": 2})
    write_tree(tmp_path / held_out, {"1": 1, "10": 1}, first=50)
    (tmp_path / "README").write_text("mine")
    dataset = load(tmp_path)
    assert dataset.source == f"folder: class/image, split as its train/ and {held_out}/"
    # As text, as torchvision sorts them.
    assert dataset.train.classes == ("1", "10", "2")
    assert len(dataset.train) == 8
    assert names(dataset.validation) == {f"{held_out}/1/image0.jpg", f"{held_out}/10/image0.jpg"}
    assert dataset.test is None


def test_three_parts(tmp_path: Path) -> None:
    for part, first in (("train", 0), ("valid", 10), ("test", 20)):
        write_tree(tmp_path / part, {"a": 2, "b": 2}, first=first)
    dataset = load(tmp_path)
    assert dataset.test is not None
    parts = [names(dataset.train), names(dataset.validation), names(dataset.test)]
    assert [len(part) for part in parts] == [4, 4, 4]
    assert len(set.union(*parts)) == 12


def test_only_train_is_split_here(tmp_path: Path) -> None:
    dataset = load(write_tree(tmp_path, {"train/a": 5, "train/b": 5}))
    assert dataset.source.endswith("split 80/20 by file name")
    assert len(dataset.train) == 8


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    dataset = load(write_tree(tmp_path, {"train": 5, "valid": 5}))
    assert dataset.train.classes == ("train", "valid")


def test_an_image_in_training_and_validation_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", {"a": 3, "b": 3})
    write_tree(tmp_path / "valid", {"a": 1, "b": 1}, first=50)
    (tmp_path / "valid" / "b" / "leak.jpg").write_bytes((tmp_path / "train" / "a" / "image1.jpg").read_bytes())
    with pytest.raises(FormatError, match=r"same image twice: train/a/image1\.jpg, .* valid/b/leak\.jpg"):
        load(tmp_path)


def test_images_are_decoded_when_asked_for(tmp_path: Path) -> None:
    dataset = load(write_tree(tmp_path, {"a": 5, "b": 5}), pixels=20)
    images = dataset.train.images
    assert images.shape == (8, 20, 20, 3)
    batch = images[np.array([3, 0, 3])]
    assert batch.dtype == np.uint8
    assert batch.shape == (3, 20, 20, 3)
    np.testing.assert_array_equal(batch[0], batch[2])
    (tmp_path / images.names[1]).unlink()
    images[np.array([0])]
    with pytest.raises(FormatError, match="No such file"):
        images[np.array([1])]


def test_images_can_be_handed_to_a_loaders_process(tmp_path: Path) -> None:
    images = load(write_tree(tmp_path, {"a": 5, "b": 5})).train.images
    again = pickle.loads(pickle.dumps(images))
    np.testing.assert_array_equal(again[np.array([2])], images[np.array([2])])


def test_what_is_left_out(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a": 5, "b": 5})
    for name in (".DS_Store", "._image0.jpg", "README.md", "Thumbs.db", "notes.txt", "labels.csv", "LICENSE", "Icon\r"):
        (tmp_path / "a" / name).write_bytes(b"not an image")
        (tmp_path / name).write_bytes(b"not an image")
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "a").mkdir(parents=True)
    dataset = load(tmp_path)
    assert len(dataset.train) + len(dataset.validation) == 10
    assert dataset.train.classes == ("a", "b")


def broken(tmp_path: Path, name: str, data: bytes) -> FormatError:
    write_tree(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "a" / name).write_bytes(data)
    with pytest.raises(FormatError) as caught:
        load(tmp_path)
    assert f"a/{name}" in caught.value.message
    assert "Remove it" in caught.value.hint
    return caught.value


def test_a_file_that_is_no_image(tmp_path: Path) -> None:
    assert "name ends in none of .jpg" in broken(tmp_path, "model.pt", b"x").message
    assert "starts with 3c 68 74 6d" in broken(tmp_path / "2", "image9.jpg", b"<html>not found").message
    assert "it is empty" in broken(tmp_path / "3", "image9.jpg", b"").message


def test_a_link_to_nothing_and_a_pipe(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "a" / "link.jpg").symlink_to(tmp_path / "absent")
    with pytest.raises(FormatError, match=r"a/link\.jpg .*no regular file"):
        load(tmp_path)
    (tmp_path / "a" / "link.jpg").unlink()
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    with pytest.raises(FormatError, match=r"a/pipe\.jpg .*no regular file"):
        load(tmp_path)


def test_a_damaged_image_is_named_when_it_is_decoded(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a": 5, "b": 5})
    for path in tmp_path.glob("*/*.jpg"):
        path.write_bytes(path.read_bytes()[:-200])
    images = load(tmp_path).train.images
    with pytest.raises(FormatError, match=r"a/image\d\.jpg can't be read as an image: .*truncated"):
        images[np.array([0])]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"a": 5, "b": 1}, "only one image in the class b"),
        ({"a": 5, "b": 0}, "no image in its class folder b/"),
        ({"a": 5}, "only one class folder, a/"),
        ({"a": 5, "b/c": 5}, "b/c is a folder inside a class folder"),
        ({}, "has no class folders in it"),
        ({".": 3}, "has images but no class folders"),
        ({"train/a": 2, "train/b": 2, "valid/a": 0, "valid/b": 0}, "no image in its class folder valid/a/"),
    ],
)
def test_trees_that_do_not_serve(tmp_path: Path, counts: dict[str, int], words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        load(write_tree(tmp_path, counts))
    assert caught.value.hint


def test_a_class_of_copies_of_one_image(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a": 5, "b": 1})
    (tmp_path / "b" / "copy.jpg").write_bytes((tmp_path / "b" / "image0.jpg").read_bytes())
    with pytest.raises(FormatError, match="only one image in the class b"):
        load(tmp_path)


def test_a_class_that_is_validated_and_never_trained(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", {"a": 2, "b": 2})
    write_tree(tmp_path / "valid", {"a": 1, "c": 1}, first=50)
    with pytest.raises(FormatError, match=r"the class c in validation and not in train/"):
        load(tmp_path)


def test_a_wide_image_keeps_its_middle(tmp_path: Path) -> None:
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    path = tmp_path / "x.png"
    Image.fromarray(pixels).save(path)
    assert decode(path.read_bytes(), "x.png", 10).min() == 255


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_format(form: str) -> None:
    assert decode(picture(3, form=form), "x", 8).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("mode", "form"), [("L", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("1", "PNG"), ("CMYK", "JPEG")]
)
def test_every_mode(mode: str, form: str) -> None:
    assert decode(picture(3, form=form, mode=mode), "x", 8).shape == (8, 8, 3)


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.new("P", (9, 9)).save(path, transparency=b"\x00" * 3)
    assert decode(path.read_bytes(), "x.png", 8).shape == (8, 8, 3)


def test_sixteen_bits_are_not_clipped_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(path)
    with pytest.raises(FormatError, match=r"x\.png .*more than 8 bits"):
        decode(path.read_bytes(), "x.png", 8)


def test_a_huge_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(FormatError, match="huge picture"):
        decode(JPEG, "x.jpg", 8)


@settings(deadline=None, max_examples=200)
@given(data=st.sampled_from([JPEG, PNG]), at=st.integers(0, 1000), new=st.binary(max_size=20), cut=st.booleans())
def test_any_damage(data: bytes, at: int, new: bytes, cut: bool) -> None:
    damaged = data[:at] + new + (b"" if cut else data[at + len(new) :])
    with contextlib.suppress(FormatError):
        assert decode(damaged, "x.jpg", 8).shape == (8, 8, 3)
