from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from metalmark.data.catalog import format_of
from metalmark.data.dataset import Dataset
from metalmark.data.text import TextSplit, load_synthetic_text, load_text
from metalmark.errors import FormatError

TEXT = "Größe: ".encode() + bytes(range(33, 126)) * 3


def test_bytes_are_tokens_and_targets_are_one_ahead(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(TEXT)
    dataset = load_text(path, seq_len=8)
    batch = dataset.train.take(np.array([3, 0]))  # type: ignore[union-attr]
    assert batch.inputs.dtype == batch.targets.dtype == np.int32
    assert bytes(batch.inputs[1].tolist()) == TEXT[:8]
    assert bytes(batch.targets[1].tolist()) == TEXT[1:9]
    assert bytes(batch.inputs[0].tolist()) == TEXT[24:32]
    assert dataset.source == f"text of {len(TEXT)} bytes"
    assert dataset.digest == load_text(path, seq_len=8).digest != load_text(path, seq_len=9).digest


def parts(dataset: Dataset) -> list[bytes]:
    assert isinstance(dataset.train, TextSplit)
    assert isinstance(dataset.validation, TextSplit)
    return [dataset.train.tokens.tobytes(), dataset.validation.tokens.tobytes()]


def test_the_last_tenth_is_for_validation(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(TEXT * 10)
    train, validation = parts(load_text(path, seq_len=8))
    assert train + validation == TEXT * 10
    assert len(validation) == len(TEXT)


@pytest.mark.parametrize("length", [9, 17, 18, 19, 25])
def test_every_window_is_whole(tmp_path: Path, length: int) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"a" * length)
    if length < 18:
        with pytest.raises(
            FormatError, match=f"has {length} bytes, and samples of 8 tokens need at least 18"
        ) as caught:
            load_text(path, seq_len=8)
        assert "--seq-len" in caught.value.hint
        return
    dataset = load_text(path, seq_len=8)
    for part in (dataset.train, dataset.validation):
        assert isinstance(part, TextSplit)
        assert part.take(np.arange(len(part))).inputs.shape == (len(part), 8)
        assert len(part) >= 1


def test_what_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"a" * 20_000 + b"\xff" + b"a" * 100)
    with pytest.raises(FormatError, match=r"byte 20,000 \(0xff\) is not UTF-8") as caught:
        load_text(path)
    assert caught.value.hint == "Save it as UTF-8."
    for data in (b"", b"\xff\xfe", b"a\0b"):
        path.write_bytes(data)
        assert format_of(path) is None
    path.write_bytes(b"a" * (2**14 - 1) + "é".encode())
    assert format_of(path) is not None, "a character cut in two by what is looked at"


def test_a_made_up_text_is_the_seeds() -> None:
    one, two, other = (load_synthetic_text(seed=seed, seq_len=16) for seed in (1, 1, 2))
    assert one.digest == two.digest != other.digest
    train, _ = parts(one)
    followers = {train[i : i + 1]: set() for i in range(len(train))}
    for letter, after in pairwise(train):
        followers[bytes([letter])].add(after)
    assert max(map(len, followers.values())) <= 4, "or there is nothing to learn"
